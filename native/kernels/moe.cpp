// moe: every row goes through the top_k gated MLPs that its router scores highest; their results are summed by weight.
//
// Rows are grouped by expert, so that an expert's weights are read once for all rows that chose it, and experts that
// nobody chose are not read at all. The products are those of matmul_packed, in float32 sums whose order does not
// depend on the number of rows. A row's experts are summed in the order of its own scores, so its bits do not depend on
// its company.
//
// Limits: x, weights and y are all float32, bfloat16 or float16; router is float32; rows are taken kPass at a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "check.h"
#include "expression.h"
#include "packed_weight.h"
#include "product.h"

namespace ingot {

namespace {

constexpr std::int64_t kPass = 1024;    // rows whose intermediate results are held at a time
constexpr std::int64_t kMaxTopK = 32;   // the sum of a row's experts is one expression of two operands each
constexpr std::int64_t kLeastRows = 16; // fewer rows of an expert cost as much: reading its weights dominates
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

class Moe final : public Kernel {
 public:
  struct Sizes {
    std::int64_t experts, hidden, inner, top_k;
    bool normalize;
  };

  Moe(const Sizes& sizes, Epilogue gated, DType dtype, Level level)
      : sizes_(sizes), gated_(std::move(gated)), plain_(Expression::identity("moe"), level),
        sum_(Expression("moe", weighted_sum(sizes.top_k), std::vector<DType>(2 * sizes.top_k, kFloat), std::span(&dtype, 1)), level),
        product_(product_for(level, dtype)) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &x = in[0], &router = in[1], &y = out[0];
    require(x.rank == 2 && x.shape[1] == sizes_.hidden, "moe", "x must be [rows, hidden]");
    require_shape("moe", "the router's scores", router, {x.shape[0], sizes_.experts});
    require_same_shape("moe", "y", y, x);
    PackedWeight(x.dtype, sizes_.hidden).check("moe", "gates and ups", &in[2], 2 * sizes_.experts * units_of(sizes_.inner));
    PackedWeight(x.dtype, sizes_.inner).check("moe", "downs", &in[3], sizes_.experts * units_of(sizes_.hidden));
    for (const TensorView* view : {&x, &router, &y}) require_dense_rows("moe", "x, router or y", *view);
    const std::int64_t rows = std::min(x.shape[0], kPass);
    return {bytes_of_layout<Pass>(sizes_, rows, x.dtype), local_bytes(rows, x.dtype)};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0];
    for (std::int64_t first = 0; first < x.shape[0]; first += kPass) {
      auto pass = layout_at<Pass>(worker.shared, sizes_, std::min(x.shape[0], kPass), x.dtype);
      pass.first = first;
      pass.rows = std::min(x.shape[0] - first, kPass);
      route(in[1], pass, worker);
      worker.barrier();
      if (worker.index == 0) group(pass);
      worker.barrier();
      gather(x, pass, worker);
      worker.barrier();
      multiply(in[2], 2, sizes_.hidden, sizes_.inner, gated_, pass.gathered, pass.hidden, x.dtype, pass, worker);
      worker.barrier();
      multiply(in[3], 1, sizes_.inner, sizes_.hidden, plain_, pass.hidden, pass.results, kFloat, pass, worker);
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

    Pass(Frame& frame, const Sizes& sizes, std::int64_t most, DType dtype) {
      const std::int64_t entries = most * sizes.top_k, width = bytes_of(dtype);
      expert = frame.take<std::int32_t>(entries);
      weight = frame.take<float>(entries);
      place = frame.take<std::int32_t>(entries);
      begin = frame.take<std::int64_t>(sizes.experts + 1);
      gathered = frame.take<std::byte>(entries * sizes.hidden * width);
      hidden = frame.take<std::byte>(entries * sizes.inner * width);
      results = frame.take<std::byte>(entries * sizes.hidden * 4);
    }
  };
  /// A worker's memory while rows are routed: the experts' probabilities, and which are taken.
  struct Routing {
    float* p;
    std::byte* taken;

    Routing(Frame& frame, std::int64_t experts) : p(frame.take<float>(experts)), taken(frame.take<std::byte>(experts)) {}
  };

  static std::int64_t units_of(std::int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

  /// Of a worker, for whichever step takes most.
  std::size_t local_bytes(std::int64_t rows, DType dtype) const {
    Frame sum = Frame::counting();
    sum_.take(sum);
    std::size_t gates = 0, downs = 0;
    for (const std::int64_t each : {rows, std::min(rows, std::int64_t{2}), std::int64_t{1}}) {  // of one expert
      gates = std::max(gates, matmul_scratch(product_.blocking, each, units_of(sizes_.inner), sizes_.hidden, 2));
      downs = std::max(downs, matmul_scratch(product_.blocking, each, units_of(sizes_.hidden), sizes_.inner, 1));
    }
    return std::max({bytes_of_layout<Routing>(sizes_.experts), sum.bytes(),
                     bytes_of_layout<ProductMemory>(PackedWeight(dtype, sizes_.hidden), gated_, gates),
                     bytes_of_layout<ProductMemory>(PackedWeight(dtype, sizes_.inner), plain_, downs)});
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
      for (std::int64_t j = 0; j < sizes_.top_k; ++j)
        std::memcpy(pass.gathered + pass.place[row * sizes_.top_k + j] * bytes, from, static_cast<std::size_t>(bytes));
    }
  }

  /// Where the share of a worker begins in the sequence of all experts' units, weighed by their rows.
  struct Cut {
    std::int64_t expert, unit;
  };
  Cut cut(const Pass& pass, std::int64_t units, int index, int workers) const {
    const auto weight = [&](std::int64_t e) {
      const std::int64_t rows = pass.begin[e + 1] - pass.begin[e];
      return rows == 0 ? 0 : std::max(rows, kLeastRows);
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
  void multiply(const TensorView& w, int parts, std::int64_t k, std::int64_t outputs, const Epilogue& epilogue,
                const std::byte* from, std::byte* to, DType to_dtype, const Pass& pass, const Worker& worker) const {
    const std::int64_t units = units_of(outputs), width = bytes_of(w.dtype), to_width = bytes_of(to_dtype);
    const PackedWeight weight(w.dtype, k);
    const Cut begin = cut(pass, units, worker.index, worker.count), end = cut(pass, units, worker.index + 1, worker.count);
    const auto memory = layout_at<ProductMemory>(worker.local, weight, epilogue);
    MatmulJob job{};
    job.x_stride = k * width;
    job.k = k;
    job.parts = parts;
    job.epilogue = epilogue.job(nullptr, 0, memory.epilogue);
    job.scratch = memory.product;
    for (std::int64_t e = begin.expert; e <= end.expert && e < sizes_.experts; ++e) {
      const std::int64_t first = e == begin.expert ? begin.unit : 0, last = e == end.expert ? end.unit : units;
      job.rows = pass.begin[e + 1] - pass.begin[e];
      if (job.rows == 0 || first >= last) continue;
      job.x = from + pass.begin[e] * k * width;
      weight.place(job, &w, (e * units + first) * parts, memory.unpacked);
      job.units = last - first;
      job.columns = outputs - first * kPanel;
      job.epilogue.out = {to + (pass.begin[e] * outputs + first * kPanel) * to_width, to_dtype, outputs, 1};
      product_.run(job);
    }
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
  Epilogue gated_, plain_, sum_;
  const PackedProduct& product_;
};

std::unique_ptr<Kernel> make_moe(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("moe", in, 4, 4, out, 1);
  constexpr std::int64_t kLargest = 1 << 24;
  Params params("moe", json);
  Moe::Sizes sizes{};
  sizes.experts = params.integer("experts", 1, 1 << 16);
  sizes.hidden = params.integer("hidden", 1, kLargest);
  sizes.inner = params.integer("inner", 1, kLargest);
  sizes.top_k = params.integer("top_k", 1, std::min(sizes.experts, kMaxTopK));
  sizes.normalize = params.flag("normalize");
  const DType dtype = in[0].dtype;
  Epilogue gated(Expression(params, "expression", 2, {}, {&in[0], 1}), level);
  params.done();
  require_dtype("moe", "x", dtype, kComputeFloats);
  require_dtype("moe", "the router's scores", in[1].dtype, {kFloat});
  for (const OperandType& other : {in[2], in[3], out[0]}) require_dtype("moe", "a weight or y", other.dtype, {dtype});
  return std::make_unique<Moe>(sizes, std::move(gated), dtype, level);
}

constexpr KernelInfo kKernels[] = {
    {"moe", 1, "x, router, gate_up, down -> y",
     "experts: integer, hidden: integer, inner: integer, top_k: integer, normalize: flag, expression: expression",
     make_moe},
};

}  // namespace

std::span<const KernelInfo> moe_kernels() { return kKernels; }

}  // namespace ingot
