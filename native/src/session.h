// A session: one arena, one set of states, one run at a time.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine.h"
#include "runner.h"
#include "states.h"

namespace ingot {

struct SessionOptions {
  int threads = 0;  // 0: default_threads()
  CacheOptions cache;
  std::int64_t rounds = kMostRounds;  // of all loops of a run together: more are an error
};

struct MemoryReport {
  std::uint64_t weights = 0;            // bytes of the tensors that the program uses
  std::uint64_t arena = 0;              // allocated for buffers and working memory
  std::uint64_t arena_lower_bound = 0;  // of the last run: what was alive at once, at most
  std::uint64_t state = 0;
};

/// What a run of given sizes takes, in bytes.
struct PlannedMemory {
  std::uint64_t buffers = 0;      // for what calls hand to each other
  std::uint64_t lower_bound = 0;  // what of that is alive at once, at most: no layout needs less
  std::uint64_t working = 0;      // what kernels need beside it, over all threads
  std::uint64_t arena = 0;        // all of it, aligned
  int most_at = 0;                // the first call at which the most is alive
};

class Session {
 public:
  /// Throws Error("argument") for options that cannot be and for host calls without a host, and what Engine::load
  /// throws.
  Session(std::shared_ptr<const Engine> engine, const std::string& entry, const SessionOptions& options, Host host);

  const Program& program() const noexcept { return *loaded_.program; }
  int threads() const noexcept { return threads_; }
  MemoryReport memory() const;

  /// What a run would take, without running. `symbols`: a value for each. Throws Error("argument") for a program that
  /// binds symbols while it runs, or when one has no value, and what make_plan throws.
  PlannedMemory planned(const std::map<std::string, std::int64_t>& symbols) const;

  /// One run: taking it marks the session as running, dropping it ends that. Its results are read in between.
  class Run {
   public:
    /// Throws Error("busy") when a run is in flight.
    explicit Run(Session& session);
    ~Run() { session_.running_.clear(std::memory_order_release); }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    /// As Runner::run.
    void execute(std::span<const TensorView> arrays, const Results& results = nullptr);
    /// The program's outputs, in order; possibly strided.
    std::span<const TensorView> outputs() const;

   private:
    Session& session_;
  };

  /// Runs once and measures every call.
  std::vector<CallProfile> profile(std::span<const TensorView> arrays);

 private:
  std::shared_ptr<const Engine> engine_;
  const LoadedProgram& loaded_;
  int threads_;
  std::atomic_flag running_ = ATOMIC_FLAG_INIT;

  States states_;
  Together together_;
  Runner runner_;
};

}  // namespace ingot
