// matmul_packed: rows of x times a constant weight stored in panels, with a scalar expression on the float32 results.
// matmul: batched product of two computed operands, which packs b on the way and uses the same level code. With a_split or b_split
// that operand's k is two dimensions, so that sums over two labels need no copy where these do not lie together.
//
// Limits: x and b are float32, bfloat16 or float16, the weight is of x's type or narrower (packed_weight.h); sums are float32. In
// matmul_packed x may be int8 beside a weight of int8 or of 4 bits: sums are whole numbers, of 4 bits those of groups, which the epilogue
// gets as float32.
// matmul_packed: `order` and `split` take the place of the rules for its loops and for what it deals to workers, where a build has measured.
// `algorithm`: strassen (strassen.h), where a build knows that y's last dimension but one are the rows of a sample, by a weight and a y that
// can take it, at a level whose own product is not faster than float32's; else, or direct, the direct product.
// matmul_packed: y may be int8 or uint8, as the epilogue's last step makes them; rows of x and y are dense and equally far apart; extras broadcast to [rows, n]. matmul: any strides of a and b;
// rows of y are dense.
#include <algorithm>

#include "product.h"
#include "strassen.h"

namespace ingot {

namespace {

class MatmulPacked final : public Kernel {
 public:
  MatmulPacked(std::int64_t n, std::int64_t k, int parts, Order order, Split split, PackedWeight weight, Epilogue epilogue, const PackedProduct& product,
               std::unique_ptr<Strassen> strassen)
      : n_(n), k_(k), parts_(parts), order_(order), split_(split), blocking_(blocking_of(product.blocking, order)), weight_(weight),
        epilogue_(std::move(epilogue)), product_(product), strassen_(std::move(strassen)) {}

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
    if (strassen_ && Strassen::pairs(y)) strassen_->prepare(in[1].as<std::byte>(), threads);
    const std::int64_t rows = by_strassen(y) ? std::min(rows_of(y), kPairRows) : rows_of(y);  // of the direct product
    std::size_t product = product_scratch(blocking_, at_once(in[0], rows), units(), k_, parts_, threads);
    if (by_strassen(y)) product = std::max(product, strassen_->scratch());
    return {0, bytes_of_layout<ProductMemory>(weight_, epilogue_, product)};
  }

  std::optional<std::uint64_t> apart(Views in, Views out) const override {
    return out[0].rank < 2 ? std::nullopt : std::optional(1 | apart_by_broadcast(in, out[0], first_extra()));
  }

  bool replaces(std::size_t operand, Views, Views out) const override { return operand >= first_extra() && ends_in_place(product_, out[0].dtype); }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView& y = out[0];
    const std::int64_t rows = rows_of(y);
    if (by_strassen(y)) return run_pairs(in, y, rows / 2, worker);
    const bool reads = product_.tiles && panel_bytes(in[0]) <= kWeightsOfCore;
    const Grid grid = grid_of(split_, rows, units(), worker.count, reads ? kReadingRows : kPackingRows, rows_step(product_));
    const Share down = share_of(rows, worker.index / grid.by_units, grid.by_rows);
    const Share across = share_of(units(), worker.index % grid.by_units, grid.by_units);
    if (down.first == down.last || across.first == across.last) return;
    multiply(in, y, down, across, layout_at<ProductMemory>(worker.local, weight_, epilogue_));
  }

 private:
  bool by_strassen(const TensorView& y) const { return strassen_ && Strassen::pairs(y) && strassen_->multiplies(); }

  /// The direct product of these rows and units.
  void multiply(Views in, const TensorView& y, Share down, Share across, const ProductMemory& memory) const {
    const std::int64_t most = at_once(in[0], down.last - down.first);
    MatmulJob job{};
    job.order = order_;
    weight_.place(job, &in[1], across.first * parts_, memory.unpacked);
    job.units = across.last - across.first;
    job.parts = parts_;
    for (std::int64_t row = down.first; row < down.last; row += job.rows) {
      TileOperand extras[kMaxExtras];
      place(in, y, row, across.first, memory, extras, job);
      job.rows = std::min(most, down.last - row);
      product_.run(job);
    }
  }

  /// What a job reads and writes from that row and unit on.
  void place(Views in, const TensorView& y, std::int64_t row, std::int64_t unit, const ProductMemory& memory, TileOperand* extras, MatmulJob& job) const {
    const std::int64_t column = unit * kPanel;
    const TileOperand x = placed(in[0], y, row, 0);
    job.x = x.data;
    job.x_stride = x.row_stride * bytes_of(in[0].dtype);
    job.k = k_;
    job.columns = n_ - column;
    job.scratch = memory.product;
    job.epilogue = epilogue_.job(extras, in.size() - first_extra(), memory.epilogue);
    place_operands(in, first_extra(), y, row, column, extras, job.epilogue.out);
  }

  /// By Strassen's algorithm: each row of the first half of a sample with one of the other.
  void run_pairs(Views in, const TensorView& y, std::int64_t pairs, const Worker& worker) const {
    const Grid grid = grid_of(split_, pairs, strassen_->units(), worker.count, kPackingPairs, kPairsStep);
    const Share down = share_of(pairs, worker.index / grid.by_units, grid.by_rows);
    const Share across = share_of(strassen_->units(), worker.index % grid.by_units, grid.by_units);
    if (down.first == down.last || across.first == across.last) return;
    const std::int64_t half = y.shape[y.rank - 2] / 2;
    const auto memory = layout_at<ProductMemory>(worker.local, weight_, epilogue_);
    StrassenJob job{};
    job.partner_row = half;
    for (std::int64_t pair = down.first; pair < down.last; pair += job.pairs) {
      const std::int64_t row = pair / half * 2 * half + pair % half;
      const std::int64_t left = std::min(down.last - pair, half - pair % half), passes = (left + kPairRows - 1) / kPairRows;
      TileOperand extras[kMaxExtras];
      place(in, y, row, across.first, memory, extras, job.product);
      job.pairs = (left + passes - 1) / passes;
      job.product.rows = half + job.pairs;
      job.product.units = across.last - across.first;
      job.product.parts = 1;
      bool taken[kPairRows][2];
      job.taken = taken;
      strassen_->run(job, in[1].as<std::byte>(), across.first);
      multiply_apart(in, y, job, row, across, memory);
    }
  }

  /// The direct product of those rows of a pass whose sums do not bear their partners, in runs of such rows.
  void multiply_apart(Views in, const TensorView& y, const StrassenJob& job, std::int64_t row, Share across, const ProductMemory& memory) const {
    const Share right{across.first + strassen_->units(), across.last + strassen_->units()};
    for (const int lower : {0, 1}) {
      const std::int64_t first = row + lower * job.partner_row;
      for (std::int64_t i = 0, next = 0; i < job.pairs; i = next) {
        const bool by_pairs = job.taken[i][lower];
        while (next < job.pairs && job.taken[next][lower] == by_pairs) ++next;
        if (by_pairs) continue;
        multiply(in, y, {first + i, first + next}, across, memory);
        multiply(in, y, {first + i, first + next}, right, memory);
      }
    }
  }

  /// Rows of one job, at most: all, where the product's own passes are enough or rows are not packed.
  std::int64_t at_once(const TensorView& x, std::int64_t rows) const {
    MatmulJob job{};
    job.rows = rows;
    job.k = k_;
    job.order = order_;
    job.packing = weight_.packing();
    job.parts = parts_;
    if (product_.in_place != nullptr && product_.in_place(job)) return rows;
    const std::int64_t most = rows_at_once(blocking_, panel_bytes(x));
    return most < blocking_.rows ? std::min(rows, most) : rows;
  }
  std::int64_t panel_bytes(const TensorView& x) const { return units() * parts_ * k_ * kPanel * bytes_of(x.dtype); }
  std::int64_t units() const noexcept { return (n_ + kPanel - 1) / kPanel; }
  std::size_t first_extra() const noexcept { return 1 + weight_.operands(); }

  std::int64_t n_, k_;
  int parts_;
  Order order_;
  Split split_;
  Blocking blocking_;
  PackedWeight weight_;
  Epilogue epilogue_;
  const PackedProduct& product_;
  std::unique_ptr<Strassen> strassen_;  // or null: the direct product
};

std::unique_ptr<Kernel> make_matmul_packed(const nlohmann::json& json, Types in, Types out, Level level) {
  const char* name = "matmul_packed";
  require_operands(name, in, 2, kMaxExtras, out, 1);
  constexpr std::int64_t kLargest = std::int64_t{1} << 31;
  Params params(name, json);
  const std::int64_t n = params.integer("n", 1, kLargest), k = params.integer("k", 0, kLargest);
  const int parts = static_cast<int>(params.integer("parts", 1, 2));
  const Order order = read_order(params);
  const Split split = read_split(params);
  const bool strassen = params.has("algorithm") && params.choice("algorithm", {"direct", "strassen"}) == 1;
  const std::int64_t group = params.has("group") ? params.integer("group", 8, kLargest) : 0;
  if (in[0].dtype != DType::int8) require_dtype(name, "x", in[0].dtype, kComputeFloats);
  else require(k <= kMostInt8, name, "sums of int8 fit into int32 up to k = 131071");
  require_weight(name, "the weight", in[1].dtype, in[0].dtype, group);
  require_dtype(name, "y", out[0].dtype, kEpilogueResults);
  const DType scales = group != 0 && in.size() > 2 ? in[2].dtype : DType::float32;
  const PackedWeight weight(in[1].dtype, k, group, scales);
  require_operands(name, in, 1 + weight.operands(), kMaxExtras, out, 1);
  require_dtype(name, "the scales", scales, {DType::float32, DType::float16});
  Epilogue epilogue(params, parts, in.subspan(1 + weight.operands()), out, level);
  params.done();
  const PackedProduct& product = product_for(level, in[0].dtype, in[1].dtype);
  const bool by_pairs = strassen && parts == 1 && in[1].constant && Strassen::takes(level, product, in[0].dtype, in[1].dtype, n, k);
  return std::make_unique<MatmulPacked>(n, k, parts, order, split, weight, std::move(epilogue), product,
                                        by_pairs ? std::make_unique<Strassen>(in[0].dtype, n, k, level) : nullptr);
}

/// An operand of a product as two dimensions behind its batches, and how its k lies.
struct Side {
  TensorView view;
  KRuns runs;  // in bytes

  /// `k`: which dimension k is, from the end on; with `split` it is given as that one and the one before.
  Side(const TensorView& given, int k, bool split) : view(given) {
    const int at = given.rank - k;
    const std::int64_t width = bytes_of(given.dtype);
    runs = {given.shape[at], given.stride[at] * width, 0};
    if (!split) return;
    const std::int64_t outer = given.shape[at - 1];
    runs.apart = given.stride[at - 1] * width;
    if (outer == 1 || runs.apart == runs.length * runs.step) runs.length *= outer;  // one run
    view.shape[at - 1] *= given.shape[at];
    view.stride[at - 1] = given.stride[at];
    std::copy(given.shape + at + 1, given.shape + given.rank, view.shape + at);
    std::copy(given.stride + at + 1, given.stride + given.rank, view.stride + at);
    --view.rank;
  }
  bool one_run(std::int64_t k) const { return runs.length == k; }
};

class Matmul final : public Kernel {
 public:
  Matmul(DType dtype, Level level, bool a_split, bool b_split)
      : epilogue_(Expression::identity("matmul"), level), product_(product_for(level, dtype)), a_split_(a_split), b_split_(b_split) {}

  Scratch plan(Views in, Views out, int) const override {
    const Side a(in[0], 1, a_split_), b(in[1], 2, b_split_);
    const TensorView& y = out[0];
    require_batched_product("matmul", a.view, b.view, y);
    const Sizes sizes = sizes_of(a.view, y);
    const std::size_t product = matmul_scratch(product_.blocking, sizes.block_rows, sizes.units, a.view.shape[a.view.rank - 1], 1);
    const std::size_t small = product_.small == nullptr ? 0 : bytes_of_layout<SmallMemory>();
    return {0, std::max(bytes_of_layout<Memory>(epilogue_, sizes, product), small)};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView& y = out[0];
    if (y.elements() == 0) return;
    const Side a_side(in[0], 1, a_split_), b_side(in[1], 2, b_split_);
    const TensorView &a = a_side.view, &b = b_side.view;
    if (by_small(a_side, b_side, y)) return run_small(a, b, y, worker);
    const Sizes sizes = sizes_of(a, y);
    const std::int64_t m = y.shape[y.rank - 2], n = y.shape[y.rank - 1], k = a.shape[a.rank - 1];
    const std::int64_t blocks = (m + sizes.block_rows - 1) / sizes.block_rows, chunk = sizes.units * kPanel, chunks = (n + chunk - 1) / chunk;
    const int width = bytes_of(a.dtype);
    const auto memory = layout_at<Memory>(worker.local, epilogue_, sizes);
    MatmulJob job{};
    job.k = k;
    job.parts = 1;
    job.epilogue = epilogue_.job(nullptr, 0, memory.epilogue);
    job.w = memory.panels;
    job.scratch = memory.product;
    job.x_stride = a.stride[a.rank - 2] * width;
    if (k > 0 && !(a_side.one_run(k) && a_side.runs.step == width)) job.runs = a_side.runs;
    const Share share = share_of(y.elements() / (m * n) * chunks * blocks, worker.index, worker.count);
    std::int64_t packed = -1;
    for (std::int64_t task = share.first; task < share.last; ++task) {
      const std::int64_t block = task % blocks, column = task / blocks % chunks * chunk, batch = task / blocks / chunks;
      const std::int64_t columns = std::min(chunk, n - column);
      if (packed != task / blocks) {
        pack(b_side, batch_offset(b, y, batch) + column * b.stride[b.rank - 1], k, columns, memory.panels);
        packed = task / blocks;
      }
      const std::int64_t first = m * block / blocks, rows = m * (block + 1) / blocks - first;
      const std::byte* x = a.at(batch_offset(a, y, batch) + first * a.stride[a.rank - 2]);
      // Chunks of columns one after the other read the same rows, and so do matrices of a batch over which a repeats.
      job.packed = x == job.x && rows == job.rows && keeps_rows(product_.blocking, rows, k) && rows <= pass_rows(product_.blocking, k);
      job.x = x;
      job.rows = rows;
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
    std::int64_t block_rows;  // at most
    std::int64_t panels;      // bytes
  };
  struct Memory {
    std::byte *epilogue, *panels, *product;

    /// The product's own `bytes` lie last: only plan() has to say how many.
    Memory(Frame& frame, const Epilogue& epilogue_of, const Sizes& sizes, std::size_t bytes = 0)
        : epilogue(epilogue_of.take(frame)), panels(frame.take<std::byte>(sizes.panels)),
          product(frame.take<std::byte>(static_cast<std::int64_t>(bytes))) {}
  };
  Sizes sizes_of(const TensorView& a, const TensorView& y) const {
    const std::int64_t k = a.shape[a.rank - 1], panel = round_up(k, 2) * kPanel * bytes_of(a.dtype);
    constexpr std::int64_t kBudget = 512 << 10;  // stays in L2
    Sizes sizes{};
    const std::int64_t all = (y.shape[y.rank - 1] + kPanel - 1) / kPanel;
    sizes.units = std::max<std::int64_t>(1, std::min({all, std::int64_t{product_.blocking.group}, kBudget / std::max<std::int64_t>(panel, 1)}));
    sizes.panels = sizes.units * panel;
    sizes.block_rows = std::max<std::int64_t>(1, std::min(y.shape[y.rank - 2], rows_at_once(product_.blocking, sizes.panels)));
    return sizes;
  }
  /// Whether the level multiplies them matrix by matrix.
  bool by_small(const Side& a, const Side& b, const TensorView& y) const {
    const std::int64_t m = y.shape[y.rank - 2], n = y.shape[y.rank - 1], k = a.view.shape[a.view.rank - 1];
    return product_.small != nullptr && m <= kSmallRows && k >= 1 && k <= kSmallDepth && n % kPanel == 0 && a.one_run(k) &&
           b.one_run(k) && a.view.stride[a.view.rank - 1] == 1 && b.view.stride[b.view.rank - 1] == 1;
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

  void pack(const Side& b, std::int64_t offset, std::int64_t k, std::int64_t columns, std::byte* panels) const {
    const std::int64_t step = b.view.stride[b.view.rank - 1], width = bytes_of(b.view.dtype);
    const std::int64_t panel = (b.view.dtype == DType::bfloat16 ? round_up(k, 2) : k) * kPanel * width;
    for (std::int64_t column = 0; column < columns; column += kPanel, panels += panel)
      product_.pack({b.view.at(offset + column * step), b.runs, k, std::min<std::int64_t>(kPanel, columns - column), step * width, panels});
  }

  Epilogue epilogue_;
  const PackedProduct& product_;
  bool a_split_, b_split_;
};

std::unique_ptr<Kernel> make_matmul(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("matmul", in, 2, 2, out, 1);
  Params params("matmul", json);
  const bool a_split = params.flag("a_split", false), b_split = params.flag("b_split", false);
  params.done();
  require(in[0].rank >= (a_split ? 3 : 2) && in[1].rank >= (b_split ? 3 : 2), "matmul",
          "a, b and y must be [..., m, k], [..., k, n] and [..., m, n]");
  require_dtype("matmul", "a", in[0].dtype, kComputeFloats);
  require_dtype("matmul", "b", in[1].dtype, {in[0].dtype});
  require_dtype("matmul", "y", out[0].dtype, {DType::float32, in[0].dtype});
  return std::make_unique<Matmul>(in[0].dtype, level, a_split, b_split);
}

constexpr KernelInfo kKernels[] = {
    {"matmul_packed", 1, "x, weight, scales?, *extras -> y",
     "n: integer, k: integer, parts: integer, group?: integer, algorithm?: direct | strassen, order?: rows | weights | packed, "
     "split?: rows | outputs, epilogue: expression",
     make_matmul_packed},
    {"matmul", 1, "a, b -> y", "a_split?: flag, b_split?: flag", make_matmul},
};

}  // namespace

std::span<const KernelInfo> matmul_kernels() { return kKernels; }

}  // namespace ingot
