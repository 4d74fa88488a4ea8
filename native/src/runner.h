// Running one program: its stages, their plans and arenas, and through runners of their own the bodies of its control calls.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine.h"
#include "executor.h"
#include "memory.h"
#include "plan.h"
#include "red_zone.h"

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

struct CallProfile {
  int call;
  std::uint64_t nanoseconds;
  std::uint64_t waited;             // of these: for workers that were late, and for the meeting itself
  std::uint64_t bytes;              // of its operands and results, an element that is broadcast counted once
  std::vector<TensorView> in, out;  // what they are; where they lie is of no use after the run
};

/// Where an output of that shape shall be written, when the run does not fail: memory that nothing else in the run uses; or null, and
/// it stays with the session, to be copied. Exceptions pass through the run.
using Results = std::function<std::byte*(std::size_t output, const TensorView& view)>;

constexpr std::int64_t kMostRounds = std::int64_t{1} << 28;

/// What a program and all bodies in it have in common while they run.
struct Together {
  Host host;
  int threads = 1;
  std::span<const StateView> states;
  std::vector<CallProfile>* profile = nullptr;
  std::int64_t most_rounds = kMostRounds;  // of all loops of a run
  std::int64_t rounds = 0;                 // that the run may still take
};

class Runner {
 public:
  /// Makes runners for the bodies too.
  Runner(const LoadedProgram& loaded, Together& together);

  const Program& program() const noexcept { return *loaded_.program; }
  /// Of its arenas, and those of its bodies that are not within one of them.
  std::uint64_t arena_bytes() const;
  /// Of the last run: what was alive at once, at most.
  std::uint64_t lower_bound() const noexcept { return lower_bound_; }
  /// The outputs of the last run, in order; possibly strided.
  std::span<const TensorView> outputs() const { return last_->at(last_->leaving); }

  /// A run of the whole program. `arrays` in the order of program().inputs. Large floats without gaps are read where they lie, and
  /// nobody may write them meanwhile; all others are copied before anything runs. `results` is asked for large outputs only.
  /// Throws Error("input") for arrays that do not fit, Error("value") for faults in values, and what make_plan throws.
  void run(std::span<const TensorView> arrays, const Results& results = nullptr);

 private:
  const LoadedProgram& loaded_;
  Together& together_;
  std::vector<std::vector<std::unique_ptr<Runner>>> bodies_;    // by call
  std::vector<Pages> arenas_;                                   // by stage; a body's first stage has none
  std::vector<std::byte*> bases_;                               // of the views of plans; see Relocation
  RedZones zones_;
  std::vector<std::vector<std::unique_ptr<StagePlan>>> plans_;  // by stage, most recently used first
  std::vector<std::int64_t> symbols_;
  std::vector<HostArray> pending_;  // results of the call that ended the last stage
  StagePlan* last_ = nullptr;       // the plan of the last stage that ran
  std::uint64_t lower_bound_ = 0;
  std::vector<std::uint64_t> nanoseconds_;  // of a profiled run of kernels: see Region

  void bind_inputs(std::span<const TensorView> arrays);
  std::int64_t solve(const Binding& binding, const TensorView& array) const;
  void bind_symbol(std::size_t symbol, std::int64_t value, const std::string& who, const char* error_code);
  /// Where inputs lie, and outputs.
  void place_inputs(const StagePlan& plan, std::span<const TensorView> arrays);
  bool stays(const TensorView& array, int input) const;
  void place_outputs(const StagePlan& plan, const Results& results);
  void enter(const StagePlan& plan, int stage, std::span<const TensorView> arrays);
  /// Copies an input, or with `call` one of its results, into its buffer unless it lies there; throws when it does not fit.
  void fill(const TensorView& from, const TensorView& to, int buffer, const Call* call, std::size_t index) const;
  StagePlan& plan_for(int stage, const StagePlan* before);
  void run_stage(StagePlan& plan, int stage);
  void run_kernels(StagePlan& plan, int stage, std::span<const Step> steps);
  void run_host(StagePlan& plan, const Step& step);
  HostRequest request(const StagePlan& plan, const Step& step) const;
  /// Steps for the images of one batch are one call of the profile.
  void record(const StagePlan& plan, const Step& taken, std::uint64_t nanoseconds, std::uint64_t waited = 0);
  void bind_results(const Call& call, const std::vector<HostArray>& results);
  /// Binds the symbols of the kernel that ended a stage.
  void bind_numbers(const StagePlan& plan, const Step& step);

  // ---- control.cpp
  void run_control(StagePlan& plan, const Step& step, int stage);
  void run_cond(StagePlan& plan, const Step& step, std::byte* arena);
  void run_loop(StagePlan& plan, const Step& step, std::byte* arena);
  void run_scan(StagePlan& plan, const Step& step, std::byte* arena);
  /// One run of a body, whose first stage is planned and has its arena, on operands that stay where they are.
  Runner& run_body(StagePlan& plan, const Step& step, std::size_t which, std::byte* arena,
                   std::span<const TensorView> operands);
  void run_planned(StagePlan& first, std::byte* arena, std::span<const TensorView> operands);
  /// Copies an output of the last run.
  void take(std::size_t output, const TensorView& to);
  bool holds();
  void count_round(const Call& call);
};

/// The place of a call, for messages: "model.layer: relu".
std::string where_of(const Call& call);

}  // namespace ingot
