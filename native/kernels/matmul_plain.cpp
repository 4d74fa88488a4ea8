// matmul_float64, matmul_integer: products of matrices of float64 and of integers, batched, any strides.
//
// Blocked, plain loops: they are for a few small sums beside a float32 network. An output is one chain of additions in the
// order of k, whatever its company. Integers wrap to y's type, whatever they were: int8 gives int32, or int8 again. Limits: y's
// rows are dense.
#include <algorithm>

#include "check.h"
#include "product.h"

namespace ingot {

namespace {

constexpr std::int64_t kRows = 16, kColumns = 64, kDepth = 64;  // of a block: 8 KiB of sums, 32 KiB of b

/// Elements of A, added up as Sum (unsigned for integers, which makes wrapping defined), stored as Y.
template <class A, class Sum, class Y>
class MatmulPlain final : public Kernel {
 public:
  explicit MatmulPlain(std::string_view name) : name_(name) {}

  Scratch plan(Views in, Views out, int) const override {
    require_batched_product(name_, in[0], in[1], out[0]);
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
      const A* from_a = a.as<A>() + batch_offset(a, y, batch) + row * a.stride[a.rank - 2];
      const A* from_b = b.as<A>() + batch_offset(b, y, batch) + column * b.stride[b.rank - 1];
      block(a, from_a, b, from_b, rows, columns, memory.sums, memory.dense);
      Y* to = y.as<Y>() + batch_offset(y, y, batch) + row * y.stride[y.rank - 2] + column;
      for (std::int64_t i = 0; i < rows; ++i)
        std::transform(memory.sums + i * kColumns, memory.sums + i * kColumns + columns, to + i * y.stride[y.rank - 2],
                       [](Sum sum) { return static_cast<Y>(sum); });
    }
  }

 private:
  struct Memory {
    Sum *sums, *dense;  // dense: a block of b

    explicit Memory(Frame& frame) : sums(frame.take<Sum>(kRows * kColumns)), dense(frame.take<Sum>(kDepth * kColumns)) {}
  };

  static void block(const TensorView& a, const A* from_a, const TensorView& b, const A* from_b, std::int64_t rows,
                    std::int64_t columns, Sum* sums, Sum* dense) {
    const std::int64_t k = a.shape[a.rank - 1];
    std::fill(sums, sums + kRows * kColumns, Sum{0});
    std::fill(dense, dense + kDepth * kColumns, Sum{0});  // columns that are not there
    for (std::int64_t first = 0; first < k; first += kDepth) {
      const std::int64_t depth = std::min(kDepth, k - first);
      for (std::int64_t p = 0; p < depth; ++p)
        for (std::int64_t j = 0; j < columns; ++j)
          dense[p * kColumns + j] = static_cast<Sum>(from_b[(first + p) * b.stride[b.rank - 2] + j * b.stride[b.rank - 1]]);
      for (std::int64_t i = 0; i < rows; ++i) {
        const A* row = from_a + i * a.stride[a.rank - 2] + first * a.stride[a.rank - 1];
        Sum* sum = sums + i * kColumns;
        for (std::int64_t p = 0; p < depth; ++p) {
          const Sum factor = static_cast<Sum>(row[p * a.stride[a.rank - 1]]);
          for (std::int64_t j = 0; j < kColumns; ++j) sum[j] += factor * dense[p * kColumns + j];
        }
      }
    }
  }

  std::string_view name_;
};

void require_product(std::string_view name, const nlohmann::json& json, Types in, Types out) {
  Params(name, json).done();
  require_operands(name, in, 2, 2, out, 1);
}

std::unique_ptr<Kernel> make_matmul_float64(const nlohmann::json& json, Types in, Types out, Level) {
  constexpr const char* kName = "matmul_float64";
  require_product(kName, json, in, out);
  for (const OperandType& x : in) require_dtype(kName, "an operand", x.dtype, {DType::float64});
  require_dtype(kName, "y", out[0].dtype, {DType::float64});
  return std::make_unique<MatmulPlain<double, double, double>>(kName);
}

/// Sums of at least 32 bits, and as wide as y: wrapping to y's type afterwards loses nothing.
template <class A>
std::unique_ptr<Kernel> integers(std::string_view name, DType out) {
  if (out == DType::int64) return std::make_unique<MatmulPlain<A, std::uint64_t, std::int64_t>>(name);
  if (out == DType::int32) return std::make_unique<MatmulPlain<A, std::uint32_t, std::int32_t>>(name);
  if (out == DType::int16) return std::make_unique<MatmulPlain<A, std::uint32_t, std::int16_t>>(name);
  return std::make_unique<MatmulPlain<A, std::uint32_t, std::int8_t>>(name);
}

std::unique_ptr<Kernel> make_matmul_integer(const nlohmann::json& json, Types in, Types out, Level) {
  constexpr const char* kName = "matmul_integer";
  require_product(kName, json, in, out);
  const DType dtype = in[0].dtype;
  require_dtype(kName, "a", dtype, {DType::int8, DType::int32, DType::int64});
  require_dtype(kName, "b", in[1].dtype, {dtype});
  require_dtype(kName, "y", out[0].dtype, {DType::int8, DType::int16, DType::int32, DType::int64});
  if (dtype == DType::int8) return integers<std::int8_t>(kName, out[0].dtype);
  if (dtype == DType::int32) return integers<std::int32_t>(kName, out[0].dtype);
  return integers<std::int64_t>(kName, out[0].dtype);
}

constexpr KernelInfo kKernels[] = {
    {"matmul_float64", 1, "a, b -> y", "", make_matmul_float64},
    {"matmul_integer", 1, "a, b -> y", "", make_matmul_integer},
};

}  // namespace

std::span<const KernelInfo> matmul_plain_kernels() { return kKernels; }

}  // namespace ingot
