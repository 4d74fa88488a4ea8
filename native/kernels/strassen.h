// Products by one step of Strassen's algorithm (Strassen, 1969; Huang et al., 2016), for matmul_packed: seven products of half the size in place
// of eight. It pairs the rows of a sample, y's last dimension but one of three or more, so that a row's bits do not depend on other samples,
// threads or rows of a job: the compiler says where that is so (backends/cpu/product.py). Rows and weight are of one type, whose products the level
// makes in float32, one by one: bfloat16 with AVX2 and without dot products. Four sums of the weight's quarters are made once: as many floats as it has values.
//
// Its limits: k (of bfloat16 its half) and the number of panels are even, and so are the rows of a sample. A row that is not finite, or greater than the sums
// allow, would reach its partner: both go by the direct product. What meets in a sum shares its rounding errors, so a row goes by it too where
// the root mean square of it or of its partner is far above its upper quartile (kMostApart); zeros are not counted. Each value is weighed by the
// greatest weight that it or the value beside it in the sums meets, in quartiles of the outputs, and by kLeastHeight at least: so what an output may
// lose is measured in quartiles of its row and of its weights, whatever is great in them (docs/performance.md has the figure). A row whose weighed
// squares are below 2^-100 in sum, which may have underflowed, goes by the direct product too. So does a weight with a value that is not finite or too
// great, with one output of zeros alone whose partner has others, or whose heights are too great as a root mean square (kMostHeights): one value of
// 600 times its output's quartile is enough of 768 inputs. What is multiplied with what: level/strassen.h.
#pragma once

#include <mutex>
#include <vector>

#include "../src/kernel.h"
#include "../src/memory.h"
#include "level/strassen.h"

namespace ingot {

class Strassen {
 public:
  /// Whether it can multiply rows and a weight of these types, by so many outputs and values of k, and is faster than the level's `direct` product.
  static bool takes(Level level, const PackedProduct& direct, DType x, DType weight, std::int64_t n, std::int64_t k) {
    const std::int64_t beside = x == DType::bfloat16 ? 2 : 1;  // values of k in a panel
    const bool faster = x != DType::int8 && direct.speed == 1 && product_of(level, x).run != nullptr;
    return x == weight && faster && k >= 2 && k % (2 * beside) == 0 && panels_of(n) % 2 == 0;
  }
  /// Whether the rows of y's samples make pairs.
  static bool pairs(const TensorView& y) { return y.rank >= 3 && y.shape[y.rank - 2] % 2 == 0; }

  Strassen(DType x, std::int64_t n, std::int64_t k, Level level)
      : n_(n), units_(panels_of(n) / 2), k_(k), panel_bytes_(k * kPanel * bytes_of(x)),
        product_(product_of(level, x)) {}

  /// Makes the sums of the weight's panels, once; later calls do nothing. By so many workers of the pool, so not from one of them, before the
  /// first run() (in plan()). Throws Error("memory").
  void prepare(const std::byte* panels, int threads) const;
  /// Whether the weight, once it is prepared, is not left to the direct product.
  bool multiplies() const { return multiplies_; }

  /// Pairs of panels.
  std::int64_t units() const { return units_; }
  std::size_t scratch() const { return bytes_of_layout<StrassenMemory>(k_, units_); }
  /// Computes up to kPairRows pairs of rows. `job`: all but the weight and what follows from it, from that unit on; its scratch has scratch() bytes.
  void run(StrassenJob& job, const std::byte* panels, std::int64_t unit) const;

 private:
  static const StrassenProduct& product_of(Level level, DType x) {
    const StrassenTable& table = half_for(strassen_halves, level);
    return x == DType::float32 ? table.float32 : x == DType::float16 ? table.float16 : table.bfloat16;
  }
  static std::int64_t panels_of(std::int64_t n) { return (n + kPanel - 1) / kPanel; }
  std::int64_t unit_floats() const { return k_ / 2 * kStrassenSums * kPanel; }

  std::int64_t n_, units_, k_, panel_bytes_;
  const StrassenProduct& product_;
  mutable std::once_flag once_;
  mutable Pages sums_;
  mutable std::vector<float> squared_heights_;
  mutable bool multiplies_ = false;
};

}  // namespace ingot
