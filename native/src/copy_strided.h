// Copies between strided windows of equal shape and element type.
#pragma once

#include "kernel.h"

namespace ingot {

/// to[i] = from[i] for every index. The windows have the same dtype and shape and do not overlap.
void copy_strided(const TensorView& from, const TensorView& to) noexcept;

/// Row-major strides for the shape that `view` has.
void set_row_major(TensorView& view) noexcept;

}  // namespace ingot
