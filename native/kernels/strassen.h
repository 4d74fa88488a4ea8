// Products of float32 by one step of Strassen's algorithm (Strassen, 1969; Huang et al., 2016), for matmul_packed: seven products of half the
// size in place of eight. It pairs the rows of a sample, y's last dimension but one of three or more, so that a row's bits do not depend on
// other samples, threads or rows of a job. The weight's sums, 1.75 times as many bytes as its panels, are made once.
//
// Its limits: k and the number of panels are even, and so are the rows of a sample. A row that is not finite, or greater than the sums
// allow, would reach its partner: such pairs go by the direct product, and so does a weight with such a value. The error is that of the
// largest values of both rows. What is multiplied with what: level/strassen.h.
#pragma once

#include <mutex>

#include "../src/kernel.h"
#include "../src/memory.h"
#include "level/strassen.h"

namespace ingot {

class Strassen {
 public:
  /// Whether it can multiply by a weight of that many outputs and values of k.
  static bool takes(std::int64_t n, std::int64_t k) { return k >= 2 && k % 2 == 0 && panels_of(n) % 2 == 0; }
  /// Whether the rows of y's samples make pairs.
  static bool pairs(const TensorView& y) { return y.rank >= 3 && y.shape[y.rank - 2] % 2 == 0; }

  Strassen(std::int64_t n, std::int64_t k, Level level) : units_(panels_of(n) / 2), k_(k), table_(half_for(strassen_halves, level)) {}

  /// Makes the sums of the weight's panels, once; later calls do nothing. From any thread, before the first run() (in plan()). Throws
  /// Error("memory").
  void prepare(const float* panels) const;
  /// Whether the weight, once it is prepared, has no value that is left to the direct product.
  bool finite() const { return finite_; }

  /// Pairs of panels.
  std::int64_t units() const { return units_; }
  std::size_t scratch() const { return bytes_of_layout<StrassenMemory>(k_, units_); }
  /// Computes up to kPairRows pairs of rows. `job`: all but the weight and what follows from it, from that unit on; its scratch has scratch() bytes.
  void run(StrassenJob& job, std::int64_t unit) const;

 private:
  static std::int64_t panels_of(std::int64_t n) { return (n + kPanel - 1) / kPanel; }
  std::int64_t unit_floats() const { return k_ / 2 * kStrassenProducts * kPanel; }

  std::int64_t units_, k_;
  const StrassenTable& table_;
  mutable std::once_flag once_;
  mutable Pages sums_;
  mutable bool finite_ = true;
};

}  // namespace ingot
