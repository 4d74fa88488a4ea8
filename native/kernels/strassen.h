// Products of float32 by one step of Strassen's algorithm (Strassen, 1969; Huang et al., 2016), for matmul_packed: seven products of half the
// size in place of eight. It pairs the rows of a sample, y's last dimension but one of three or more, so that a row's bits do not depend on
// other samples, threads or rows of a job: the compiler says where that is so (backends/cpu/product.py). The weight's sums, 1.75 times as many bytes as its panels, are made once.
//
// Its limits: k and the number of panels are even, and so are the rows of a sample. A row that is not finite, or greater than the sums
// allow, would reach its partner: both go by the direct product. So does a row beside a much greater one, whose rounding errors it would get, and
// a weight with such a value, or where that is so of two outputs that are partners, or of two inputs. What is multiplied with what:
// level/strassen.h.
#pragma once

#include <mutex>

#include "../src/kernel.h"
#include "../src/memory.h"
#include "level/strassen.h"

namespace ingot {

/// What is more times as great as its partner is left to the direct product.
constexpr float kMostApart = 32;

class Strassen {
 public:
  /// Whether it can multiply by a weight of that many outputs and values of k.
  static bool takes(std::int64_t n, std::int64_t k) { return k >= 2 && k % 2 == 0 && panels_of(n) % 2 == 0; }
  /// Whether the rows of y's samples make pairs.
  static bool pairs(const TensorView& y) { return y.rank >= 3 && y.shape[y.rank - 2] % 2 == 0; }
  /// Whether the sums of a row with that greatest magnitude (StrassenJob::greatest) are as exact as they may be beside that of its partner.
  static bool takes_row(float greatest, float of_partner) {
    return greatest <= kMostOfRows && of_partner <= kMostOfRows && of_partner <= kMostApart * greatest;
  }

  Strassen(std::int64_t n, std::int64_t k, Level level) : n_(n), units_(panels_of(n) / 2), k_(k), table_(half_for(strassen_halves, level)) {}

  /// Makes the sums of the weight's panels, once; later calls do nothing. From any thread, before the first run() (in plan()). Throws
  /// Error("memory").
  void prepare(const float* panels) const;
  /// Whether the weight, once it is prepared, is not left to the direct product.
  bool multiplies() const { return multiplies_; }

  /// Pairs of panels.
  std::int64_t units() const { return units_; }
  std::size_t scratch() const { return bytes_of_layout<StrassenMemory>(k_, units_); }
  /// Computes up to kPairRows pairs of rows. `job`: all but the weight and what follows from it, from that unit on; its scratch has scratch() bytes.
  void run(StrassenJob& job, std::int64_t unit) const;

 private:
  static std::int64_t panels_of(std::int64_t n) { return (n + kPanel - 1) / kPanel; }
  std::int64_t unit_floats() const { return k_ / 2 * kStrassenProducts * kPanel; }

  static bool near(float a, float b) { return a <= kMostApart * b && b <= kMostApart * a; }
  bool suits(const float* panels) const;

  std::int64_t n_, units_, k_;
  const StrassenTable& table_;
  mutable std::once_flag once_;
  mutable Pages sums_;
  mutable bool multiplies_ = false;
};

}  // namespace ingot
