// Reductions along one run of elements: what every level provides to the host half (kernels/reduce.cpp).
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "dtype.h"

namespace ingot {

enum class Reduction : std::uint8_t { sum, mean, max, min, prod };

struct ReduceTable {
  /// Elements that lie side by side, reduced to one float32 in an order that depends on the count alone; NaN propagates.
  float (*run)(const void* x, DType dtype, std::int64_t count, Reduction how);
  /// into[j] = into[j] combined with x[j], for vertical reductions.
  void (*combine)(float* into, const void* x, DType dtype, std::int64_t count, Reduction how);
  /// The first greatest element of those that lie side by side; the first NaN if there is one.
  std::int64_t (*argmax)(const void* x, DType dtype, std::int64_t count);
  void (*convert)(const void* x, DType x_dtype, void* y, DType y_dtype, std::int64_t count);
};

INGOT_FAMILY(reduce, ReduceTable)

}  // namespace ingot
