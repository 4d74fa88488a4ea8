// How wide a kv_cache stores a key or value, for the states and for the kernels that read them.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace ingot {

/// Elements that a kv_cache takes for a key or value: head_dim, or of int8 as many as 16 divides, and the four bytes of a scale.
constexpr std::int64_t stored_width(DType dtype, std::int64_t head_dim) {
  return dtype == DType::int8 ? (head_dim + 15) / 16 * 16 + 4 : head_dim;
}

}  // namespace ingot
