// A session: one arena, one set of states, one run at a time.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine.h"
#include "executor.h"
#include "memory.h"
#include "plan.h"
#include "red_zone.h"
#include "states.h"

namespace ingot {

/// An array that a host call returned; `owner` keeps its memory until the session has copied it.
struct HostArray {
  TensorView view;
  std::shared_ptr<void> owner;
};

/// A host call as it stands in a run. `results`: what the program declares of them, [[dtype, [dims]], …], with numbers
/// for the dims that are known by then. `symbols`: the values so far, [[name, value], …].
struct HostRequest {
  int call;  // its place in the program
  const Call& what;
  std::span<const TensorView> in;
  Json results, symbols;
};

/// Carries out a host call: its results out. Exceptions pass through the run.
using Host = std::function<std::vector<HostArray>(const HostRequest& request)>;

struct SessionOptions {
  int threads = 0;  // 0: default_threads()
  CacheOptions cache;
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
};

struct CallProfile {
  int call;
  std::uint64_t nanoseconds;
  std::uint64_t bytes;              // of its operands and results, an element that is broadcast counted once
  std::vector<TensorView> in, out;  // what they are; where they lie is of no use after the run
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

    /// `arrays` in the order of program().inputs; they are copied before anything runs. Throws Error("input") for
    /// arrays that do not fit, Error("value") for faults in values, and what make_plan throws.
    void execute(std::span<const TensorView> arrays);
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
  Host host_;
  int threads_;
  std::atomic_flag running_ = ATOMIC_FLAG_INIT;

  States states_;
  std::vector<Pages> arenas_;                                   // by stage
  std::vector<std::byte*> bases_;                               // theirs
  RedZones zones_;
  std::vector<std::vector<std::unique_ptr<StagePlan>>> plans_;  // by stage, most recently used first
  std::vector<std::int64_t> symbols_;
  std::vector<HostArray> pending_;  // results of the host call that ended the last stage
  StagePlan* last_ = nullptr;       // the plan of the last stage that ran
  std::uint64_t lower_bound_ = 0;
  std::vector<CallProfile>* profile_ = nullptr;
  std::vector<std::uint64_t> nanoseconds_;

  void bind_inputs(std::span<const TensorView> arrays);
  std::int64_t solve(const Binding& binding, const TensorView& array) const;
  void bind_symbol(std::size_t symbol, std::int64_t value, const std::string& who, const char* error_code);
  void enter(const StagePlan& plan, int stage, std::span<const TensorView> arrays);
  /// Copies an input, or with `call` one of its results, into its buffer; throws when it does not fit.
  void fill(const TensorView& from, const TensorView& to, int buffer, const Call* call, std::size_t index) const;
  StagePlan& plan_for(int stage, const StagePlan* before);
  void run_stage(StagePlan& plan, int stage);
  void run_kernels(StagePlan& plan, int stage, std::span<const Step> steps);
  void run_host(StagePlan& plan, const Step& step);
  HostRequest request(const StagePlan& plan, const Step& step) const;
  void record(const StagePlan& plan, const Step& step, std::uint64_t nanoseconds);
  void bind_results(const Call& call, const std::vector<HostArray>& results);
  /// Binds the symbols of the kernel that ended a stage.
  void bind_numbers(const StagePlan& plan, const Step& step);
};

/// "int32[5, 2]", for messages.
std::string describe(const TensorView& view);

}  // namespace ingot
