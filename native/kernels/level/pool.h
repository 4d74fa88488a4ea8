// Pooling of a line of outputs: what every level provides to the host half (kernels/pool.cpp).
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "dtype.h"
#include "window.h"

namespace ingot {

/// A run of columns of one output line. Steps count elements.
struct PoolJob {
  const void* x;                        // the first plane and line that its windows find, at column 0
  void* y;                              // at column `first`
  DType dtype;                          // of both, but for averages of int8: these are float32
  std::int64_t channels;                // side by side in x and y
  std::int64_t planes, lines;           // positions of the windows inside, along the outer axes
  std::int64_t plane_step, line_step, x_step, y_step;
  WindowAxis columns;
  std::int64_t first, last;
  // averages only
  std::int64_t outer;                   // positions along the outer axes that count
  bool count_padding;                   // positions in the padding count
  std::int64_t divisor;                 // what sums are divided by; 0: the positions that count
};

struct PoolTable {
  void (*average)(const PoolJob& job);
  void (*greatest)(const PoolJob& job);
};

INGOT_FAMILY(pool, PoolTable)

}  // namespace ingot
