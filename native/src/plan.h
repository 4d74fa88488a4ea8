// One stage of a program for one set of symbol values: every operand placed, every kernel's working memory known. A
// session makes it once per set and keeps it; running it allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine.h"
#include "kernel.h"

namespace ingot {

/// Operands of a plan: a range of its `views`.
struct ViewRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct Step {
  int call = 0;
  const Kernel* kernel = nullptr;  // null: a host call or a control call
  ViewRange in, out;
  std::uint32_t bodies = 0;  // of a control call: its first one in StagePlan::bodies
  int whole = -1;            // of a step for some images of a batch: what it is a part of, in StagePlan::wholes
  int group = -1;            // of images that one worker runs alone, whichever comes first, counted upwards; -1: all together
  bool meets = true;         // whether all workers meet behind it
  std::uint64_t shared = 0;  // of a group: bytes at the front of the worker's working memory that stand for what workers share
};

/// A view whose memory is known only by the run: on which base it lies, and where. Bases are the arenas by stage, then the memory of
/// each input, then that of each output.
struct Relocation {
  std::uint32_t view;
  std::uint32_t base;
  std::uint64_t offset;  // in bytes
};

/// A view of a body's input, whose memory is in one of the operands that a call gives it.
struct Handed {
  std::uint32_t view;
  std::uint32_t input;   // in the order of Program::inputs
  std::uint64_t offset;  // in bytes
};

struct StagePlan {
  std::vector<std::int64_t> symbols;   // the values bound so far: the key; those of later stages are 0
  std::vector<std::int64_t> dims;      // by node of the program's table
  std::vector<std::uint64_t> bytes;    // by buffer
  std::vector<std::uint64_t> offsets;  // by buffer, of this and earlier stages
  std::vector<TensorView> views;       // as the first worker has them
  std::vector<std::uint64_t> apart;    // by view: bytes from one worker's memory to the next one's, of what a group hands on
  std::vector<Relocation> relocations;  // by base
  std::vector<Step> steps;
  std::vector<Step> wholes;  // calls that run in several steps, each for some images; their views have no memory
  std::vector<Handed> handed;     // of a body
  std::vector<StagePlan> bodies;  // the first stage of each body of each control call; their arenas lie in the working memory
  ViewRange entering;  // stage 0: the inputs; later: the results of the call that ended the stage before, if a host call
  ViewRange leaving;   // last stage: the program's outputs
  std::vector<std::uint8_t> movable;  // last stage: by output, whether it is a whole buffer of the stage, and can lie elsewhere
  Layout layout;
  std::uint64_t shared_offset = 0;  // working memory, behind the buffers in the arena
  std::uint64_t local_offset = 0;
  std::uint64_t local_bytes = 0;  // of one worker
  std::uint64_t arena_bytes = 0;  // all of it
  std::vector<std::byte*> bases;  // that the views point into now
  std::string unfit;  // why sizes do not fit, of a branch that may not run; there is nothing else then

  std::span<const TensorView> at(ViewRange range) const { return {views.data() + range.first, range.count}; }
  /// The same as one of the workers has them, in `room` for as many unless it is the first one.
  std::span<const TensorView> at(ViewRange range, int worker, TensorView* room) const;
  /// Points the views into bases that may have moved since; cheap when they have not.
  void relocate(std::span<std::byte* const> moved);
  /// Points the views of a body's inputs to operands.
  void hand(std::span<const TensorView> operands);
};

/// A state of a session: its memory and shape.
struct StateView {
  int buffer;
  TensorView view;
};

struct PlanRequest {
  const LoadedProgram& loaded;
  int stage;
  int threads;
  std::span<const std::int64_t> symbols;  // by symbol; those bound later are 0
  const StagePlan* before;                // of the stage before; null for stage 0
  std::span<const StateView> states;
};

/// Of the plans of a program.
std::size_t number_of_bases(const LoadedProgram& loaded);

/// How much of a plan is wanted: where buffers lie, or also the operands and what the kernels say.
enum class PlanParts : std::uint8_t { layout, all };

/// Dtype and shape of an output of a body, which no later stage of it changes.
TensorView output_of(const Program& body, const StagePlan& plan, std::size_t index);

/// Plans the bodies of the stage's control calls too, so that their memory is in the arena. Throws Error("input") for
/// dimensions that cannot be and operands that do not fit a body (but a branch: see StagePlan::unfit), Error("program") for
/// views out of bounds or parts that do not make up their buffer, Error("kernel_refused"), Error("memory").
StagePlan make_plan(const PlanRequest& request, PlanParts parts = PlanParts::all);

}  // namespace ingot
