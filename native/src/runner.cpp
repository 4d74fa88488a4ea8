// Binding inputs, finding the plan, running the stages of one program.
#include "runner.h"

#include <algorithm>
#include <chrono>

#include "copy_strided.h"
#include "error.h"
#include "tensor.h"

namespace ingot {
namespace {

constexpr std::size_t kPlansKept = 64;  // per stage
constexpr std::int64_t kLarge = 64 << 10;  // bytes from which on inputs and outputs are not copied: views are moved instead

std::uint64_t bytes_of(std::span<const TensorView> views) {
  std::uint64_t bytes = 0;
  for (const TensorView& view : views) {
    std::uint64_t elements = 1;
    for (int d = 0; d < view.rank; ++d)
      if (view.stride[d] != 0 || view.shape[d] == 0) elements *= static_cast<std::uint64_t>(view.shape[d]);
    bytes += elements * size_of(view.dtype);
  }
  return bytes;
}

/// What to do about an array that may be one sample of a batch: its sizes are those behind the first dimension.
std::string way_to_a_batch(const Program& program, const Buffer& input, const TensorView& array) {
  if (array.dtype != input.dtype || array.rank + 1 != static_cast<int>(input.shape.size())) return "";
  for (int d = 0; d < array.rank; ++d) {
    const DimNode& size = program.dims.node(input.shape[static_cast<std::size_t>(d + 1)]);
    if (size.op == DimOp::constant && size.value != array.shape[d]) return "";
  }
  return ": where it is one sample of a batch, give it a dimension more (array[None] in NumPy)";
}

/// What to do about an array that differs in a dimension that the program has as a number; empty where it differs elsewhere.
std::string way_to_other_sizes(const Program& program, int buffer, const TensorView& from, const TensorView& to) {
  const Buffer& input = program.buffer(buffer);
  for (int d = 0; d < to.rank && from.rank == to.rank; ++d) {
    const bool fixed = program.dims.node(input.shape[static_cast<std::size_t>(d)]).op == DimOp::constant;
    if (!fixed || from.shape[d] == to.shape[d]) continue;
    const std::string dim = std::to_string(d);
    return ". Dimension " + dim + " is fixed at " + std::to_string(to.shape[d]) +
           " in this engine: to run other sizes, build it again with that dimension dynamic (dynamic={" + quote(input.name) + ": {" +
           dim + ": 'N'}} for a torch module, 'N' in an ingot.Spec; a .pt2 or .onnx file is exported with dynamic_shapes or dynamic_axes)";
  }
  return "";
}

}  // namespace

std::string where_of(const Call& call) { return (call.where.empty() ? "" : call.where + ": ") + call.name; }

Runner::Runner(const LoadedProgram& loaded, Together& together) : loaded_(loaded), together_(together) {
  const auto stages = static_cast<std::size_t>(program().stages);
  arenas_.resize(stages);
  bases_.resize(number_of_bases(loaded));
  plans_.resize(stages);
  symbols_.resize(program().dims.symbols().size());
  for (const std::vector<LoadedProgram>& bodies : loaded.bodies) {
    std::vector<std::unique_ptr<Runner>>& runners = bodies_.emplace_back();
    for (const LoadedProgram& body : bodies) runners.push_back(std::make_unique<Runner>(body, together));
  }
}

std::uint64_t Runner::arena_bytes() const {
  std::uint64_t bytes = 0;
  for (const Pages& pages : arenas_) bytes += pages.size();
  for (const auto& runners : bodies_)
    for (const auto& runner : runners) bytes += runner->arena_bytes();
  return bytes;
}

void Runner::run(std::span<const TensorView> arrays, const Results& results) {
  last_ = nullptr;
  pending_.clear();
  together_.rounds = together_.most_rounds;
  bind_inputs(arrays);
  std::uint64_t lower_bound = 0;
  StagePlan* plan = nullptr;
  for (int stage = 0; stage < program().stages; ++stage) {
    plan = &plan_for(stage, plan);
    const auto slot = static_cast<std::size_t>(stage);
    if (stage == 0) place_inputs(*plan, arrays);
    if (stage + 1 == program().stages) place_outputs(*plan, results);
    plan->relocate(bases_);
    zones_.begin(slot, bases_[slot], arenas_[slot].size());
    enter(*plan, stage, arrays);
    run_stage(*plan, stage);
    lower_bound += plan->layout.lower_bound;
  }
  zones_.open(plan->at(plan->leaving));
  last_ = plan;
  lower_bound_ = lower_bound;
}

void Runner::place_inputs(const StagePlan& plan, std::span<const TensorView> arrays) {
  const std::size_t first = loaded_.stages.size();
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const int input = program().inputs[i];
    bases_[first + i] = stays(arrays[i], input) ? arrays[i].as<std::byte>() : bases_[0] + plan.offsets[static_cast<std::size_t>(input)];
  }
}

/// Whether an array is read where it lies: a large one without gaps. Integers and booleans may be sizes and places in memory, which a
/// kernel must find as they were when it checked them, so they are copied. What leaves the run as it came may lie where results go.
/// Sanitizers know the borders of what lies in arenas only.
bool Runner::stays(const TensorView& array, int input) const {
  const std::size_t element = size_of(array.dtype);
  if (kRedZones || !is_float(array.dtype) || bytes_of(array) < kLarge) return false;
  if (!array.contiguous() || reinterpret_cast<std::uintptr_t>(array.data) % element != 0) return false;
  return std::none_of(program().outputs.begin(), program().outputs.end(),
                      [&](const Output& output) { return program().base(output.buffer) == input; });
}

void Runner::place_outputs(const StagePlan& plan, const Results& results) {
  const std::size_t first = loaded_.stages.size() + program().inputs.size();
  const std::span<const TensorView> leaving = plan.at(plan.leaving);
  for (std::size_t i = 0; i < leaving.size(); ++i) {
    if (plan.movable[i] == 0) continue;
    const bool large = bytes_of(leaving[i]) >= kLarge;
    std::byte* const given = !kRedZones && large && results ? results(i, leaving[i]) : nullptr;
    const auto base = static_cast<std::size_t>(program().base(program().outputs[i].buffer));
    bases_[first + i] = given != nullptr ? given : bases_[loaded_.stages.size() - 1] + plan.offsets[base];
  }
}

void Runner::enter(const StagePlan& plan, int stage, std::span<const TensorView> arrays) {
  const std::span<const TensorView> entering = plan.at(plan.entering);
  zones_.open(entering);
  if (stage == 0) {
    for (std::size_t i = 0; i < entering.size(); ++i) fill(arrays[i], entering[i], program().inputs[i], nullptr, i);
    zones_.close(entering);
    return;
  }
  const int first_call = loaded_.stages[static_cast<std::size_t>(stage)].first_call;
  const Call& call = program().calls[static_cast<std::size_t>(first_call - 1)];
  for (std::size_t i = 0; i < entering.size(); ++i) fill(pending_[i].view, entering[i], call.out[i], &call, i);
  zones_.close(entering);
  pending_.clear();
}

void Runner::bind_inputs(std::span<const TensorView> arrays) {
  const Program& p = program();
  std::fill(symbols_.begin(), symbols_.end(), -1);
  for (std::size_t i = 0; i < p.inputs.size(); ++i) {
    const Buffer& buffer = p.buffer(p.inputs[i]);
    const TensorView& array = arrays[i];
    if (array.dtype != buffer.dtype || array.rank != static_cast<int>(buffer.shape.size())) {
      throw Error(code::input,
                  "input " + quote(buffer.name) + " is " + describe(array) + "; " + p.spec(p.inputs[i]) + " is needed" +
                      way_to_a_batch(p, buffer, array));
    }
  }
  for (const Binding& binding : p.bindings) {
    const auto symbol = static_cast<std::size_t>(binding.size.symbol);
    const std::int64_t value = solve(binding, arrays[binding.input]);
    if (symbols_[symbol] != value)
      bind_symbol(symbol, value, p.buffer(p.inputs[binding.input]).name, code::input);
  }
  for (std::size_t symbol = 0; symbol < symbols_.size(); ++symbol)
    symbols_[symbol] = std::max<std::int64_t>(symbols_[symbol], 0);
}

/// The value that a dimension of an array gives a symbol.
std::int64_t Runner::solve(const Binding& binding, const TensorView& array) const {
  const auto& [symbol, factor, offset] = binding.size;
  const std::int64_t size = array.shape[binding.dim];
  std::int64_t rest = 0;
  if (!__builtin_sub_overflow(size, offset, &rest) && rest >= 0 && rest % factor == 0) return rest / factor;
  const Program& p = program();
  const Buffer& buffer = p.buffer(p.inputs[binding.input]);
  const std::string rule = offset == 0
                               ? "a multiple of " + std::to_string(factor)
                               : p.dims.text(buffer.shape[binding.dim]) + " for a whole number " +
                                     p.dims.symbols()[static_cast<std::size_t>(symbol)].name + " of 0 or more";
  throw Error(code::input, "input " + quote(buffer.name) + " is " + describe(array) + "; its dimension " +
                               std::to_string(binding.dim) + " must be " + rule + ", and " + std::to_string(size) +
                               " is not");
}

void Runner::bind_symbol(std::size_t symbol, std::int64_t value, const std::string& who, const char* error_code) {
  const Symbol& s = program().dims.symbols()[symbol];
  if (symbols_[symbol] >= 0) {
    throw Error(error_code, quote(who) + " has " + s.name + "=" + std::to_string(value) + ", but another array has " +
                                s.name + "=" + std::to_string(symbols_[symbol]));
  }
  if (value < s.min || value > s.max) {
    throw Error(error_code, quote(who) + " has " + s.name + "=" + std::to_string(value) + ", which is not in " +
                                std::to_string(s.min) + " … " + std::to_string(s.max));
  }
  symbols_[symbol] = value;
}

void Runner::fill(const TensorView& from, const TensorView& to, int buffer, const Call* call,
                   std::size_t index) const {
  if (from.dtype == to.dtype && from.rank == to.rank && std::equal(from.shape, from.shape + from.rank, to.shape)) {
    if (from.data != to.data) copy_strided(from, to);
    return;
  }
  const std::string wanted = program().spec(buffer);
  const std::string who = call == nullptr ? "input " + quote(program().buffer(buffer).name)
                                          : where_of(*call) + ": result " + std::to_string(index);
  throw Error(call == nullptr ? code::input : code::value,
              who + " is " + describe(from) + "; " + wanted + (wanted == describe(to) ? "" : ", here " + describe(to) + ",") + " is needed" +
                  (call == nullptr ? way_to_other_sizes(program(), buffer, from, to) : ""));
}

StagePlan& Runner::plan_for(int stage, const StagePlan* before) {
  auto& kept = plans_[static_cast<std::size_t>(stage)];
  const auto found =
      std::find_if(kept.begin(), kept.end(), [&](const auto& plan) { return plan->symbols == symbols_; });
  if (found != kept.end()) {
    std::rotate(kept.begin(), found, found + 1);
  } else {
    auto plan = std::make_unique<StagePlan>(make_plan({loaded_, stage, together_.threads, symbols_, before, together_.states}));
    if (kept.size() == kPlansKept) kept.pop_back();
    kept.insert(kept.begin(), std::move(plan));
  }
  StagePlan& plan = *kept.front();
  Pages& arena = arenas_[static_cast<std::size_t>(stage)];
  if (arena.data() == nullptr || arena.size() < plan.arena_bytes) {
    arena = Pages();  // the old one goes first: both at once may not fit
    arena = Pages(std::max<std::uint64_t>(plan.arena_bytes, kArenaAlignment), "the arena");
    bases_[static_cast<std::size_t>(stage)] = arena.data();
  }
  return plan;
}

void Runner::run_stage(StagePlan& plan, int stage) {
  const std::span<const Step> steps = plan.steps;
  for (std::size_t i = 0; i < steps.size();) {
    if (steps[i].kernel == nullptr) {
      const bool host = program().calls[static_cast<std::size_t>(steps[i].call)].host;
      host ? run_host(plan, steps[i]) : run_control(plan, steps[i], stage);
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < steps.size() && steps[end].kernel != nullptr) ++end;
    run_kernels(plan, stage, steps.subspan(i, end - i));
    bind_numbers(plan, steps[end - 1]);
    i = end;
  }
}

void Runner::bind_numbers(const StagePlan& plan, const Step& step) {
  const Call& call = program().calls[static_cast<std::size_t>(step.call)];
  if (call.binds.empty()) return;
  const std::span<const TensorView> out = plan.at(step.out);
  zones_.open(out);
  const auto* numbers = out[0].as<const std::int64_t>();
  for (std::size_t i = 0; i < call.binds.size(); ++i) {
    const auto symbol = static_cast<std::size_t>(call.binds[i]);
    symbols_[symbol] = -1;
    bind_symbol(symbol, numbers[i], where_of(call), code::value);
  }
  zones_.close(out);
}

void Runner::run_kernels(StagePlan& plan, int stage, std::span<const Step> steps) {
  Region region{};
  region.steps = steps;
  region.plan = &plan;
  region.arena = bases_[static_cast<std::size_t>(stage)];
  region.pool = &ThreadPool::get(together_.threads);
  region.zones = &zones_;
  const auto group = std::find_if(steps.begin(), steps.end(), [](const Step& step) { return step.group >= 0; });
  region.free_group = group == steps.end() ? 0 : group->group;
  if (together_.profile != nullptr) {
    const auto workers = static_cast<std::size_t>(region.pool->threads());
    nanoseconds_.assign(steps.size() * (workers + 1), 0);
    region.nanoseconds = {nanoseconds_.data(), steps.size()};
    region.busy = std::span(nanoseconds_).subspan(steps.size());
  }
  region.run();
  const int failed = region.fault.step.load(std::memory_order_relaxed);
  if (failed != Fault::kNone) {
    const Call& call = program().calls[static_cast<std::size_t>(steps[static_cast<std::size_t>(failed)].call)];
    throw Error(code::value, (call.where.empty() ? "" : call.where + ": ") + region.fault.message);
  }
  if (together_.profile == nullptr) return;
  const std::vector<Region::StepTime> times = region.times();
  for (std::size_t i = 0; i < steps.size(); ++i) record(plan, steps[i], times[i].nanoseconds, times[i].waited);
}

void Runner::record(const StagePlan& plan, const Step& taken, std::uint64_t nanoseconds, std::uint64_t waited) {
  if (taken.whole >= 0) {
    const auto same = [&](const CallProfile& one) { return one.call == taken.call; };
    const auto before = std::find_if(together_.profile->rbegin(), together_.profile->rend(), same);
    if (before != together_.profile->rend()) {
      before->nanoseconds += nanoseconds;
      before->waited += waited;
      return;
    }
  }
  const Step& step = taken.whole < 0 ? taken : plan.wholes[static_cast<std::size_t>(taken.whole)];
  const auto in = plan.at(step.in), out = plan.at(step.out);
  together_.profile->push_back(
      {step.call, nanoseconds, waited, bytes_of(in) + bytes_of(out), {in.begin(), in.end()}, {out.begin(), out.end()}});
}

HostRequest Runner::request(const StagePlan& plan, const Step& step) const {
  const Program& p = program();
  const Call& call = p.calls[static_cast<std::size_t>(step.call)];
  HostRequest made{step.call, call, plan.at(step.in), Json::array(), Json::array()};
  for (std::size_t i = 0; i < made.in.size(); ++i) {
    if (!made.in[i].contiguous()) {
      throw Error(code::program, where_of(call) + ": operand " + std::to_string(i) + ", " + describe(made.in[i]) +
                                     ", is not contiguous, and a host call takes whole arrays");
    }
  }
  for (int result : call.out) {
    Json dims = Json::array();
    for (DimId id : p.buffer(result).shape) {
      const bool known = p.dims.node(id).stage <= call.stage;
      dims.push_back(known ? Json(plan.dims[static_cast<std::size_t>(id)]) : p.dims.json(id));
    }
    made.results.push_back(Json::array({std::string(name_of(p.buffer(result).dtype)), std::move(dims)}));
  }
  for (std::size_t s = 0; s < symbols_.size(); ++s) {
    const Symbol& symbol = p.dims.symbols()[s];
    if (symbol.stage <= call.stage) made.symbols.push_back(Json::array({symbol.name, symbols_[s]}));
  }
  return made;
}

void Runner::run_host(StagePlan& plan, const Step& step) {
  const Call& call = program().calls[static_cast<std::size_t>(step.call)];
  const auto before = std::chrono::steady_clock::now();
  zones_.open(plan.at(step.in));
  std::vector<HostArray> results = together_.host(request(plan, step));
  zones_.close(plan.at(step.in));
  if (results.size() != call.out.size()) {
    throw Error(code::value, where_of(call) + ": the host returned " + std::to_string(results.size()) + " arrays; " +
                                 std::to_string(call.out.size()) + " are needed");
  }
  if (!call.shapes_results()) {
    const std::span<const TensorView> out = plan.at(step.out);
    zones_.open(out);
    for (std::size_t i = 0; i < results.size(); ++i) fill(results[i].view, out[i], call.out[i], &call, i);
    zones_.close(out);
  } else {
    bind_results(call, results);
    pending_ = std::move(results);
  }
  if (together_.profile == nullptr) return;
  const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - before);
  record(plan, step, static_cast<std::uint64_t>(spent.count()));
}

void Runner::bind_results(const Call& call, const std::vector<HostArray>& results) {
  for (int symbol : call.binds) symbols_[static_cast<std::size_t>(symbol)] = -1;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Buffer& buffer = program().buffer(call.out[i]);
    const TensorView& array = results[i].view;
    if (array.rank != static_cast<int>(buffer.shape.size())) {
      throw Error(code::value, where_of(call) + ": result " + std::to_string(i) + " is " + describe(array) + "; " +
                                   program().spec(call.out[i]) + " is needed");
    }
    for (int d = 0; d < array.rank; ++d) {
      const DimNode& node = program().dims.node(buffer.shape[static_cast<std::size_t>(d)]);
      const bool bound_here = node.op == DimOp::symbol && std::find(call.binds.begin(), call.binds.end(),
                                                                    static_cast<int>(node.value)) != call.binds.end();
      if (bound_here && symbols_[static_cast<std::size_t>(node.value)] != array.shape[d]) {
        bind_symbol(static_cast<std::size_t>(node.value), array.shape[d], where_of(call), code::value);
      }
    }
  }
}

}  // namespace ingot
