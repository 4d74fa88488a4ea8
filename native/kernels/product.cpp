#include "product.h"

#include <algorithm>

#include "check.h"

namespace ingot {

MatmulFunction product_for([[maybe_unused]] Level level, DType dtype) {
#if INGOT_X86
  if (dtype == DType::bfloat16 && level == Level::amx) return amx::matmul_bfloat16;
  if (dtype == DType::bfloat16 && level == Level::avx512_bf16) return avx512_bf16::matmul_bfloat16;
#define INGOT_LEVEL_FUNCTIONS(space)                                   \
  return dtype == DType::float32   ? space::matmul_float32             \
         : dtype == DType::float16 ? space::matmul_float16             \
                                   : space::matmul_bfloat16
  if (level >= Level::avx512) INGOT_LEVEL_FUNCTIONS(avx512);
  if (level >= Level::avx2) INGOT_LEVEL_FUNCTIONS(avx2);
#else
#define INGOT_LEVEL_FUNCTIONS(space)                                   \
  return dtype == DType::float32   ? space::matmul_float32             \
         : dtype == DType::float16 ? space::matmul_float16             \
                                   : space::matmul_bfloat16
#endif
  INGOT_LEVEL_FUNCTIONS(portable);
#undef INGOT_LEVEL_FUNCTIONS
}

SmallFunction small_product_for([[maybe_unused]] Level level, [[maybe_unused]] DType dtype) {
#if INGOT_X86
  if (dtype == DType::bfloat16 && level == Level::amx) return amx::matmul_small_bfloat16;
#endif
  return nullptr;
}

Blocking blocking_for(Level level, DType dtype) {
  if (dtype != DType::bfloat16 || level < Level::avx512_bf16) return kVectorBlocking;
  return level == Level::amx ? kTileBlocking : kPairBlocking;
}

bool row_stride(const TensorView& view, const TensorView& lead, std::int64_t* stride) {
  *stride = 0;
  if (lead.elements() == 0) return true;  // no rows to be apart
  std::int64_t inner = 1, inner_size = 1;  // of the dimension last seen with more than one element
  bool found = false;
  for (int dim = lead.rank - 2; dim >= 0; --dim) {
    const std::int64_t size = lead.shape[dim];
    if (size == 1) continue;
    const int own = dim - (lead.rank - view.rank);
    const std::int64_t step = own < 0 || view.shape[own] == 1 ? 0 : view.stride[own];
    if (own >= 0 && view.shape[own] != 1 && view.shape[own] != size) return false;
    if (!found) *stride = step;
    else if (step != inner * inner_size) return false;
    found = true;
    inner = step;
    inner_size = size;
  }
  return true;
}

std::int64_t rows_of(const TensorView& y) {
  std::int64_t rows = 1;
  for (int dim = 0; dim + 1 < y.rank; ++dim) rows *= y.shape[dim];
  return rows;
}

void require_extras(std::string_view kernel, Views in, std::size_t first, const TensorView& y) {
  const std::int64_t n = y.shape[y.rank - 1];
  std::int64_t stride;
  for (std::size_t i = first; i < in.size(); ++i) {
    const TensorView& extra = in[i];
    const bool columns = extra.rank >= 1 && (extra.shape[extra.rank - 1] == n || extra.shape[extra.rank - 1] == 1);
    require(extra.rank == 0 || (columns && extra.rank <= y.rank && row_stride(extra, y, &stride)), kernel,
            "an operand of expr must broadcast to [rows, n], its rows equally far apart");
  }
}

TileOperand placed(const TensorView& view, const TensorView& y, std::int64_t row, std::int64_t column) {
  std::int64_t stride = 0;
  row_stride(view, y, &stride);
  const std::int64_t step = view.rank == 0 || view.shape[view.rank - 1] == 1 ? 0 : view.stride[view.rank - 1];
  return {view.as<std::byte>() + (row * stride + column * step) * bytes_of(view.dtype), view.dtype, stride, step};
}

namespace {

std::int64_t batch_size(const TensorView& view, const TensorView& y, int dim) {
  const int own = dim - (y.rank - view.rank);
  return own < 0 ? 1 : view.shape[own];
}

}  // namespace

void require_batched_product(std::string_view kernel, const TensorView& a, const TensorView& b, const TensorView& y) {
  constexpr const char* kShapes = "a, b and y must be [..., m, k], [..., k, n] and [..., m, n]";
  require(a.rank >= 2 && b.rank >= 2 && y.rank == std::max(a.rank, b.rank), kernel, kShapes);
  require(a.shape[a.rank - 1] == b.shape[b.rank - 2] && a.shape[a.rank - 2] == y.shape[y.rank - 2] &&
              b.shape[b.rank - 1] == y.shape[y.rank - 1],
          kernel, kShapes);
  for (int dim = 0; dim + 2 < y.rank; ++dim) {
    const std::int64_t of_a = batch_size(a, y, dim), of_b = batch_size(b, y, dim), of_y = y.shape[dim];
    require((of_a == of_y && (of_b == of_y || of_b == 1)) || (of_a == 1 && of_b == of_y), kernel,
            "the batch dimensions of a and b must broadcast to those of y");
  }
  require_dense_rows(kernel, "y", y);
}

std::int64_t batch_stride(const TensorView& view, const TensorView& y, int dim) {
  return batch_size(view, y, dim) == 1 ? 0 : view.stride[dim - (y.rank - view.rank)];
}

std::int64_t batch_offset(const TensorView& view, const TensorView& y, std::int64_t batch) {
  std::int64_t offset = 0;
  for (int dim = y.rank - 3; dim >= 0; --dim) {
    offset += batch % y.shape[dim] * batch_stride(view, y, dim);
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

Grid grid_of(std::int64_t rows, std::int64_t units, int workers, double packing) {
  Grid best{1, workers};
  double least = 0;
  for (int by_rows = 1; by_rows <= workers; ++by_rows) {
    if (workers % by_rows != 0) continue;
    const int by_units = workers / by_rows;
    const double height = static_cast<double>((rows + by_rows - 1) / by_rows);
    const double cost = static_cast<double>((units + by_units - 1) / by_units) * std::max(height, 16.0) + height * packing;
    if (by_rows == 1 || cost < least) {
      best = {by_rows, by_units};
      least = cost;
    }
  }
  return best;
}

}  // namespace ingot
