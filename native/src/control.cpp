// Control calls: which bodies run, how often, and where their operands and results lie.
//
// A body reads its operands where they lie: those of the call, and for what is carried from round to round the call's
// results, which begin as its operands. Its own results are copied there after each round. The arena of a body's first stage is
// in the working memory of the call, whose bodies take turns in it.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "copy_strided.h"
#include "error.h"
#include "runner.h"
#include "tensor.h"

namespace ingot {
namespace {

/// Part `index` of a view along its first dimension.
TensorView part_of(const TensorView& whole, std::int64_t index) {
  TensorView part = whole;
  part.data = whole.as<std::byte>() + index * whole.stride[0] * static_cast<std::int64_t>(size_of(whole.dtype));
  --part.rank;
  std::copy(whole.shape + 1, whole.shape + whole.rank, part.shape);
  std::copy(whole.stride + 1, whole.stride + whole.rank, part.stride);
  return part;
}

/// Parts of equal size, one behind the other, whose number only the run shows.
class Stack {
 public:
  explicit Stack(const TensorView& part) : part_(part) { set_row_major(part_); }

  /// The place of one more.
  TensorView push() {
    const auto bytes = static_cast<std::size_t>(bytes_of(part_));
    if (used_ + bytes > pages_->size()) {
      auto larger = std::make_shared<Pages>(std::max(2 * pages_->size(), used_ + bytes), "the results of a loop's rounds");
      if (used_ != 0) std::memcpy(larger->data(), pages_->data(), used_);
      pages_ = std::move(larger);
    }
    part_.data = pages_->data() + used_;
    used_ += bytes;
    ++count_;
    return part_;
  }

  HostArray whole() const {
    TensorView view = part_;
    view.rank = part_.rank + 1;
    view.shape[0] = count_;
    std::copy(part_.shape, part_.shape + part_.rank, view.shape + 1);
    set_row_major(view);
    view.data = pages_->data();
    return {view, pages_};
  }

 private:
  TensorView part_;
  std::shared_ptr<Pages> pages_ = std::make_shared<Pages>();
  std::size_t used_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace

void Runner::run_control(StagePlan& plan, const Step& step, int stage) {
  const auto before = std::chrono::steady_clock::now();
  std::byte* const arena = bases_[static_cast<std::size_t>(stage)] + plan.shared_offset;
  std::vector<CallProfile>* const profile = std::exchange(together_.profile, nullptr);  // the call's time is its bodies' too
  zones_.open(plan.at(step.in));
  zones_.open(plan.at(step.out));
  try {
    switch (program().calls[static_cast<std::size_t>(step.call)].control) {
      case Control::cond: run_cond(plan, step, arena); break;
      case Control::loop: run_loop(plan, step, arena); break;
      case Control::scan: run_scan(plan, step, arena); break;
      case Control::none: break;
    }
  } catch (...) {
    together_.profile = profile;
    throw;
  }
  together_.profile = profile;
  zones_.close(plan.at(step.in));
  zones_.close(plan.at(step.out));
  if (profile == nullptr) return;
  const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - before);
  record(plan, step, static_cast<std::uint64_t>(spent.count()));
}

Runner& Runner::run_body(StagePlan& plan, const Step& step, std::size_t which, std::byte* arena,
                         std::span<const TensorView> operands) {
  Runner& body = *bodies_[static_cast<std::size_t>(step.call)][which];
  StagePlan& first = plan.bodies[step.bodies + which];
  if (!first.unfit.empty()) throw Error(code::input, first.unfit);
  body.run_planned(first, arena, operands);
  return body;
}

void Runner::run_planned(StagePlan& first, std::byte* arena, std::span<const TensorView> operands) {
  last_ = nullptr;
  pending_.clear();
  symbols_ = first.symbols;
  bases_[0] = arena;
  StagePlan* plan = nullptr;
  for (int stage = 0; stage < program().stages; ++stage) {
    plan = stage == 0 ? &first : &plan_for(stage, plan);
    plan->relocate(bases_);
    plan->hand(operands);
    const auto slot = static_cast<std::size_t>(stage);
    zones_.begin(slot, bases_[slot], stage == 0 ? plan->arena_bytes : arenas_[slot].size());
    if (stage != 0) enter(*plan, stage, {});
    run_stage(*plan, stage);
  }
  last_ = plan;
}

void Runner::take(std::size_t output, const TensorView& to) {
  const std::span<const TensorView> from = outputs().subspan(output, 1);
  zones_.open(from);
  copy_strided(from[0], to);
  zones_.close(from);
}

/// Whether the only output of the last run is true.
bool Runner::holds() {
  std::uint8_t truth = 0;
  TensorView to;
  to.dtype = DType::boolean;
  to.data = &truth;
  take(0, to);
  return truth != 0;
}

void Runner::count_round(const Call& call) {
  if (together_.rounds-- <= 0)
    throw Error(code::value, where_of(call) + ": the loops of this run take more than " + std::to_string(together_.most_rounds) +
                                 " rounds together");
}

void Runner::run_cond(StagePlan& plan, const Step& step, std::byte* arena) {
  const std::span<const TensorView> in = plan.at(step.in), out = plan.at(step.out);
  const std::size_t which = *in[0].as<const std::uint8_t>() != 0 ? 0 : 1;
  Runner& body = run_body(plan, step, which, arena, in.subspan(1));
  for (std::size_t i = 0; i < out.size(); ++i) body.take(i, out[i]);
}

void Runner::run_loop(StagePlan& plan, const Step& step, std::byte* arena) {
  const Call& call = program().calls[static_cast<std::size_t>(step.call)];
  const std::span<const TensorView> in = plan.at(step.in), out = plan.at(step.out);
  std::vector<TensorView> operands(in.begin(), in.end());
  std::vector<HostArray> made;  // results that enter the next stage
  for (std::size_t i = 0; i < call.carried; ++i) {
    if (call.shapes_results()) {
      Stack memory(in[i]);
      operands[i] = memory.push();
      made.push_back({operands[i], memory.whole().owner});
    } else {
      operands[i] = out[i];
    }
    copy_strided(in[i], operands[i]);
  }
  std::vector<Stack> stacks;
  for (std::size_t i = call.carried; i < call.out.size(); ++i)
    stacks.emplace_back(output_of(*call.bodies[1].program, plan.bodies[step.bodies + 1], i));
  for (std::int64_t round = 0; run_body(plan, step, 0, arena, operands).holds(); ++round) {
    if (round == call.limit)
      throw Error(code::value, where_of(call) + ": the condition still holds after " + std::to_string(call.limit) + " rounds");
    count_round(call);
    Runner& body = run_body(plan, step, 1, arena, operands);
    for (std::size_t i = 0; i < call.carried; ++i) body.take(i, operands[i]);
    for (std::size_t i = 0; i < stacks.size(); ++i) body.take(call.carried + i, stacks[i].push());
  }
  if (!call.shapes_results()) return;
  for (const Stack& stack : stacks) made.push_back(stack.whole());
  bind_results(call, made);
  pending_ = std::move(made);
}

void Runner::run_scan(StagePlan& plan, const Step& step, std::byte* arena) {
  const Call& call = program().calls[static_cast<std::size_t>(step.call)];
  const std::span<const TensorView> in = plan.at(step.in), out = plan.at(step.out);
  std::vector<TensorView> operands(in.begin(), in.end());
  for (std::size_t i = 0; i < call.carried; ++i) {
    copy_strided(in[i], out[i]);
    operands[i] = out[i];
  }
  const std::int64_t length = plan.dims[static_cast<std::size_t>(call.length)];
  for (std::int64_t round = 0; round < length; ++round) {
    count_round(call);
    const std::int64_t at = call.reverse ? length - 1 - round : round;
    for (std::size_t i = call.carried; i < call.carried + call.scanned; ++i) operands[i] = part_of(in[i], at);
    Runner& body = run_body(plan, step, 0, arena, operands);
    for (std::size_t i = 0; i < call.carried; ++i) body.take(i, out[i]);
    for (std::size_t i = call.carried; i < out.size(); ++i) body.take(i, part_of(out[i], at));
  }
}

}  // namespace ingot
