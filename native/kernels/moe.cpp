// moe: every row goes through the top_k gated MLPs that its router scores highest; their results are summed by weight.
//
// Rows are grouped by expert, so that an expert's weights are read once for all rows that chose it, and experts that
// nobody chose are not read at all. The products are those of matmul_packed, in float32 sums whose order does not
// depend on the number of rows. A row's experts are summed in the order of its own scores, so its bits do not depend on
// its company.
//
// Weights of all gates and ups, and those of all downs, are of x's type or narrower, each as in matmul_packed: of 8 bits with a float32
// scale for each output, [experts, parts, outputs], of 4 bits with those of groups in panels. Integers may have zero points z of outputs or
// groups with scales s, as panels of float32 -z * s, [experts, parts, outputs]: what the sums of a row over each group give with them, by a
// product of their own, is added to its results.
//
// Limits: x and y are both float32, bfloat16 or float16; router is float32; rows are taken kPass at a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "check.h"
#include "expression.h"
#include "level/reduce.h"
#include "packed_weight.h"
#include "product.h"

namespace ingot {

namespace {

constexpr std::int64_t kPass = 1024;    // rows whose intermediate results are held at a time
constexpr std::int64_t kMaxTopK = 32;   // the sum of a row's experts is one expression of two operands each
constexpr std::int64_t kLeastRows = 16; // fewer rows of an expert cost as much: reading its weights dominates
constexpr std::int64_t kLeastNarrow = 6; // the same of weights that are narrower than x
constexpr std::int64_t kAddends = 128 << 10;  // of zero points, that a worker has in hand: they stay in L2
const DType kFloat = DType::float32;

/// The sum over j < count of operand 2j times operand 2j + 1.
nlohmann::json weighted_sum(std::int64_t count) {
  nlohmann::json steps = nlohmann::json::array();
  std::int64_t sum = -1;
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int64_t at = static_cast<std::int64_t>(steps.size());
    steps.push_back({"input", "float32", 2 * j});
    steps.push_back({"input", "float32", 2 * j + 1});
    steps.push_back({"mul", "float32", at, at + 1});
    if (j > 0) steps.push_back({"add", "float32", sum, at + 2});
    sum = static_cast<std::int64_t>(steps.size()) - 1;
  }
  return {{"steps", steps}, {"outputs", {sum}}};
}

/// A float32 result, times a scale and plus what zero points add.
nlohmann::json finished_result(bool scaled, bool zeros) {
  nlohmann::json steps = {{"input", "float32", 0}};
  std::int64_t last = 0, operand = 0;
  for (const char* step : {scaled ? "mul" : nullptr, zeros ? "add" : nullptr}) {
    if (step == nullptr) continue;
    steps.push_back({"input", "float32", ++operand});
    steps.push_back({step, "float32", last, last + 1});
    last += 2;
  }
  return {{"steps", steps}, {"outputs", {last}}};
}

/// The same weights of all experts: gates and ups (2 parts), or downs.
struct Weights {
  int parts;
  std::int64_t outputs, k;
  std::size_t first;  // which operand
  bool scaled;        // the next one are scales of outputs, which the epilogue reads, one of each part
  std::int64_t group; // of k that a zero point is of; 0: there are none, else the last operand has them
  PackedWeight packed, zeros;
  Epilogue epilogue;

  std::size_t operands() const noexcept { return packed.operands() + (scaled ? 1 : 0) + (group != 0 ? 1 : 0); }
  const TensorView& zeros_of(Views in) const { return in[first + operands() - 1]; }
  std::int64_t units() const noexcept { return (outputs + kPanel - 1) / kPanel; }
  std::int64_t groups() const noexcept { return group == 0 ? 0 : (k + group - 1) / group; }
  void check(Views in, const char* what, std::int64_t experts) const {
    packed.check("moe", what, &in[first], parts * experts * units());
    if (group != 0) zeros.check("moe", "what zero points add", &zeros_of(in), parts * experts * units());
    if (!scaled) return;
    require_shape("moe", "the scales", in[first + 1], {experts * parts * outputs});
    require_contiguous("moe", "the scales", in[first + 1]);
  }
};

class Moe final : public Kernel {
 public:
  struct Sizes {
    std::int64_t experts, hidden, inner, top_k;
    bool normalize;
  };

  Moe(const Sizes& sizes, Weights gates, Weights downs, DType dtype, Level level)
      : sizes_(sizes), gates_(std::move(gates)), downs_(std::move(downs)),
        sum_(Expression("moe", weighted_sum(sizes.top_k), std::vector<DType>(2 * sizes.top_k, kFloat), std::span(&dtype, 1)), level),
        as_they_are_(Expression::identity("moe"), level), product_(product_for(level, dtype)), float_product_(product_for(level, kFloat)),
        reduce_(half_for(reduce_halves, level)) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &x = in[0], &router = in[1], &y = out[0];
    require(x.rank == 2 && x.shape[1] == sizes_.hidden, "moe", "x must be [rows, hidden]");
    require_shape("moe", "the router's scores", router, {x.shape[0], sizes_.experts});
    require_same_shape("moe", "y", y, x);
    gates_.check(in, "gates and ups", sizes_.experts);
    downs_.check(in, "downs", sizes_.experts);
    for (const TensorView* view : {&x, &router, &y}) require_dense_rows("moe", "x, router or y", *view);
    const std::int64_t rows = std::min(x.shape[0], kPass);
    return {bytes_of_layout<Pass>(sizes_, groups(), rows, x.dtype), local_bytes(rows)};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0];
    for (std::int64_t first = 0; first < x.shape[0]; first += kPass) {
      auto pass = layout_at<Pass>(worker.shared, sizes_, groups(), std::min(x.shape[0], kPass), x.dtype);
      pass.first = first;
      pass.rows = std::min(x.shape[0] - first, kPass);
      route(in[1], pass, worker);
      worker.barrier();
      if (worker.index == 0) group(pass);
      worker.barrier();
      gather(x, pass, worker);
      worker.barrier();
      multiply(gates_, in, pass.gathered, pass.hidden, x.dtype, pass, worker);
      worker.barrier();
      if (downs_.group != 0) {
        const Share share = share_of(pass.rows * sizes_.top_k, worker.index, worker.count);
        for (std::int64_t i = share.first; i < share.last; ++i) sum_groups(downs_, pass.hidden + i * downs_.k * bytes_of(x.dtype), x.dtype, i, pass);
        worker.barrier();
      }
      multiply(downs_, in, pass.hidden, pass.results, kFloat, pass, worker);
      worker.barrier();
      combine(y, pass, worker);
      worker.barrier();  // the next pass writes where this one still reads
    }
  }

 private:
  /// What the workers share of one pass. A row's j-th choice is entry row * top_k + j.
  struct Pass {
    std::int64_t first = 0, rows = 0;
    std::int32_t* expert;    // of each entry
    float* weight;           // likewise
    std::int32_t* place;     // of each entry among the entries sorted by expert
    std::int64_t* begin;     // of each expert among those; experts + 1
    std::byte *gathered, *hidden, *results;  // rows in that order
    float* sums;  // of their groups, if zero points add something: of what is gathered, then of what is hidden

    Pass(Frame& frame, const Sizes& sizes, std::int64_t groups, std::int64_t most, DType dtype) {
      const std::int64_t entries = most * sizes.top_k, width = bytes_of(dtype);
      expert = frame.take<std::int32_t>(entries);
      weight = frame.take<float>(entries);
      place = frame.take<std::int32_t>(entries);
      begin = frame.take<std::int64_t>(sizes.experts + 1);
      gathered = frame.take<std::byte>(entries * sizes.hidden * width);
      hidden = frame.take<std::byte>(entries * sizes.inner * width);
      results = frame.take<std::byte>(entries * sizes.hidden * 4);
      sums = frame.take<float>(entries * groups);
    }
  };
  /// A worker's memory while rows are multiplied.
  struct Products {
    float* addends;    // what zero points add
    std::byte* plain;  // of the epilogue of its product
    ProductMemory memory;

    Products(Frame& frame, const Weights& w, const Epilogue& as_they_are, std::size_t bytes = 0)
        : addends(frame.take<float>(w.group == 0 ? 0 : kAddends)), plain(as_they_are.take(frame)), memory(frame, w.packed, w.epilogue, bytes) {}
  };
  /// A worker's memory while rows are routed: the experts' probabilities, and which are taken.
  struct Routing {
    float* p;
    std::byte* taken;

    Routing(Frame& frame, std::int64_t experts) : p(frame.take<float>(experts)), taken(frame.take<std::byte>(experts)) {}
  };

  /// Most groups of a row.
  std::int64_t groups() const noexcept { return std::max(gates_.groups(), downs_.groups()); }

  /// Of a worker, for whichever step takes most.
  std::size_t local_bytes(std::int64_t rows) const {
    Frame sum = Frame::counting();
    sum_.take(sum);
    std::size_t most = std::max(bytes_of_layout<Routing>(sizes_.experts), sum.bytes());
    for (const Weights* w : {&gates_, &downs_}) {
      std::size_t product = 0;
      for (const std::int64_t each : {rows, std::min(rows, std::int64_t{2}), std::int64_t{1}}) {  // of one expert
        product = std::max(product, matmul_scratch(product_.blocking, each, w->units(), w->k, w->parts));
        if (w->group != 0) product = std::max(product, matmul_scratch(float_product_.blocking, each, w->units(), w->groups(), 1));
      }
      most = std::max(most, bytes_of_layout<Products>(*w, as_they_are_, product));
    }
    return most;
  }

  /// Softmax of each row's scores, and its top_k experts: best first, of equals the lower number.
  void route(const TensorView& router, const Pass& pass, const Worker& worker) const {
    const auto memory = layout_at<Routing>(worker.local, sizes_.experts);
    float* p = memory.p;
    std::byte* taken = memory.taken;
    const Share share = share_of(pass.rows, worker.index, worker.count);
    for (std::int64_t row = share.first; row < share.last; ++row) {
      const float* scores = router.as<const float>() + (pass.first + row) * router.stride[0];
      float largest = scores[0], total = 0;
      for (std::int64_t e = 1; e < sizes_.experts; ++e) largest = std::max(largest, scores[e]);
      for (std::int64_t e = 0; e < sizes_.experts; ++e) total += p[e] = std::exp(scores[e] - largest);
      for (std::int64_t e = 0; e < sizes_.experts; ++e) p[e] /= total;
      std::memset(taken, 0, static_cast<std::size_t>(sizes_.experts));
      std::int32_t* expert = pass.expert + row * sizes_.top_k;
      float* weight = pass.weight + row * sizes_.top_k;
      float sum = 0;
      for (std::int64_t j = 0; j < sizes_.top_k; ++j) {
        std::int64_t best = -1;
        for (std::int64_t e = 0; e < sizes_.experts; ++e)
          if (taken[e] == std::byte{0} && (best < 0 || p[e] > p[best])) best = e;
        taken[best] = std::byte{1};
        expert[j] = static_cast<std::int32_t>(best);
        sum += weight[j] = p[best];
      }
      for (std::int64_t j = 0; sizes_.normalize && j < sizes_.top_k; ++j) weight[j] /= sum;
    }
  }

  /// Sorts the entries by expert.
  void group(const Pass& pass) const {
    const std::int64_t entries = pass.rows * sizes_.top_k;
    std::fill(pass.begin, pass.begin + sizes_.experts + 1, 0);
    for (std::int64_t i = 0; i < entries; ++i) ++pass.begin[pass.expert[i] + 1];
    for (std::int64_t e = 0; e < sizes_.experts; ++e) pass.begin[e + 1] += pass.begin[e];
    for (std::int64_t i = 0; i < entries; ++i) pass.place[i] = static_cast<std::int32_t>(pass.begin[pass.expert[i]]++);
    for (std::int64_t e = sizes_.experts; e > 0; --e) pass.begin[e] = pass.begin[e - 1];  // counted up to the next one's
    pass.begin[0] = 0;
  }

  void gather(const TensorView& x, const Pass& pass, const Worker& worker) const {
    const std::int64_t width = bytes_of(x.dtype), bytes = sizes_.hidden * width;
    const Share share = share_of(pass.rows, worker.index, worker.count);
    for (std::int64_t row = share.first; row < share.last; ++row) {
      const std::byte* from = x.at((pass.first + row) * x.stride[0]);
      const std::int32_t* place = pass.place + row * sizes_.top_k;
      for (std::int64_t j = 0; j < sizes_.top_k; ++j) std::memcpy(pass.gathered + place[j] * bytes, from, static_cast<std::size_t>(bytes));
      if (gates_.group == 0) continue;
      sum_groups(gates_, from, x.dtype, place[0], pass);
      for (std::int64_t j = 1; j < sizes_.top_k; ++j)
        std::copy_n(pass.sums + place[0] * gates_.groups(), gates_.groups(), pass.sums + place[j] * gates_.groups());
    }
  }

  /// The sums of a row over each group that has a zero point, in the order in which reduce sums them.
  void sum_groups(const Weights& w, const std::byte* row, DType dtype, std::int64_t entry, const Pass& pass) const {
    for (std::int64_t g = 0; g < w.groups(); ++g)
      pass.sums[entry * w.groups() + g] = reduce_.run(row + g * w.group * bytes_of(dtype), dtype, std::min(w.group, w.k - g * w.group), Reduction::sum);
  }

  /// Where the share of a worker begins in the sequence of all experts' units, weighed by their rows.
  struct Cut {
    std::int64_t expert, unit;
  };
  Cut cut(const Weights& w, const Pass& pass, int index, int workers) const {
    const std::int64_t units = w.units(), least = w.packed.packing() == Packing::same ? kLeastRows : kLeastNarrow;
    const auto weight = [&](std::int64_t e) {
      const std::int64_t rows = pass.begin[e + 1] - pass.begin[e];
      return rows == 0 ? 0 : std::max(rows, least);
    };
    std::int64_t total = 0;
    for (std::int64_t e = 0; e < sizes_.experts; ++e) total += weight(e) * units;
    std::int64_t left = index == workers ? total : total / workers * index + total % workers * index / workers;
    for (std::int64_t e = 0; e < sizes_.experts; ++e) {
      const std::int64_t mine = weight(e) * units;
      if (left < mine) return {e, left / weight(e)};
      left -= mine;
    }
    return {sizes_.experts, 0};
  }

  /// This worker's share of the products of every expert's rows with its weight [outputs, k].
  void multiply(const Weights& w, Views in, const std::byte* from, std::byte* to, DType to_dtype, const Pass& pass, const Worker& worker) const {
    const std::int64_t units = w.units();
    const Cut begin = cut(w, pass, worker.index, worker.count), end = cut(w, pass, worker.index + 1, worker.count);
    const auto products = layout_at<Products>(worker.local, w, as_they_are_);
    Block block{};
    for (block.expert = begin.expert; block.expert <= end.expert && block.expert < sizes_.experts; ++block.expert) {
      const std::int64_t first = block.expert == begin.expert ? begin.unit : 0, last = block.expert == end.expert ? end.unit : units;
      const std::int64_t entry = pass.begin[block.expert], rows = pass.begin[block.expert + 1] - entry;
      if (rows == 0 || first >= last) continue;
      // With zero points so few rows and units at a time that what these add finds room.
      const std::int64_t fitting = kAddends / (w.parts * kPanel);
      const std::int64_t most = w.group == 0 ? rows : std::min({rows, fitting, std::int64_t{pass_rows(product_.blocking, w.k)}});
      const std::int64_t wide = w.group == 0 ? units : fitting / most;
      for (std::int64_t row = 0; row < rows; row += most)
        for (std::int64_t unit = first; unit < last; unit += wide) {
          block.entry = entry + row;
          block.rows = std::min(most, rows - row);
          block.unit = unit;
          block.units = std::min(wide, last - unit);
          multiply_block(w, in, from, to, to_dtype, pass, products, block);
        }
    }
  }

  /// Rows of one expert from `entry` on, and units of its weight.
  struct Block {
    std::int64_t expert, entry, rows, unit, units;
  };
  void multiply_block(const Weights& w, Views in, const std::byte* from, std::byte* to, DType to_dtype, const Pass& pass, const Products& products,
                      const Block& block) const {
    const std::int64_t width = bytes_of(in[0].dtype), column = block.unit * kPanel, columns = std::min(block.units * kPanel, w.outputs - column);
    TileOperand extras[4];
    std::size_t count = 0;
    for (int part = 0; w.scaled && part < w.parts; ++part)
      extras[count++] = {in[w.first + 1].at((block.expert * w.parts + part) * w.outputs + column), kFloat, 0, 1};
    for (int part = 0; w.group != 0 && part < w.parts; ++part)
      extras[count++] = add_zeros(w, in, part, pass, products, block);
    MatmulJob job{};
    job.x = from + block.entry * w.k * width;
    job.x_stride = w.k * width;
    job.rows = block.rows;
    job.k = w.k;
    job.parts = w.parts;
    job.units = block.units;
    job.columns = columns;
    w.packed.place(job, &in[w.first], (block.expert * w.units() + block.unit) * w.parts, products.memory.unpacked);
    job.epilogue = w.epilogue.job(extras, count, products.memory.epilogue);
    job.epilogue.out = {to + (block.entry * w.outputs + column) * bytes_of(to_dtype), to_dtype, w.outputs, 1};
    job.scratch = products.memory.product;
    product_.run(job);
  }

  /// What the zero points of a part add to a block's results: the sums of groups times their panels.
  TileOperand add_zeros(const Weights& w, Views in, int part, const Pass& pass, const Products& products, const Block& block) const {
    const std::int64_t columns = block.units * kPanel;
    const TileOperand found = {reinterpret_cast<std::byte*>(products.addends + part * block.rows * columns), kFloat, columns, 1};
    MatmulJob job{};
    job.x = reinterpret_cast<const std::byte*>(pass.sums + block.entry * w.groups());
    job.x_stride = w.groups() * 4;
    job.rows = block.rows;
    job.k = w.groups();
    job.parts = 1;
    job.units = block.units;
    job.columns = std::min(columns, w.outputs - block.unit * kPanel);
    w.zeros.place(job, &w.zeros_of(in), (block.expert * w.parts + part) * w.units() + block.unit, nullptr);
    job.epilogue = as_they_are_.job(nullptr, 0, products.plain);
    job.epilogue.out = found;
    job.scratch = products.memory.product;
    float_product_.run(job);
    return found;
  }

  /// y = the sum of each row's experts by their weights, rounded once.
  void combine(const TensorView& y, const Pass& pass, const Worker& worker) const {
    TileOperand operands[2 * kMaxTopK];
    Frame frame(worker.local);
    const EpilogueJob sum = sum_.job(nullptr, 0, sum_.take(frame));
    const Share share = share_of(pass.rows, worker.index, worker.count);
    for (std::int64_t row = share.first; row < share.last; ++row) {
      const std::int64_t entry = row * sizes_.top_k;
      for (std::int64_t column = 0; column < sizes_.hidden; column += kTile) {
        for (std::int64_t j = 0; j < sizes_.top_k; ++j) {
          std::byte* result = pass.results + (pass.place[entry + j] * sizes_.hidden + column) * 4;
          operands[2 * j] = {result, kFloat, 0, 1};
          operands[2 * j + 1] = {reinterpret_cast<std::byte*>(pass.weight + entry + j), kFloat, 0, 0};
        }
        const TileOperand out = {y.at((pass.first + row) * y.stride[0] + column), y.dtype, 0, 1};
        sum.run_tile(sum.code, operands, &out, 1, static_cast<int>(std::min<std::int64_t>(kTile, sizes_.hidden - column)), sum.memory);
      }
    }
  }

  Sizes sizes_;
  Weights gates_, downs_;
  Epilogue sum_, as_they_are_;
  const PackedProduct &product_, &float_product_;
  const ReduceTable& reduce_;
};

/// What operand `first` is; its groups are read, and with gates and ups the expression on both.
Weights read_weights(Params& params, const char* what, Types in, std::size_t first, int parts, std::int64_t outputs, std::int64_t k, Level level) {
  const DType x = in[0].dtype, stored = in[first].dtype;
  const std::string name = parts == 2 ? "gate_up" : "down", of_groups = name + "_group", of_zeros = name + "_zeros";
  const std::int64_t group = params.has(of_groups.c_str()) ? params.integer(of_groups.c_str(), 8, std::int64_t{1} << 31) : 0;
  const bool zeros = params.flag(of_zeros.c_str(), false);
  require_weight("moe", what, stored, x, group);
  require(!zeros || stored == DType::int8 || stored == DType::uint8, "moe", "only integers have zero points");
  const bool scaled = stored != x && group == 0;
  require(in.size() > first + (stored != x ? 1 : 0) + (zeros ? 1 : 0), "moe", "weights that are narrower than x have scales, and zero points lie behind these");
  const DType scales = stored == x ? kFloat : in[first + 1].dtype;
  if (scaled) require_dtype("moe", "the scales", scales, {kFloat});
  else require_dtype("moe", "the scales", scales, {kFloat, DType::float16});
  if (zeros) require_dtype("moe", "what zero points add", in[first + 2].dtype, {kFloat});
  std::vector<OperandType> read;  // by the epilogue
  for (int part = 0; scaled && part < parts; ++part) read.push_back(in[first + 1]);
  for (int part = 0; zeros && part < parts; ++part) read.push_back(in[first + 2]);
  Expression expression = parts == 2 ? Expression(params, "expression", 2, read, {&in[0], 1})
                                     : Expression("moe", finished_result(scaled, zeros), std::vector<DType>(1 + read.size(), kFloat), std::span(&kFloat, 1));
  const std::int64_t of_zero = zeros ? (group != 0 ? group : k) : 0;
  const PackedWeight panels_of_zeros(kFloat, zeros ? (k + of_zero - 1) / of_zero : 0);
  return {parts, outputs, k, first, scaled, of_zero, PackedWeight(stored, k, group, scales), panels_of_zeros, Epilogue(std::move(expression), level)};
}

std::unique_ptr<Kernel> make_moe(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("moe", in, 4, 8, out, 1);
  constexpr std::int64_t kLargest = 1 << 24;
  Params params("moe", json);
  Moe::Sizes sizes{};
  sizes.experts = params.integer("experts", 1, 1 << 16);
  sizes.hidden = params.integer("hidden", 1, kLargest);
  sizes.inner = params.integer("inner", 1, kLargest);
  sizes.top_k = params.integer("top_k", 1, std::min(sizes.experts, kMaxTopK));
  sizes.normalize = params.flag("normalize");
  const DType dtype = in[0].dtype;
  require_dtype("moe", "x", dtype, kComputeFloats);
  require_dtype("moe", "the router's scores", in[1].dtype, {kFloat});
  require_dtype("moe", "y", out[0].dtype, {dtype});
  Weights gates = read_weights(params, "a gate or up", in, 2, 2, sizes.inner, sizes.hidden, level);
  const std::size_t second = 2 + gates.operands();
  require_operands("moe", in, second + 1, 8, out, 1);
  Weights downs = read_weights(params, "a down", in, second, 1, sizes.hidden, sizes.inner, level);
  params.done();
  require_operands("moe", in, second + downs.operands(), second + downs.operands(), out, 1);
  return std::make_unique<Moe>(sizes, std::move(gates), std::move(downs), dtype, level);
}

constexpr KernelInfo kKernels[] = {
    {"moe", 1, "x, router, gate_up, gate_up_scales?, gate_up_zeros?, down, down_scales?, down_zeros? -> y",
     "experts: integer, hidden: integer, inner: integer, top_k: integer, normalize: flag, gate_up_group?: integer, "
     "down_group?: integer, gate_up_zeros?: flag, down_zeros?: flag, expression: expression",
     make_moe},
};

}  // namespace

std::span<const KernelInfo> moe_kernels() { return kKernels; }

}  // namespace ingot
