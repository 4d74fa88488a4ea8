// Runs steps of a plan in one parallel region: every worker goes through the steps of all together, with a barrier after each, and
// through those of groups of images, each of which it takes or leaves to others, with one barrier behind them all. A worker that others
// slow down, or whose core is slower, takes fewer of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan.h"
#include "red_zone.h"
#include "thread_pool.h"

namespace ingot {

/// What values made impossible: the step at which it was found and the first report.
struct Fault {
  static constexpr int kNone = INT32_MAX;
  std::atomic<int> step{kNone};
  char message[256] = {};
};

/// One run of consecutive kernel steps.
struct Region {
  std::span<const Step> steps;
  const StagePlan* plan;
  std::byte* arena;
  ThreadPool* pool;
  std::span<std::uint64_t> nanoseconds;  // by step, as the first worker knows them, when profiling; else empty
  std::span<std::uint64_t> busy;         // by worker and step, until the worker was done with it
  RedZones* zones;
  std::atomic<int> free_group{0};  // the first one that no worker has taken
  Fault fault;

  /// Returns when every worker is done; `fault.step` then says whether all steps ran.
  void run();
  /// What a step took of the region's time, and of that what workers that met waited for one another.
  struct StepTime {
    std::uint64_t nanoseconds, waited;
  };
  /// By step, of a profiled run; together they are the region's time. Whoever is free runs a step of a group while others
  /// run other ones: it takes what all workers spent on it over their number, and the last before they meet the rest.
  std::vector<StepTime> times() const;

 private:
  bool takes(const Step& step, int worker, int& group);
  static void work(Region& region, int worker);
};

}  // namespace ingot
