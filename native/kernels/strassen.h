// Products of float32 by one step of Strassen's algorithm (Strassen, 1969; Huang et al., 2016), for matmul_packed: seven products of half the
// size in place of eight. It pairs the rows of a sample, y's last dimension but one of three or more, so that a row's bits do not depend on
// other samples, threads or rows of a job: the compiler says where that is so (backends/cpu/product.py). The weight's sums, 1.75 times as many
// bytes as its panels, are made once.
//
// Its limits: k and the number of panels are even, and so are the rows of a sample. A row that is not finite, or greater than the sums
// allow, would reach its partner: both go by the direct product. So does a row beside a much greater one, whose rounding errors it would get, and
// one with a value much greater than its others, whose rounding errors reach outputs that do not use it. So does a weight with a value that is
// not finite or too great, or where one of the two is so of an output, or the first of two inputs. What is multiplied with what: level/strassen.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <mutex>

#include "../src/kernel.h"
#include "../src/memory.h"
#include "level/strassen.h"

namespace ingot {

/// What is more times as great as its partner is left to the direct product.
constexpr float kMostApart = 32;
/// And so is what has, or whose partner has, a value of more times sqrt(k) times the mean of its others: k products of the others make a sum
/// about sqrt(k) times as great as one, so this bounds the value beside sums that do not use it. The others are summed as magnitudes, so that
/// two or three such values (of 512 or more) do not hide one another and sparse rows, such as those of relu, are not taken for them.
constexpr float kMostAlone = 8;

class Strassen {
 public:
  /// Whether it can multiply by a weight of that many outputs and values of k.
  static bool takes(std::int64_t n, std::int64_t k) { return k >= 2 && k % 2 == 0 && panels_of(n) % 2 == 0; }
  /// Whether the rows of y's samples make pairs.
  static bool pairs(const TensorView& y) { return y.rank >= 3 && y.shape[y.rank - 2] % 2 == 0; }
  /// Whether the sums of a row are as exact as they may be beside its partner.
  bool takes_row(const Magnitudes& row, const Magnitudes& partner) const {
    return row.greatest <= kMostOfRows && partner.greatest <= kMostOfRows && bears(row, partner);
  }

  Strassen(std::int64_t n, std::int64_t k, Level level)
      : n_(n), units_(panels_of(n) / 2), k_(k), root_(std::sqrt(static_cast<float>(k))), table_(half_for(strassen_halves, level)) {}

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
  /// Whether sums of `one`, a row or an output of k values, bear the rounding errors of its partner's values and of its own greatest one.
  bool bears(const Magnitudes& one, const Magnitudes& partner) const {
    return partner.greatest <= kMostApart * one.greatest && std::max(one.greatest, partner.greatest) * root_ <= kMostAlone * (one.sum - one.greatest);
  }
  bool suits(const float* panels) const;

  std::int64_t n_, units_, k_;
  float root_;  // of k
  const StrassenTable& table_;
  mutable std::once_flag once_;
  mutable Pages sums_;
  mutable bool multiplies_ = false;
};

}  // namespace ingot
