// The verifier. Its rules:
//  - every symbol is bound: by an input that has it as a dimension, bare or (where no input has it bare) as
//  factor * symbol + offset; or, when unbacked, by one host call whose result carries it, or by one kernel whose only
//  result is an int64 temp with a number for each symbol that it binds;
//  - shapes of inputs and weights use what is known there: inputs' own symbols, constants;
//  - a buffer is used only in stages in which all symbols of its shape are bound;
//  - inputs, weights and states are never outputs of a call; a state is an operand of kernels only, never of host
//  calls;
//  - a temp is written before it is read and never after: whole by one call, or in parts, each a view written once;
//  - the program's outputs are readable at its end and are no states;
//  - a body has neither states nor host calls; its symbols are given by the call that holds it, or bound by a call
//  inside, which the shapes of its inputs and outputs do not use; its outputs are temps, or views of temps;
//  - operands and results of a control call have the element types and ranks of its bodies' inputs and outputs, one
//  dimension more where each round has a part. Only a loop with such results binds a symbol: their first dimension.
#include "verify.h"

#include <algorithm>

#include "error.h"

namespace ingot {
namespace {

[[noreturn]] void refuse(Place place, const std::string& why) { throw Error(code::program, place.text() + ": " + why); }

bool carries(const Program& program, int buffer, int symbol) {
  const auto& shape = program.buffer(buffer).shape;
  return std::any_of(shape.begin(), shape.end(), [&](DimId id) {
    const DimNode& node = program.dims.node(id);
    return node.op == DimOp::symbol && node.value == symbol;
  });
}

/// Whether a kernel that binds symbols has a number for each.
bool gives_numbers(const Program& program, const Call& call) {
  if (call.out.size() != 1) return false;
  const Buffer& buffer = program.buffer(call.out[0]);
  if (buffer.kind != BufferKind::temp || buffer.dtype != DType::int64 || buffer.shape.size() != 1) return false;
  const DimNode& size = program.dims.node(buffer.shape[0]);
  return size.op == DimOp::constant && size.value == static_cast<std::int64_t>(call.binds.size());
}

/// The dimensions of inputs that bind symbols: all the bare ones, then for symbols without any those of a linear form.
void find_bindings(Program& program) {
  std::vector<bool> bare(program.dims.symbols().size(), false);
  for (const bool bare_only : {true, false}) {
    for (std::size_t i = 0; i < program.inputs.size(); ++i) {
      const std::vector<DimId>& shape = program.buffer(program.inputs[i]).shape;
      for (std::size_t d = 0; d < shape.size(); ++d) {
        const DimTable::Linear size = program.dims.linear(shape[d]);
        if (size.symbol < 0 || program.dims.symbols()[static_cast<std::size_t>(size.symbol)].unbacked) continue;
        const bool is_bare = size.factor == 1 && size.offset == 0;
        const auto symbol = static_cast<std::size_t>(size.symbol);
        if (bare_only ? !is_bare : bare[symbol]) continue;
        program.bindings.push_back({i, d, size});
        if (bare_only) bare[symbol] = true;
      }
    }
  }
}

void assign_stages(Program& program) {
  const std::span<Symbol> symbols = program.dims.symbols();
  std::vector<bool> bound(symbols.size(), false);
  if (program.is_body) {  // the call that holds it gives them
    for (std::size_t s = 0; s < symbols.size(); ++s) bound[s] = !symbols[s].unbacked;
  } else {
    find_bindings(program);
  }
  for (const Binding& binding : program.bindings) bound[static_cast<std::size_t>(binding.size.symbol)] = true;
  for (std::size_t s = 0; s < symbols.size(); ++s) {
    if (!symbols[s].unbacked && !bound[s])
      refuse({"symbols", s}, "no input has " + quote(symbols[s].name) + " as a dimension, so nothing binds it");
  }
  int stage = 0;
  for (std::size_t c = 0; c < program.calls.size(); ++c) {
    Call& call = program.calls[c];
    call.stage = stage;
    if (call.control == Control::none && !call.host && !call.binds.empty() && !gives_numbers(program, call))
      refuse({"calls", c}, "binds: its only result must be a temp int64[" + std::to_string(call.binds.size()) + "]");
    for (int symbol : call.binds) {
      const auto s = static_cast<std::size_t>(symbol);
      const bool found = !call.shapes_results() || std::any_of(call.out.begin(), call.out.end(),
                                                   [&](int out) { return carries(program, out, symbol); });
      if (!symbols[s].unbacked || bound[s])
        refuse({"calls", c}, "binds: " + quote(symbols[s].name) + " is bound elsewhere");
      if (!found) refuse({"calls", c}, "binds: no result has " + quote(symbols[s].name) + " as a dimension");
      bound[s] = true;
      symbols[s].stage = stage + 1;
    }
    if (!call.binds.empty()) ++stage;
  }
  const auto loose = std::find(bound.begin(), bound.end(), false);
  if (loose != bound.end())
    refuse({"symbols", static_cast<std::size_t>(loose - bound.begin())}, "it is unbacked and no call binds it");
  program.stages = stage + 1;
  program.dims.assign_stages();
  for (SizeCheck& check : program.checks)
    check.stage = std::max(program.dims.node(check.size).stage, program.dims.node(check.wanted).stage);
}

/// Follows the calls in order and keeps what has been written and read.
class Flow {
 public:
  explicit Flow(Program& program) : program_(program), state_(program.buffers.size()) {}

  void run() {
    for (std::size_t b = 0; b < program_.buffers.size(); ++b) declare(b);
    for (std::size_t c = 0; c < program_.calls.size(); ++c) {
      const Call& call = program_.calls[c];
      place_ = {"calls", c};
      if (program_.is_body && call.host) refuse(place_, "a body has no host calls");
      for (int operand : call.in) read(operand, call.stage, call.host || call.control != Control::none);
      check_sizes(call);
      for (int result : call.out) write(result, call.shapes_results() ? call.stage + 1 : call.stage);
    }
    for (std::size_t o = 0; o < program_.outputs.size(); ++o) {
      place_ = {"outputs", o};
      read(program_.outputs[o].buffer, program_.stages - 1, true);
      if (program_.is_body) check_output(program_.outputs[o].buffer);
    }
    for (std::size_t b = 0; b < program_.buffers.size(); ++b) {
      Buffer& buffer = program_.buffers[b];
      if (buffer.kind != BufferKind::view) continue;
      buffer.stage = std::max(buffer.stage, program_.buffer(buffer.of).stage);
      if (buffer.written) program_.parts.push_back(static_cast<int>(b));
    }
  }

 private:
  struct State {
    bool written = false;  // as it stands, whole
    bool parts = false;    // some view of it was written
    bool read = false;     // it, or a view of it
    int stage = 0;         // in which it was first written
  };

  Program& program_;
  std::vector<State> state_;
  Place place_{"buffers", 0};

  State& state(int buffer) { return state_[static_cast<std::size_t>(buffer)]; }
  static std::string number(int buffer) { return "buffer " + std::to_string(buffer); }

  /// Finds the stage from which on the buffer's shape is known.
  void declare(std::size_t index) {
    Buffer& buffer = program_.buffers[index];
    const auto need = [&](DimId id) { buffer.stage = std::max(buffer.stage, program_.dims.node(id).stage); };
    for (DimId id : buffer.shape) need(id);
    for (DimId id : buffer.stride) need(id);
    if (buffer.kind == BufferKind::view) need(buffer.offset);
    if (buffer.kind == BufferKind::state && program_.is_body) refuse({"buffers", index}, "a body has no states");
    if (buffer.kind == BufferKind::input && buffer.stage > 0)
      refuse({"buffers", index}, "the shape of an input cannot use an unbacked symbol");
    const bool constant = std::all_of(buffer.shape.begin(), buffer.shape.end(),
                                      [&](DimId id) { return program_.dims.node(id).op == DimOp::constant; });
    if (buffer.kind == BufferKind::weight && !constant)
      refuse({"buffers", index}, "the shape of a weight must be constant");
  }

  /// What a control call gives to its bodies' symbols is known when it runs.
  void check_sizes(const Call& call) const {
    const auto late = [&](DimId id) { return id >= 0 && program_.dims.node(id).stage > call.stage; };
    bool early = call.control != Control::scan || !late(call.length);
    for (const Body& body : call.bodies) early = early && std::none_of(body.sizes.begin(), body.sizes.end(), late);
    if (!early) refuse(place_, "it gives its bodies sizes that are not bound yet");
  }

  void check_output(int index) const {
    const Buffer& buffer = program_.buffer(index);
    if (program_.buffer(program_.base(index)).kind != BufferKind::temp)
      refuse(place_, number(index) + " is no temp (nor a view of one); a body gives only those");
    if (std::any_of(buffer.shape.begin(), buffer.shape.end(), [&](DimId id) { return program_.dims.node(id).stage > 0; }))
      refuse(place_, number(index) + " has a dimension that the body binds");
  }

  void need_stage(int index, int stage) const {
    const int base = program_.base(index);
    if (std::max(program_.buffer(index).stage, program_.buffer(base).stage) > stage) {
      refuse(place_, number(index) + " is used before the symbols in its shape are bound");
    }
  }

  void read(int index, int stage, bool outside) {
    need_stage(index, stage);
    const BufferKind kind = program_.buffer(index).kind;
    if (kind == BufferKind::state && outside) refuse(place_, number(index) + " is a state, which only kernels use");
    const int base = program_.base(index);
    if (program_.buffer(base).kind != BufferKind::temp) return;
    if (!state(base).written && !state(base).parts) refuse(place_, number(index) + " is read before any call wrote it");
    state(base).read = true;
  }

  void write(int index, int stage) {
    need_stage(index, stage);
    const int base = program_.base(index);
    if (program_.buffer(base).kind != BufferKind::temp)
      refuse(place_, "out: " + number(index) + " is no temp (nor a view of one); only those are written");
    State& whole = state(base);
    if (whole.read) refuse(place_, "out: " + number(index) + " is written after it was read");
    if (whole.written || (index == base && whole.parts) || state(index).written)
      refuse(place_, "out: " + number(index) + " is written twice");
    if (whole.parts && whole.stage != stage)
      refuse(place_, "out: the parts of " + number(base) + " are written in different stages");
    state(index).written = true;
    whole.parts = whole.parts || index != base;
    whole.stage = stage;
    program_.buffers[static_cast<std::size_t>(index)].written = true;
    // The memory belongs to the stage that writes it, even when its shape was known before.
    Buffer& owner = program_.buffers[static_cast<std::size_t>(base)];
    owner.stage = std::max(owner.stage, stage);
  }
};

/// The operands and results of a control call against its bodies' inputs and outputs.
class Fit {
 public:
  Fit(const Program& program, std::size_t call) : program_(program), call_(program.calls[call]), place_{"calls", call} {}

  void run() const {
    const std::size_t bodies = call_.control == Control::scan ? 1 : 2;
    if (call_.bodies.size() != bodies) refuse(place_, "it has " + std::to_string(call_.bodies.size()) + " bodies, and needs " + std::to_string(bodies));
    if (call_.control == Control::cond) return cond();
    const Program& body = *call_.bodies.back().program;
    if (call_.carried > call_.out.size() || call_.carried + call_.scanned > call_.in.size())
      refuse(place_, "it carries or scans more operands, or carries more results, than it has");
    const bool loop = call_.control == Control::loop;
    const std::size_t stacked = call_.out.size() - call_.carried;
    if (call_.binds.size() != (loop && stacked != 0 ? 1u : 0u))
      refuse(place_, loop && stacked != 0 ? "it must bind one symbol: its rounds" : "binds: it has nothing to bind");
    if (loop) {
      inputs(*call_.bodies[0].program, 0);
      condition(*call_.bodies[0].program);
    }
    inputs(body, 0);
    outputs(body);
    for (std::size_t i = 0; i < call_.carried; ++i) {
      const Buffer &in = program_.buffer(call_.in[i]), &out = program_.buffer(call_.out[i]);
      if (in.dtype != out.dtype || in.shape.size() != out.shape.size())
        refuse(place_, "out: carried result " + std::to_string(i) + " has another type than its operand");
    }
    for (std::size_t i = call_.carried; !call_.binds.empty() && i < call_.out.size(); ++i) {
      const DimNode& first = program_.dims.node(program_.buffer(call_.out[i]).shape[0]);
      if (first.op != DimOp::symbol || first.value != call_.binds[0])
        refuse(place_, "out: the first dimension of result " + std::to_string(i) + " must be the symbol that it binds");
    }
  }

 private:
  const Program& program_;
  const Call& call_;
  Place place_;

  void cond() const {
    if (!call_.binds.empty()) refuse(place_, "binds: it has nothing to bind");
    if (call_.in.empty() || !is_truth(program_.buffer(call_.in[0]))) refuse(place_, "in: the first operand must be bool[]");
    for (const Body& body : call_.bodies) {
      inputs(*body.program, 1);
      outputs(*body.program);
    }
  }

  static bool is_truth(const Buffer& buffer) { return buffer.dtype == DType::boolean && buffer.shape.empty(); }

  void condition(const Program& body) const {
    if (body.outputs.size() != 1 || !is_truth(body.buffer(body.outputs[0].buffer)))
      refuse(place_, "the condition must give one bool[]");
  }

  void inputs(const Program& body, std::size_t first) const {
    if (body.inputs.size() != call_.in.size() - first)
      refuse(place_, "a body has " + std::to_string(body.inputs.size()) + " inputs for " +
                         std::to_string(call_.in.size() - first) + " operands");
    for (std::size_t i = 0; i < body.inputs.size(); ++i) {
      const bool part = call_.control == Control::scan && i >= call_.carried && i < call_.carried + call_.scanned;
      match(program_.buffer(call_.in[first + i]), body.buffer(body.inputs[i]), part, "operand", first + i);
    }
  }

  void outputs(const Program& body) const {
    if (body.outputs.size() != call_.out.size())
      refuse(place_, "a body has " + std::to_string(body.outputs.size()) + " outputs for " +
                         std::to_string(call_.out.size()) + " results");
    for (std::size_t i = 0; i < body.outputs.size(); ++i) {
      const bool part = call_.control != Control::cond && i >= call_.carried;
      match(program_.buffer(call_.out[i]), body.buffer(body.outputs[i].buffer), part, "result", i);
    }
  }

  void match(const Buffer& whole, const Buffer& inner, bool part, const char* what, std::size_t index) const {
    if (whole.kind == BufferKind::state) refuse(place_, "a state is no operand of a control call");
    if (whole.dtype != inner.dtype || whole.shape.size() != inner.shape.size() + (part ? 1 : 0))
      refuse(place_, std::string(what) + " " + std::to_string(index) + " and the body's differ in type or rank");
  }
};

}  // namespace

void verify(Program& program) {
  for (std::size_t c = 0; c < program.calls.size(); ++c)
    if (program.calls[c].control != Control::none) Fit(program, c).run();
  assign_stages(program);
  Flow(program).run();
}

}  // namespace ingot
