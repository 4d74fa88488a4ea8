// What the host halves of products share: the level's function, rows and batches of views, the split of the work.
#pragma once

#include <span>

#include "../src/kernel.h"
#include "level/matmul.h"

namespace ingot {

using Views = std::span<const TensorView>;

MatmulFunction product_for(Level level, DType dtype);
/// For small matrices, or null: then product_for does them too.
SmallFunction small_product_for(Level level, DType dtype);
/// What product_for(level, dtype) works with.
Blocking blocking_for(Level level, DType dtype);

/// How far apart the rows of a view are once all dimensions but the last are taken as one, when `lead` (the leading
/// dimensions of the output) is its shape or it is broadcast along all of them; false when they are not equally far apart.
bool row_stride(const TensorView& view, const TensorView& lead, std::int64_t* stride);
std::int64_t rows_of(const TensorView& y);

/// Refuses extras (in[first] onwards) that do not broadcast to [rows of y, n] with rows equally far apart.
void require_extras(std::string_view kernel, Views in, std::size_t first, const TensorView& y);
/// An operand of the expression, or y itself, from that row and column of y on.
TileOperand placed(const TensorView& view, const TensorView& y, std::int64_t row, std::int64_t column);

/// Refuses operands that are not a[..., m, k], b[..., k, n] -> y[..., m, n] with batch dimensions that broadcast to y's, and
/// rows of y that are not dense.
void require_batched_product(std::string_view kernel, const TensorView& a, const TensorView& b, const TensorView& y);
/// How far apart the matrices of an operand lie along a batch dimension of y, in elements; 0 where it is broadcast.
std::int64_t batch_stride(const TensorView& view, const TensorView& y, int dim);
/// Where the matrix of an operand for that batch of y begins, in elements.
std::int64_t batch_offset(const TensorView& view, const TensorView& y, std::int64_t batch);

/// Most scratch of a worker that gets some of the rows.
std::size_t product_scratch(Blocking blocking, std::int64_t rows, std::int64_t units, std::int64_t k, int parts, int threads);

/// Workers in a grid of rows by units.
struct Grid {
  int by_rows, by_units;
};

/// The split with the least work for the busiest worker. Few rows cost as much as 16: reading the weights dominates; and
/// packing rows of x again for every column of the grid costs `packing` of a unit.
Grid grid_of(std::int64_t rows, std::int64_t units, int workers, double packing);
constexpr double kPackingRows = 1.0 / 16, kPackingPatches = 1.0 / 8;

}  // namespace ingot
