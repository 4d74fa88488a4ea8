// matmul_packed: rows of x times a constant weight stored in panels, with a scalar expression on the float32 results.
// matmul: batched product of two computed operands, which packs b on the way and uses the same level code.
//
// Limits: x and b are float32, bfloat16 or float16, the weight is of x's type or narrower (packed_weight.h); sums are float32.
// matmul_packed: rows of x and y are dense and equally far apart; extras broadcast to [rows, n]. matmul: any strides of a and b;
// rows of y are dense.
#include <algorithm>
#include <cstring>

#include "product.h"

namespace ingot {

namespace {

class MatmulPacked final : public Kernel {
 public:
  MatmulPacked(std::int64_t n, std::int64_t k, int parts, PackedWeight weight, Epilogue epilogue, const PackedProduct& product)
      : n_(n), k_(k), parts_(parts), weight_(weight), epilogue_(std::move(epilogue)), product_(product) {}

  Scratch plan(Views in, Views out, int threads) const override {
    const TensorView& x = in[0];
    const TensorView& y = out[0];
    const std::string name = "matmul_packed";
    weight_.check(name, "the weight", &in[1], parts_ * units());
    require(x.rank >= 1 && x.rank == y.rank && x.shape[x.rank - 1] == k_, name, "x must be [..., k] and y [..., n]");
    require(y.shape[y.rank - 1] == n_, name, "x must be [..., k] and y [..., n]");
    for (int dim = 0; dim + 1 < y.rank; ++dim)
      require(x.shape[dim] == y.shape[dim], name, "x and y must have the same leading dimensions");
    require_dense_rows(name, "x", x);
    require_dense_rows(name, "y", y);
    require(row_stride(x, y).has_value(), name, "rows of x must be equally far apart");
    require(row_stride(y, y).has_value(), name, "rows of y must be equally far apart");
    require_extras(name, in, first_extra(), y);
    const std::size_t product = product_scratch(product_.blocking, rows_of(y), units(), k_, parts_, threads);
    return {0, bytes_of_layout<ProductMemory>(weight_, epilogue_, product)};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView& y = out[0];
    const std::int64_t rows = rows_of(y);
    const Grid grid = grid_of(rows, units(), worker.count, kPackingRows);
    const Share down = share_of(rows, worker.index / grid.by_units, grid.by_rows);
    const Share across = share_of(units(), worker.index % grid.by_units, grid.by_units);
    if (down.first == down.last || across.first == across.last) return;
    const std::int64_t column = across.first * kPanel;
    TileOperand extras[kMaxExtras];
    for (std::size_t i = first_extra(); i < in.size(); ++i) extras[i - first_extra()] = placed(in[i], y, down.first, column);
    const int width = bytes_of(in[0].dtype);
    const auto memory = layout_at<ProductMemory>(worker.local, weight_, epilogue_);
    MatmulJob job{};
    const TileOperand x = placed(in[0], y, down.first, 0);
    job.x = x.data;
    job.x_stride = x.row_stride * width;
    job.rows = down.last - down.first;
    job.k = k_;
    weight_.place(job, &in[1], across.first * parts_, memory.unpacked);
    job.units = across.last - across.first;
    job.parts = parts_;
    job.columns = n_ - column;
    job.epilogue = epilogue_.job(extras, in.size() - first_extra(), memory.epilogue);
    job.epilogue.out = placed(y, y, down.first, column);
    job.epilogue.out.column_stride = 1;
    job.scratch = memory.product;
    product_.run(job);
  }

 private:
  std::int64_t units() const noexcept { return (n_ + kPanel - 1) / kPanel; }
  std::size_t first_extra() const noexcept { return 1 + weight_.operands(); }

  std::int64_t n_, k_;
  int parts_;
  PackedWeight weight_;
  Epilogue epilogue_;
  const PackedProduct& product_;
};

std::unique_ptr<Kernel> make_matmul_packed(const nlohmann::json& json, Types in, Types out, Level level) {
  const char* name = "matmul_packed";
  require_operands(name, in, 2, kMaxExtras, out, 1);
  constexpr std::int64_t kLargest = std::int64_t{1} << 31;
  Params params(name, json);
  const std::int64_t n = params.integer("n", 1, kLargest), k = params.integer("k", 0, kLargest);
  const int parts = static_cast<int>(params.integer("parts", 1, 2));
  const std::int64_t group = params.has("group") ? params.integer("group", 8, kLargest) : 0;
  require_dtype(name, "x", in[0].dtype, kComputeFloats);
  require_weight(name, "the weight", in[1].dtype, in[0].dtype, group);
  require_dtype(name, "y", out[0].dtype, kComputeFloats);
  const PackedWeight weight(in[1].dtype, k, group);
  require_operands(name, in, 1 + weight.operands(), kMaxExtras, out, 1);
  if (group != 0) require_dtype(name, "the scales", in[2].dtype, {DType::float32});
  Epilogue epilogue(params, parts, in.subspan(1 + weight.operands()), out, level);
  params.done();
  return std::make_unique<MatmulPacked>(n, k, parts, weight, std::move(epilogue), product_for(level, in[0].dtype));
}

/// 32 columns of b that lie side by side, as a panel [k / Depth][32][Depth].
template <class T, int Depth>
void pack_whole_panel(const T* b, std::int64_t k, std::int64_t k_stride, T* panel) {
  static constexpr T kZeros[kPanel] = {};
  constexpr std::int64_t kAhead = 32;  // rows fetched ahead, also behind this b: the next one often follows it
  for (std::int64_t row = 0; row < k; row += Depth, panel += kPanel * Depth) {
    const T* from = b + row * k_stride;
    for (std::int64_t at = kAhead; at < kAhead + Depth; ++at) {
      __builtin_prefetch(from + at * k_stride);
      __builtin_prefetch(from + at * k_stride + kPanel - 1);
    }
    if constexpr (Depth == 1) {
      std::memcpy(panel, from, kPanel * sizeof(T));
    } else {
      const T* next = row + 1 < k ? from + k_stride : kZeros;
      for (int column = 0; column < kPanel; ++column) {
        panel[2 * column] = from[column];
        panel[2 * column + 1] = next[column];
      }
    }
  }
}

/// Packs up to 32 columns of b, zero padded, as a panel [k / Depth][32][Depth].
template <class T, int Depth>
void pack_panel(const T* b, std::int64_t k, std::int64_t columns, std::int64_t k_stride, std::int64_t n_stride, T* panel) {
  if (columns == kPanel && n_stride == 1) return pack_whole_panel<T, Depth>(b, k, k_stride, panel);
  const auto place = [](std::int64_t row, std::int64_t column) {
    return row / Depth * Depth * kPanel + column * Depth + row % Depth;
  };
  if (columns < kPanel || k % Depth != 0) std::memset(panel, 0, round_up(k, Depth) * kPanel * sizeof(T));
  constexpr std::int64_t kRun = 32;  // columns of b that are dense along k: a run of each in turn
  for (std::int64_t first = 0; first < k; first += kRun) {
    const std::int64_t last = std::min(first + kRun, k);
    if (k_stride == 1) {
      for (std::int64_t column = 0; column < columns; ++column)
        for (std::int64_t row = first; row < last; ++row) panel[place(row, column)] = b[row + column * n_stride];
    } else {
      for (std::int64_t row = first; row < last; ++row)
        for (std::int64_t column = 0; column < columns; ++column)
          panel[place(row, column)] = b[row * k_stride + column * n_stride];
    }
  }
}

class Matmul final : public Kernel {
 public:
  Matmul(DType dtype, Level level) : epilogue_(Expression::identity("matmul"), level), product_(product_for(level, dtype)) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &a = in[0], &b = in[1], &y = out[0];
    require_batched_product("matmul", a, b, y);
    const Sizes sizes = sizes_of(in, out);
    const std::size_t product = matmul_scratch(product_.blocking, sizes.block_rows, sizes.units, a.shape[a.rank - 1], 1);
    const std::size_t small = product_.small == nullptr ? 0 : bytes_of_layout<SmallMemory>();
    return {0, std::max(bytes_of_layout<Memory>(epilogue_, sizes, product), small)};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &a = in[0], &b = in[1], &y = out[0];
    if (y.elements() == 0) return;
    if (by_small(in, y)) return run_small(a, b, y, worker);
    const Sizes sizes = sizes_of(in, out);
    const std::int64_t m = y.shape[y.rank - 2], n = y.shape[y.rank - 1], k = a.shape[a.rank - 1];
    const std::int64_t blocks = (m + product_.blocking.rows - 1) / product_.blocking.rows, chunk = sizes.units * kPanel, chunks = (n + chunk - 1) / chunk;
    const int width = bytes_of(a.dtype);
    const auto memory = layout_at<Memory>(worker.local, epilogue_, sizes);
    MatmulJob job{};
    job.k = k;
    job.parts = 1;
    job.epilogue = epilogue_.job(nullptr, 0, memory.epilogue);
    job.w = memory.panels;
    job.scratch = memory.product;
    const Share share = share_of(y.elements() / (m * n) * chunks * blocks, worker.index, worker.count);
    std::int64_t packed = -1;
    for (std::int64_t task = share.first; task < share.last; ++task) {
      const std::int64_t block = task % blocks, column = task / blocks % chunks * chunk, batch = task / blocks / chunks;
      const std::int64_t columns = std::min(chunk, n - column);
      if (packed != task / blocks) {
        pack(b, batch_offset(b, y, batch) + column * b.stride[b.rank - 1], columns, memory.panels);
        packed = task / blocks;
      }
      const std::int64_t first = m * block / blocks;
      job.rows = m * (block + 1) / blocks - first;
      const std::byte* x = a.at(batch_offset(a, y, batch) + first * a.stride[a.rank - 2]);
      job.x = sizes.rows == 0 ? x : gather(a, x, job.rows, memory.rows);
      job.x_stride = (sizes.rows == 0 ? a.stride[a.rank - 2] : k) * width;
      job.units = (columns + kPanel - 1) / kPanel;
      job.columns = columns;
      const std::int64_t to = batch_offset(y, y, batch) + first * y.stride[y.rank - 2] + column;
      job.epilogue.out = {y.at(to), y.dtype, y.stride[y.rank - 2], 1};
      product_.run(job);
    }
  }

 private:
  struct Sizes {
    std::int64_t units;       // packed at a time
    std::int64_t block_rows;
    std::int64_t panels, rows;  // bytes; rows is 0 when a's rows are dense
  };
  struct Memory {
    std::byte *epilogue, *panels, *rows, *product;

    /// The product's own `bytes` lie last: only plan() has to say how many.
    Memory(Frame& frame, const Epilogue& epilogue_of, const Sizes& sizes, std::size_t bytes = 0)
        : epilogue(epilogue_of.take(frame)), panels(frame.take<std::byte>(sizes.panels)), rows(frame.take<std::byte>(sizes.rows)),
          product(frame.take<std::byte>(static_cast<std::int64_t>(bytes))) {}
  };
  Sizes sizes_of(Views in, Views out) const {
    const TensorView &a = in[0], &y = out[0];
    const std::int64_t k = a.shape[a.rank - 1], width = bytes_of(a.dtype);
    const std::int64_t panel = round_up(k, 2) * kPanel * width;
    constexpr std::int64_t kBudget = 512 << 10;  // stays in L2
    Sizes sizes{};
    const std::int64_t all = (y.shape[y.rank - 1] + kPanel - 1) / kPanel;
    sizes.units = std::max<std::int64_t>(1, std::min({all, std::int64_t{product_.blocking.group}, kBudget / std::max<std::int64_t>(panel, 1)}));
    sizes.block_rows = std::min<std::int64_t>(y.shape[y.rank - 2], product_.blocking.rows);
    sizes.panels = sizes.units * panel;
    const bool dense = k <= 1 || a.stride[a.rank - 1] == 1;
    sizes.rows = dense ? 0 : sizes.block_rows * k * width;
    return sizes;
  }
  /// Whether the level multiplies them matrix by matrix.
  bool by_small(Views in, const TensorView& y) const {
    const TensorView &a = in[0], &b = in[1];
    const std::int64_t m = y.shape[y.rank - 2], n = y.shape[y.rank - 1], k = a.shape[a.rank - 1];
    return product_.small != nullptr && m <= kSmallRows && k >= 1 && k <= kSmallDepth && n % kPanel == 0 && a.stride[a.rank - 1] == 1 &&
           b.stride[b.rank - 1] == 1;
  }

  void run_small(const TensorView& a, const TensorView& b, const TensorView& y, const Worker& worker) const {
    SmallProducts job{};
    job.m = y.shape[y.rank - 2];
    job.n = y.shape[y.rank - 1];
    job.k = a.shape[a.rank - 1];
    job.out = y.dtype;
    job.memory = layout_at<SmallMemory>(worker.local);
    const std::int64_t width = bytes_of(a.dtype), out_width = bytes_of(y.dtype);
    job.a_row = a.stride[a.rank - 2] * width;
    job.b_row = b.stride[b.rank - 2] * width;
    job.y_row = y.stride[y.rank - 2] * out_width;
    const int last = y.rank - 3;  // the batch dimension whose matrices one call takes
    const std::int64_t size = last < 0 ? 1 : y.shape[last];
    if (last >= 0) {
      job.a_step = broadcast_stride(a, y.rank, last) * width;
      job.b_step = broadcast_stride(b, y.rank, last) * width;
      job.y_step = y.stride[last] * out_width;
    }
    const Share share = share_of(y.elements() / (job.m * job.n), worker.index, worker.count);
    for (std::int64_t batch = share.first; batch < share.last; batch += job.count) {
      job.a = a.at(batch_offset(a, y, batch));
      job.b = b.at(batch_offset(b, y, batch));
      job.y = y.at(batch_offset(y, y, batch));
      job.count = std::min(size - batch % size, share.last - batch);
      product_.small(job);
    }
  }

  static void pack(const TensorView& b, std::int64_t offset, std::int64_t columns, std::byte* panels) {
    const std::int64_t k = b.shape[b.rank - 2], k_stride = b.stride[b.rank - 2], n_stride = b.stride[b.rank - 1];
    for (std::int64_t column = 0; column < columns; column += kPanel) {
      const std::int64_t from = offset + column * n_stride, count = std::min<std::int64_t>(kPanel, columns - column);
      if (b.dtype == DType::float32)
        pack_panel<std::uint32_t, 1>(b.as<std::uint32_t>() + from, k, count, k_stride, n_stride,
                                     reinterpret_cast<std::uint32_t*>(panels) + column * k);
      else if (b.dtype == DType::float16)
        pack_panel<std::uint16_t, 1>(b.as<std::uint16_t>() + from, k, count, k_stride, n_stride,
                                     reinterpret_cast<std::uint16_t*>(panels) + column * k);
      else
        pack_panel<std::uint16_t, 2>(b.as<std::uint16_t>() + from, k, count, k_stride, n_stride,
                                     reinterpret_cast<std::uint16_t*>(panels) + column * round_up(k, 2));
    }
  }
  template <class T>
  static void copy_rows(const TensorView& a, const T* from, std::int64_t rows, T* to) {
    const std::int64_t k = a.shape[a.rank - 1], row_step = a.stride[a.rank - 2], k_step = a.stride[a.rank - 1];
    constexpr std::int64_t kRun = 16;
    for (std::int64_t first = 0; first < k; first += kRun)
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t i = first; i < std::min(first + kRun, k); ++i) to[row * k + i] = from[row * row_step + i * k_step];
  }
  static const std::byte* gather(const TensorView& a, const std::byte* x, std::int64_t rows, std::byte* to) {
    if (a.dtype == DType::float32)
      copy_rows(a, reinterpret_cast<const std::uint32_t*>(x), rows, reinterpret_cast<std::uint32_t*>(to));
    else
      copy_rows(a, reinterpret_cast<const std::uint16_t*>(x), rows, reinterpret_cast<std::uint16_t*>(to));
    return to;
  }

  Epilogue epilogue_;
  const PackedProduct& product_;
};

std::unique_ptr<Kernel> make_matmul(const nlohmann::json& json, Types in, Types out, Level level) {
  Params("matmul", json).done();
  require_operands("matmul", in, 2, 2, out, 1);
  require_dtype("matmul", "a", in[0].dtype, kComputeFloats);
  require_dtype("matmul", "b", in[1].dtype, {in[0].dtype});
  require_dtype("matmul", "y", out[0].dtype, {DType::float32, in[0].dtype});
  return std::make_unique<Matmul>(in[0].dtype, level);
}

constexpr KernelInfo kKernels[] = {
    {"matmul_packed", 1, "x, weight, scales?, *extras -> y",
     "n: integer, k: integer, parts: integer, group?: integer, epilogue: expression",
     make_matmul_packed},
    {"matmul", 1, "a, b -> y", "", make_matmul},
};

}  // namespace

std::span<const KernelInfo> matmul_kernels() { return kKernels; }

}  // namespace ingot
