// Operands seen in the shape that they broadcast to: a dimension that an operand lacks, or has with size 1, has stride 0.
#pragma once

#include <optional>

#include "../src/kernel.h"

namespace ingot {

/// The stride of a view along dimension `dim` of the `rank` dimensions that it broadcasts to.
inline std::int64_t broadcast_stride(const TensorView& view, int rank, int dim) {
  const int own = dim - (rank - view.rank);
  return own < 0 || view.shape[own] == 1 ? 0 : view.stride[own];
}

/// Whether the view broadcasts to dimensions [first, last) of y.
bool broadcasts(const TensorView& view, const TensorView& y, int first, int last);
inline bool broadcasts(const TensorView& view, const TensorView& y) {
  return view.rank <= y.rank && broadcasts(view, y, 0, y.rank);
}

/// How far apart the rows of a view lie, in elements, once dimensions [first, y.rank - 1) of y are taken as one.
/// Nothing when it does not broadcast to those, or its rows are not equally far apart.
std::optional<std::int64_t> row_stride(const TensorView& view, const TensorView& y, int first = 0);

/// Kernel::apart of operands that broadcast to y: those that have its first dimension, which is not 1.
std::uint64_t apart_by_broadcast(std::span<const TensorView> in, const TensorView& y, std::size_t first = 0);

}  // namespace ingot
