// matmul_float64: products of float64 matrices, batched, any strides.
//
// Blocked, plain loops: float64 is for a few small sums beside a float32 network. An output is one chain of additions in
// the order of k, whatever its company. Limits: y's rows are dense.
#include <algorithm>

#include "check.h"
#include "product.h"

namespace ingot {

namespace {

constexpr std::int64_t kRows = 16, kColumns = 64, kDepth = 64;  // of a block: 8 KiB of sums, 32 KiB of b

class MatmulFloat64 final : public Kernel {
 public:
  Scratch plan(Views in, Views out, int) const override {
    require_batched_product("matmul_float64", in[0], in[1], out[0]);
    return {0, bytes_of_layout<Memory>()};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &a = in[0], &b = in[1], &y = out[0];
    if (y.elements() == 0) return;
    const auto memory = layout_at<Memory>(worker.local);
    const std::int64_t m = y.shape[y.rank - 2], n = y.shape[y.rank - 1];
    const std::int64_t down = (m + kRows - 1) / kRows, across = (n + kColumns - 1) / kColumns;
    const Share share = share_of(y.elements() / (m * n) * down * across, worker.index, worker.count);
    for (std::int64_t task = share.first; task < share.last; ++task) {
      const std::int64_t row = task % down * kRows, column = task / down % across * kColumns, batch = task / down / across;
      const std::int64_t rows = std::min(kRows, m - row), columns = std::min(kColumns, n - column);
      const double* from_a = a.as<double>() + batch_offset(a, y, batch) + row * a.stride[a.rank - 2];
      const double* from_b = b.as<double>() + batch_offset(b, y, batch) + column * b.stride[b.rank - 1];
      block(a, from_a, b, from_b, rows, columns, memory.sums, memory.dense);
      double* to = y.as<double>() + batch_offset(y, y, batch) + row * y.stride[y.rank - 2] + column;
      for (std::int64_t i = 0; i < rows; ++i) std::copy_n(memory.sums + i * kColumns, columns, to + i * y.stride[y.rank - 2]);
    }
  }

 private:
  struct Memory {
    double *sums, *dense;  // dense: a block of b

    explicit Memory(Frame& frame) : sums(frame.take<double>(kRows * kColumns)), dense(frame.take<double>(kDepth * kColumns)) {}
  };

  static void block(const TensorView& a, const double* from_a, const TensorView& b, const double* from_b, std::int64_t rows,
                    std::int64_t columns, double* sums, double* dense) {
    const std::int64_t k = a.shape[a.rank - 1];
    std::fill(sums, sums + kRows * kColumns, 0.0);
    std::fill(dense, dense + kDepth * kColumns, 0.0);  // columns that are not there
    for (std::int64_t first = 0; first < k; first += kDepth) {
      const std::int64_t depth = std::min(kDepth, k - first);
      for (std::int64_t p = 0; p < depth; ++p)
        for (std::int64_t j = 0; j < columns; ++j)
          dense[p * kColumns + j] = from_b[(first + p) * b.stride[b.rank - 2] + j * b.stride[b.rank - 1]];
      for (std::int64_t i = 0; i < rows; ++i) {
        const double* row = from_a + i * a.stride[a.rank - 2] + first * a.stride[a.rank - 1];
        double* sum = sums + i * kColumns;
        for (std::int64_t p = 0; p < depth; ++p) {
          const double factor = row[p * a.stride[a.rank - 1]];
          for (std::int64_t j = 0; j < kColumns; ++j) sum[j] += factor * dense[p * kColumns + j];
        }
      }
    }
  }
};

std::unique_ptr<Kernel> make_matmul_float64(const nlohmann::json& json, Types in, Types out, Level) {
  Params("matmul_float64", json).done();
  require_operands("matmul_float64", in, 2, 2, out, 1);
  for (const OperandType& x : in) require_dtype("matmul_float64", "an operand", x.dtype, {DType::float64});
  require_dtype("matmul_float64", "y", out[0].dtype, {DType::float64});
  return std::make_unique<MatmulFloat64>();
}

constexpr KernelInfo kKernels[] = {
    {"matmul_float64", 1, "a, b -> y", "", make_matmul_float64},
};

}  // namespace

std::span<const KernelInfo> matmul_float64_kernels() { return kKernels; }

}  // namespace ingot
