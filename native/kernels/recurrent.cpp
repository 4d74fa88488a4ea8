// lstm, gru, rnn: one layer in one direction, step after step.
//
// gates [T, N, G*H] is what a step's sums have beside the state: the product with the input, and its bias. weight [G*H, K]
// multiplies the state before the step, and bias [G*H] is added to that product. h0 [N, K] is the first state; K is H, or with a
// projection [K, H], which an LSTM's output goes through, its rows. lengths [N]: how many steps a row has; what lies behind them
// is zero in y [T, N, K] and does not change the last state, h [N, K] (c [N, H] of an LSTM). `reverse` begins at a row's last step.
//
// A GRU with `reset_after` multiplies the sums of its new gate by the reset gate; without it, the state before the product, which
// then has two halves with all workers' states between them.
//
// The state stays in float32 from the first step to the last; results are rounded. `packed`: weight and projection lie in panels,
// every gate beginning one; else they are packed here, once for all steps. `scales`: the weight is int8 in panels, and scales
// [G*H] multiply the sums of products with it. These sums are made 2^24 times as large, so that they overflow where states reach
// 2^97, as only those of an rnn with relu, or first states, can.
//
// Work is divided by rows, which need not wait for each other, where there are enough of them and each worker's cache takes the
// weight; else by units, with a meeting of the workers after each step. A sum is one chain along the state either way, so a row's
// result depends neither on that nor on the other rows.
#include <algorithm>

#include "check.h"
#include "level/frame.h"
#include "level/matmul.h"
#include "level/recurrent.h"
#include "packed_weight.h"
#include "strided.h"

namespace ingot {

namespace {

constexpr std::int64_t kVector = 16;  // units of a vector

std::int64_t panels_of(std::int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

/// Which of the operands that may be absent there are.
struct Form {
  const char* name;
  Cell cell;
  int gates;
  bool reverse = false, packed = false, scales = false, lengths = false, projection = false, reset_after = true;

  bool has_memory() const { return cell == Cell::lstm || !reset_after; }
  bool has_hidden() const { return projection || !reset_after; }
  std::size_t states() const { return cell == Cell::lstm ? 2 : 1; }
  std::size_t h0_at() const { return scales ? 3 : 2; }
  std::size_t bias_at() const { return h0_at() + states(); }
  std::size_t lengths_at() const { return bias_at() + 1; }
  std::size_t projection_at() const { return lengths_at() + (lengths ? 1 : 0); }
  std::size_t operands() const { return projection_at() + (projection ? 1 : 0); }
};

struct Sizes {
  std::int64_t steps, rows, units, width;  // width: of the state

  std::int64_t unit_panels() const { return panels_of(units); }
  std::int64_t width_panels() const { return panels_of(width); }
};

/// What the workers share.
struct Shared {
  float* state[2];  // [rows, width], padded to panels: before a step and after it
  float* memory;    // [rows, units], padded: an LSTM's, or the update gate of a GRU without reset_after
  float* hidden;    // [rows, units], padded: before the projection; the state times the reset gate
  float *bias, *none;  // of the gates; of the projection
  float* scales;       // of the gates
  float *weight, *projection;  // packed here

  Shared(Frame& frame, const Form& form, const Sizes& s) {
    const std::int64_t units = s.unit_panels() * kPanel, width = s.width_panels() * kPanel;
    for (float*& one : state) one = frame.take<float>(s.rows * width);
    memory = frame.take<float>(form.has_memory() ? s.rows * units : 0);
    hidden = frame.take<float>(form.has_hidden() ? s.rows * units : 0);
    bias = frame.take<float>(form.gates * units);
    none = frame.take<float>(form.projection ? width : 0);
    scales = frame.take<float>(form.scales ? form.gates * units : 0);
    weight = frame.take<float>(form.packed ? 0 : form.gates * units * s.width);
    projection = frame.take<float>(form.packed || !form.projection ? 0 : width * s.units);
  }
};

/// A worker's own.
struct Local {
  float* sums;
  float* line;  // a row of a weight that is packed here, in float32
  float* wide;  // a block of a weight of int8

  Local(Frame& frame, const Form& form, const Sizes& s)
      : sums(frame.take<float>(kRecurrentRows * kRecurrentVectors * kVector)),
        line(frame.take<float>(std::max(s.units, s.width))),
        wide(frame.take<float>(form.scales ? kRecurrentBlock / 4 : 0)) {}
};

class Recurrent final : public Kernel {
 public:
  Recurrent(const RecurrentTable& table, const Form& form) : table_(table), form_(form) {}

  Scratch plan(Views in, Views out, int) const override {
    const Sizes s = sizes_of(in);
    check_operands(in, s);
    require_shape(form_.name, "y", out[0], {s.steps, s.rows, s.width});
    require_shape(form_.name, "the last state", out[1], {s.rows, s.width});
    if (form_.cell == Cell::lstm) require_shape(form_.name, "the last cell state", out[2], {s.rows, s.units});
    for (const TensorView& view : out) require_dense_rows(form_.name, "a result", view);
    return {bytes_of_layout<Shared>(form_, s), bytes_of_layout<Local>(form_, s)};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const Sizes s = sizes_of(in);
    const auto shared = layout_at<Shared>(worker.shared, form_, s);
    const auto local = layout_at<Local>(worker.local, form_, s);
    begin(in, s, shared, local, worker);
    worker.barrier();
    const bool by_rows = divides_rows(s, worker.count);
    const Share rows = by_rows ? share_of(s.rows, worker.index, worker.count) : Share{0, s.rows};
    for (std::int64_t step = 0; step < s.steps; ++step) {
      const Step now{in, out, s, shared, local, step, rows, by_rows ? 0 : worker.index, by_rows ? 1 : worker.count};
      float *const before = shared.state[step % 2], *const after = shared.state[1 - step % 2];
      if (form_.projection) {
        advance(now, form_.cell, gate_weight(in, s, shared, 0, form_.gates), before, s.width, shared.hidden, nullptr);
        if (!by_rows) worker.barrier();
        advance(now, Cell::linear, projection_weight(in, s, shared), shared.hidden, s.units, after, &out[0]);
      } else if (!form_.reset_after) {
        advance(now, Cell::reset, gate_weight(in, s, shared, 0, 2), before, s.width, shared.hidden, nullptr);
        if (!by_rows) worker.barrier();
        advance(now, Cell::fresh, gate_weight(in, s, shared, 2, 1), shared.hidden, s.units, after, &out[0]);
      } else {
        advance(now, form_.cell, gate_weight(in, s, shared, 0, form_.gates), before, s.width, after, &out[0]);
      }
      if (!by_rows) worker.barrier();
    }
    const std::int64_t width = s.width_panels() * kPanel, units = s.unit_panels() * kPanel;
    const Share mine = by_rows ? rows : share_of(s.rows, worker.index, worker.count);
    for (std::int64_t row = mine.first; row < mine.last; ++row) {
      write(shared.state[s.steps % 2] + row * width, out[1], row, s.width);
      if (form_.cell == Cell::lstm) write(shared.memory + row * units, out[2], row, s.units);
    }
  }

 private:
  struct Step {
    Views in, out;
    const Sizes& sizes;
    const Shared& shared;
    const Local& local;
    std::int64_t step;
    Share rows;
    int index, count;  // of those who divide the units
  };

  Sizes sizes_of(Views in) const {
    const TensorView &gates = in[0], &h0 = in[form_.h0_at()];
    return {gates.shape[0], gates.shape[1], gates.shape[2] / form_.gates, h0.shape[1]};
  }

  void check_operands(Views in, const Sizes& s) const {
    const TensorView& gates = in[0];
    require(gates.shape[2] % form_.gates == 0 && s.units > 0 && s.width > 0, form_.name,
            "the gates must have a positive number of units each, and h0 a positive width");
    require(form_.projection || s.width == s.units, form_.name, "without a projection h0 must be as wide as a gate");
    if (form_.scales) require_shape(form_.name, "the scales", in[2], {form_.gates * s.units});
    require_shape(form_.name, "h0", in[form_.h0_at()], {s.rows, s.width});
    if (form_.cell == Cell::lstm) require_shape(form_.name, "c0", in[form_.h0_at() + 1], {s.rows, s.units});
    require_shape(form_.name, "the bias", in[form_.bias_at()], {form_.gates * s.units});
    if (form_.lengths) require_shape(form_.name, "lengths", in[form_.lengths_at()], {s.rows});
    check_weight("the weight", in[1], form_.gates, s.units, s.width);
    if (form_.projection) check_weight("the projection", in[form_.projection_at()], 1, s.width, s.units);
    for (std::size_t i = 0; i < in.size(); ++i)
      if (!form_.lengths || i != form_.lengths_at()) require_dense_rows(form_.name, "an operand", in[i]);
  }

  void check_weight(const char* what, const TensorView& weight, int gates, std::int64_t outputs, std::int64_t k) const {
    std::int64_t packed = 0;
    require(!__builtin_mul_overflow(panels_of(outputs) * kPanel * gates, k, &packed) && packed < std::int64_t{1} << 58, form_.name,
            "the weight is too large");
    if (form_.packed)
      PackedWeight(weight.dtype, k).check(form_.name, what, &weight, gates * panels_of(outputs));
    else
      require_shape(form_.name, what, weight, {gates * outputs, k});
  }

  /// Whether workers take rows instead of units: every one then reads the whole weight, and waits for none.
  bool divides_rows(const Sizes& s, int workers) const {
    constexpr std::int64_t kCache = 1 << 20, kFew = 4, kMany = 32;
    const std::int64_t weight = form_.gates * s.units * s.width * (form_.scales ? 1 : 4);
    return workers == 1 || s.rows >= kMany * workers || (s.rows >= kFew * workers && weight <= kCache);
  }

  // ---- before the first step ----

  void begin(Views in, const Sizes& s, const Shared& shared, const Local& local, const Worker& worker) const {
    const std::int64_t width = s.width_panels() * kPanel, units = s.unit_panels() * kPanel;
    const Share rows = share_of(s.rows, worker.index, worker.count);
    for (std::int64_t row = rows.first; row < rows.last; ++row) {
      read(in[form_.h0_at()], row, s.width, shared.state[0] + row * width, width);
      if (form_.cell == Cell::lstm) read(in[form_.h0_at() + 1], row, s.units, shared.memory + row * units, units);
      if (form_.lengths) check_length(in[form_.lengths_at()], row, s.steps, worker);
    }
    if (worker.index == 0) {
      read_gates(in[form_.bias_at()], s, shared.bias);
      if (form_.scales) read_gates(in[2], s, shared.scales);
      if (form_.projection) std::fill(shared.none, shared.none + width, 0.0f);
    }
    if (form_.packed) return;
    pack(in[1], form_.gates, s.units, s.width, shared.weight, local, worker);
    if (form_.projection) pack(in[form_.projection_at()], 1, s.width, s.units, shared.projection, local, worker);
  }

  void read(const TensorView& from, std::int64_t row, std::int64_t count, float* to, std::int64_t padded) const {
    table_.convert(from.at(row * from.stride[0]), from.dtype, to, DType::float32, count);
    std::fill(to + count, to + padded, 0.0f);
  }

  /// A number for each unit of each gate, every gate beginning a panel.
  void read_gates(const TensorView& from, const Sizes& s, float* to) const {
    const std::int64_t units = s.unit_panels() * kPanel;
    std::fill(to, to + form_.gates * units, 0.0f);
    for (int gate = 0; gate < form_.gates; ++gate)
      table_.convert(from.at(gate * s.units * from.stride[0]), from.dtype, to + gate * units, DType::float32, s.units);
  }

  void write(const float* from, const TensorView& to, std::int64_t row, std::int64_t count) const {
    table_.convert(from, DType::float32, to.at(row * to.stride[0]), to.dtype, count);
  }

  static std::int64_t length_of(const TensorView& lengths, std::int64_t row, std::int64_t steps) {
    return std::clamp<std::int64_t>(integer_at(lengths, row * lengths.stride[0]), 0, steps);
  }

  void check_length(const TensorView& lengths, std::int64_t row, std::int64_t steps, const Worker& worker) const {
    const std::int64_t given = integer_at(lengths, row * lengths.stride[0]);
    if (given < 0 || given > steps) worker.fail("a length of a recurrent layer's rows", given, steps + 1, row);
  }

  /// Panels of float32 from a weight that lies as it is, one row of it after the other.
  void pack(const TensorView& weight, int gates, std::int64_t outputs, std::int64_t k, float* panels, const Local& local,
            const Worker& worker) const {
    const std::int64_t each = panels_of(outputs);
    const Share share = share_of(gates * each, worker.index, worker.count);
    for (std::int64_t panel = share.first; panel < share.last; ++panel) {
      const std::int64_t gate = panel / each, unit = panel % each * kPanel, taken = std::min<std::int64_t>(kPanel, outputs - unit);
      float* const to = panels + panel * k * kPanel;
      if (taken < kPanel) std::fill(to, to + k * kPanel, 0.0f);
      for (std::int64_t o = 0; o < taken; ++o) {
        table_.convert(weight.at((gate * outputs + unit + o) * weight.stride[0]), weight.dtype, local.line, DType::float32, k);
        for (std::int64_t i = 0; i < k; ++i) to[i * kPanel + o] = local.line[i];
      }
    }
  }

  RecurrentWeight gate_weight(Views in, const Sizes& s, const Shared& shared, int first, int count) const {
    const void* panels = form_.packed ? in[1].data : shared.weight;
    return {panels, form_.packed ? in[1].dtype : DType::float32, first, count, s.width, s.unit_panels(), shared.bias, shared.scales};
  }

  RecurrentWeight projection_weight(Views in, const Sizes& s, const Shared& shared) const {
    const TensorView& projection = in[form_.projection_at()];
    const void* panels = form_.packed ? projection.data : shared.projection;
    return {panels, form_.packed ? projection.dtype : DType::float32, 0, 1, s.units, s.width_panels(), shared.none, nullptr};
  }

  // ---- a step ----

  /// The new state of these rows, of the units that are this worker's.
  void advance(const Step& now, Cell cell, const RecurrentWeight& weight, const float* from, std::int64_t k, float* to,
               const TensorView* y) const {
    const std::int64_t outputs = cell == Cell::linear ? now.sizes.width : now.sizes.units;
    const std::int64_t vectors = (outputs + kVector - 1) / kVector, block = kRecurrentVectors / weight.gates;
    const std::int64_t stride = panels_of(k) * kPanel;
    const Share share = share_of(vectors, now.index, now.count);
    for (std::int64_t first = share.first; first < share.last; first += block) {
      const int count = static_cast<int>(std::min(block, share.last - first));
      for (std::int64_t row = now.rows.first; row < now.rows.last; row += kRecurrentRows) {
        const int rows = static_cast<int>(std::min<std::int64_t>(kRecurrentRows, now.rows.last - row));
        table_.product(weight, first, count, from + row * stride, stride, rows, now.local.wide, now.local.sums);
        for (int r = 0; r < rows; ++r)
          finish(now, cell, row + r, first, count, now.local.sums + r * count * weight.gates * kVector, to, y);
      }
    }
  }

  void finish(const Step& now, Cell cell, std::int64_t row, std::int64_t first, int count, const float* sums, float* to,
              const TensorView* y) const {
    const Sizes& s = now.sizes;
    const std::int64_t units = s.unit_panels() * kPanel, width = s.width_panels() * kPanel;
    const std::int64_t length = form_.lengths ? length_of(now.in[form_.lengths_at()], row, s.steps) : s.steps;
    const bool linear = cell == Cell::linear;
    const std::int64_t outputs = linear ? s.width : s.units, padded = linear || !form_.projection ? width : units;
    if (now.step >= length) return skip(now, row, first, count, outputs, to + row * padded, y);
    const std::int64_t time = form_.reverse ? length - 1 - now.step : now.step;
    const TensorView& x = now.in[0];
    CellRow job;
    job.sums = sums;
    job.x = x.at(time * x.stride[0] + row * x.stride[1]);
    job.y = y == nullptr ? nullptr : y->at(time * y->stride[0] + row * y->stride[1]);
    job.dtype = x.dtype;
    job.units = outputs;
    job.first = first;
    job.count = count;
    job.state = now.shared.state[now.step % 2] + row * width;
    job.next = to + row * padded;
    job.memory = form_.has_memory() ? now.shared.memory + row * units : nullptr;
    table_.cell(cell, job);
  }

  /// A row that has no such step: its state stays, and the result is zero.
  void skip(const Step& now, std::int64_t row, std::int64_t first, int count, std::int64_t outputs, float* next,
            const TensorView* y) const {
    if (y == nullptr) return;  // nothing reads what the first half of a step leaves
    const std::int64_t begin = first * kVector, end = std::min(outputs, begin + count * kVector);
    const float* state = now.shared.state[now.step % 2] + row * now.sizes.width_panels() * kPanel;
    std::copy(state + begin, state + begin + count * kVector, next + begin);
    std::byte* const zeros = y->at(now.step * y->stride[0] + row * y->stride[1] + begin);
    std::fill(zeros, zeros + (end - begin) * static_cast<std::int64_t>(bytes_of(y->dtype)), std::byte{0});
  }

  const RecurrentTable& table_;
  Form form_;
};

void check_types(const Form& form, Types in, Types out) {
  const DType dtype = in[0].dtype;
  require_dtype(form.name, "gates", dtype, kComputeFloats);
  const auto check = [&](const char* what, const OperandType& type, int rank) {
    require_dtype(form.name, what, type.dtype, {dtype});
    require_rank(form.name, what, type.rank, rank);
  };
  check("gates", in[0], 3);
  const int panels = dtype == DType::bfloat16 ? 4 : 3;
  if (form.scales) {
    require(form.packed, form.name, "scales belong to a weight in panels");
    require_dtype(form.name, "weight", in[1].dtype, {DType::int8});
    require_rank(form.name, "weight", in[1].rank, 4);
    require_dtype(form.name, "scales", in[2].dtype, {DType::float32});
    require_rank(form.name, "scales", in[2].rank, 1);
  } else {
    check("weight", in[1], form.packed ? panels : 2);
  }
  for (std::size_t i = 0; i < form.states(); ++i) check(i == 0 ? "h0" : "c0", in[form.h0_at() + i], 2);
  check("bias", in[form.bias_at()], 1);
  if (form.projection) check("projection", in[form.projection_at()], form.packed ? panels : 2);
  if (form.lengths) {
    require_dtype(form.name, "lengths", in[form.lengths_at()].dtype, {DType::int32, DType::int64});
    require_rank(form.name, "lengths", in[form.lengths_at()].rank, 1);
  }
  for (std::size_t i = 0; i < out.size(); ++i) check("a result", out[i], i == 0 ? 3 : 2);
}

std::unique_ptr<Kernel> make(Form form, Params& params, Types in, Types out, Level level) {
  form.reverse = params.flag("reverse");
  form.packed = params.flag("packed");
  form.scales = params.flag("scales", false);
  form.lengths = params.flag("lengths");
  form.projection = form.cell == Cell::lstm && params.flag("projection");
  form.reset_after = form.cell != Cell::gru || params.flag("reset_after", true);
  params.done();
  require_operands(form.name, in, form.operands(), form.operands(), out, 1 + form.states());
  check_types(form, in, out);
  return std::make_unique<Recurrent>(half_for(recurrent_halves, level), form);
}

std::unique_ptr<Kernel> make_lstm(const nlohmann::json& json, Types in, Types out, Level level) {
  Params params("lstm", json);
  return make({.name = "lstm", .cell = Cell::lstm, .gates = 4}, params, in, out, level);
}

std::unique_ptr<Kernel> make_gru(const nlohmann::json& json, Types in, Types out, Level level) {
  Params params("gru", json);
  return make({.name = "gru", .cell = Cell::gru, .gates = 3}, params, in, out, level);
}

std::unique_ptr<Kernel> make_rnn(const nlohmann::json& json, Types in, Types out, Level level) {
  Params params("rnn", json);
  const Cell cell = params.choice("activation", {"tanh", "relu"}) == 0 ? Cell::tanh : Cell::relu;
  return make({.name = "rnn", .cell = cell, .gates = 1}, params, in, out, level);
}

constexpr KernelInfo kKernels[] = {
    {"lstm", 1, "gates, weight, scales?, h0, c0, bias, lengths?, projection? -> y, h, c",
     "reverse: flag, packed: flag, scales?: flag, lengths: flag, projection: flag", make_lstm},
    {"gru", 1, "gates, weight, scales?, h0, bias, lengths? -> y, h",
     "reverse: flag, packed: flag, scales?: flag, lengths: flag, reset_after?: flag", make_gru},
    {"rnn", 1, "gates, weight, scales?, h0, bias, lengths? -> y, h",
     "activation: tanh | relu, reverse: flag, packed: flag, scales?: flag, lengths: flag", make_rnn},
};

}  // namespace

std::span<const KernelInfo> recurrent_kernels() { return kKernels; }

}  // namespace ingot
