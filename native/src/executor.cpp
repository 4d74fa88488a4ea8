// The inside of a parallel region.
#include "executor.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "micro_batches.h"

namespace ingot {
namespace {

/// A worker that knows its step, so that a report can say where.
struct RegionWorker final : Worker {
  int step = 0;
};

/// A step's views as one of the workers has them.
class OwnViews {
 public:
  void take(const StagePlan& plan, const Step& step, int worker) {
    in_ = plan.at(step.in, worker, views_);
    out_ = plan.at(step.out, worker, views_ + step.in.count);
  }
  std::span<const TensorView> in() const { return in_; }
  std::span<const TensorView> out() const { return out_; }

 private:
  TensorView views_[kMostOfGroup];
  std::span<const TensorView> in_, out_;
};

std::uint64_t now() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

}  // namespace

void Worker::barrier() const {
  if (count > 1) static_cast<Region*>(region)->pool->barrier().wait();
}

void Worker::fail(const char* what, std::int64_t value, std::int64_t limit, std::int64_t element) const {
  char place[32] = "", message[sizeof Fault::message];
  if (element >= 0) std::snprintf(place, sizeof place, " at element %lld", static_cast<long long>(element));
  std::snprintf(message, sizeof message, "%s (%lld%s, limit %lld)", what, static_cast<long long>(value), place,
                static_cast<long long>(limit));
  fail(message);
}

void Worker::fail(const char* what) const {
  Fault& fault = static_cast<Region*>(region)->fault;
  int none = Fault::kNone;
  if (!fault.step.compare_exchange_strong(none, static_cast<const RegionWorker*>(this)->step,
                                          std::memory_order_acq_rel))
    return;
  std::snprintf(fault.message, sizeof fault.message, "%s", what);
}

void Region::run() {
  pool->run([this](int worker) { work(*this, worker); });
}

std::vector<Region::StepTime> Region::times() const {
  std::vector<StepTime> found(steps.size());
  const std::size_t workers = busy.size() / steps.size();
  std::uint64_t passed = 0, worked = 0;  // in steps of groups since workers met: of the first worker, and of all in the mean
  for (std::size_t i = 0; i < steps.size(); ++i) {
    std::uint64_t longest = 0, sum = 0;
    for (std::size_t worker = 0; worker < workers; ++worker) {
      const std::uint64_t spent = busy[worker * steps.size() + i];
      longest = std::max(longest, spent), sum += spent;
    }
    std::uint64_t taken = nanoseconds[i], rest = taken - std::min(taken, longest);
    if (steps[i].group >= 0) {
      passed += taken, worked += sum / workers;
      taken = sum / workers, rest = 0;
      if (steps[i].meets || i + 1 == steps.size()) {
        rest = passed - std::min(passed, worked);
        taken += rest;
        passed = worked = 0;
      }
    }
    found[i] = {taken, workers == 1 ? 0 : rest};  // one meets nobody
  }
  return found;
}

/// Whether a worker that comes to a step of a group runs it; `group` is the last one that it took, which may come later. Groups are taken in
/// their order, so one that it is beyond has been taken. Red zones are around the memory of the one that they name.
bool Region::takes(const Step& step, int worker, int& group) {
  if constexpr (kRedZones) return worker == zoned_worker(step.group, pool->threads());
  if (group < step.group) group = free_group.fetch_add(1, std::memory_order_relaxed);
  return group == step.group;
}

void Region::work(Region& region, int index) {
  const StagePlan& plan = *region.plan;
  std::byte* const own = region.arena + plan.local_offset + plan.local_bytes * static_cast<std::uint64_t>(index);
  RegionWorker together, alone;
  together.index = index;
  together.count = region.pool->threads();
  together.shared = region.arena + plan.shared_offset;
  together.local = own;
  together.region = alone.region = &region;
  alone.shared = own;
  OwnViews views;
  int group = -1;  // the last one that it took
  const bool profiling = !region.nanoseconds.empty();
  if (profiling) together.barrier();  // waking the workers is no part of the first call
  std::uint64_t before = profiling ? now() : 0;
  for (int i = 0; i < static_cast<int>(region.steps.size()); ++i) {
    const Step& step = region.steps[static_cast<std::size_t>(i)];
    if constexpr (kRedZones) {
      if (index == 0) region.zones->begin_step(plan, step, region.arena, together.count);
      together.barrier();
    }
    if (step.group < 0) {
      together.step = i;
      step.kernel->run(plan.at(step.in), plan.at(step.out), together);
    } else if (region.takes(step, index, group)) {
      alone.step = i;
      alone.local = own + step.shared;
      views.take(plan, step, index);
      step.kernel->run(views.in(), views.out(), alone);
    }
    const std::uint64_t done = profiling ? now() : 0;
    if (step.meets || kRedZones) together.barrier();
    if constexpr (kRedZones) {
      if (index == 0) region.zones->end_step(plan, step, region.arena, together.count);
    }
    if (profiling) {
      const std::uint64_t after = now();
      if (index == 0) region.nanoseconds[static_cast<std::size_t>(i)] = after - before;
      region.busy[static_cast<std::size_t>(index) * region.steps.size() + static_cast<std::size_t>(i)] = done - before;
      before = after;
    }
    // A worker that is ahead may report a fault of a later step before this one looks: all stop where they meet.
    if (step.meets && region.fault.step.load(std::memory_order_acquire) <= i) break;
  }
}

}  // namespace ingot
