// What a tensor takes of memory.
#pragma once

#include "kernel.h"

namespace ingot {

/// The bytes of its elements, one behind the other.
std::int64_t bytes_of(const TensorView& view) noexcept;

}  // namespace ingot
