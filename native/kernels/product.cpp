#include "product.h"

#include <algorithm>

#include "check.h"

namespace ingot {

int read_outside(Params& params, DType x) {
  const auto outside = static_cast<int>(params.integer("outside", -128, 127));
  require(outside == 0 || x == DType::int8, params.kernel(), "outside is 0 around floats");
  return outside;
}

Order read_order(Params& params) {
  if (!params.has("order")) return Order::by_rules;
  constexpr Order kOrders[] = {Order::rows, Order::weights, Order::packed};
  return kOrders[params.choice("order", {"rows", "weights", "packed"})];
}

Split read_split(Params& params) {
  if (!params.has("split")) return Split::by_rules;
  return params.choice("split", {"rows", "outputs"}) == 0 ? Split::rows : Split::outputs;
}

const PackedProduct& product_for(Level level, DType dtype, DType weight) {
  PackedProduct MatmulTable::*const member = dtype == DType::float32   ? &MatmulTable::float32
                                             : dtype == DType::float16 ? &MatmulTable::float16
                                             : dtype != DType::int8    ? &MatmulTable::bfloat16
                                             : weight == DType::uint8  ? &MatmulTable::int8_int4
                                                                       : &MatmulTable::int8;
  return member_for(matmul_halves, level, member);
}

std::int64_t rows_of(const TensorView& y) {
  std::int64_t rows = 1;
  for (int dim = 0; dim + 1 < y.rank; ++dim) rows *= y.shape[dim];
  return rows;
}

void require_extras(std::string_view kernel, Views in, std::size_t first, const TensorView& y) {
  for (std::size_t i = first; i < in.size(); ++i)
    require(broadcasts(in[i], y) && row_stride(in[i], y), kernel, "an operand of the epilogue must broadcast to [rows, n], its rows equally far apart");
}

TileOperand placed(const TensorView& view, const TensorView& y, std::int64_t row, std::int64_t column) {
  const std::int64_t stride = row_stride(view, y).value_or(0), step = broadcast_stride(view, y.rank, y.rank - 1);
  return {view.at(row * stride + column * step), view.dtype, stride, step};
}

void place_operands(Views in, std::size_t first, const TensorView& y, std::int64_t row, std::int64_t column, TileOperand* extras, TileOperand& out) {
  for (std::size_t i = first; i < in.size(); ++i) extras[i - first] = placed(in[i], y, row, column);
  out = placed(y, y, row, column);
  out.column_stride = 1;  // which broadcasts where y has a single column
}

void require_batched_product(std::string_view kernel, const TensorView& a, const TensorView& b, const TensorView& y) {
  constexpr const char* kShapes = "a, b and y must be [..., m, k], [..., k, n] and [..., m, n]";
  require(a.rank >= 2 && b.rank >= 2 && y.rank == std::max(a.rank, b.rank), kernel, kShapes);
  require(a.shape[a.rank - 1] == b.shape[b.rank - 2] && a.shape[a.rank - 2] == y.shape[y.rank - 2] &&
              b.shape[b.rank - 1] == y.shape[y.rank - 1],
          kernel, kShapes);
  const auto size = [&](const TensorView& view, int dim) { return dim < y.rank - view.rank ? 1 : view.shape[dim - (y.rank - view.rank)]; };
  for (int dim = 0; dim + 2 < y.rank; ++dim) {
    const std::int64_t of_a = size(a, dim), of_b = size(b, dim), of_y = y.shape[dim];
    require((of_a == of_y && (of_b == of_y || of_b == 1)) || (of_a == 1 && of_b == of_y), kernel,
            "the batch dimensions of a and b must broadcast to those of y");
  }
  require_dense_rows(kernel, "y", y);
}

std::int64_t batch_offset(const TensorView& view, const TensorView& y, std::int64_t batch) {
  std::int64_t offset = 0;
  for (int dim = y.rank - 3; dim >= 0; --dim) {
    offset += batch % y.shape[dim] * broadcast_stride(view, y.rank, dim);
    batch /= y.shape[dim];
  }
  return offset;
}

std::size_t product_scratch(Blocking blocking, std::int64_t rows, std::int64_t units, std::int64_t k, int parts, int threads) {
  std::size_t most = 0;
  for (const std::int64_t each : {rows, (rows + threads - 1) / threads, std::int64_t{1}})  // groups differ for one row
    most = std::max(most, matmul_scratch(blocking, each, units, k, parts));
  return most;
}

Grid grid_of(Split split, std::int64_t rows, std::int64_t units, int workers, double packing, std::int64_t step) {
  if (split == Split::rows) return {workers, 1};
  Grid best{1, workers};
  if (split == Split::outputs) return best;
  double least = 0;
  for (int by_rows = 1; by_rows <= workers; ++by_rows) {
    if (workers % by_rows != 0) continue;
    const int by_units = workers / by_rows;
    const double height = static_cast<double>(round_up((rows + by_rows - 1) / by_rows, step));
    const double cost = static_cast<double>((units + by_units - 1) / by_units) * (std::max(height, 16.0) + static_cast<double>(step - 1)) + height * packing;
    if (by_rows == 1 || cost < least) {
      best = {by_rows, by_units};
      least = cost;
    }
  }
  return best;
}

}  // namespace ingot
