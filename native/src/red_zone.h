// Red zones: in builds with INGOT_RED_ZONES (every sanitizer build), memory that a call has no business with is closed
// while it runs. So one element too many is reported where it is read or written.
//
// All buffers of a stage share one mapping, in which the address sanitizer sees no borders of its own. Here every
// buffer, every worker's scratch and every mapping has a zone behind it. Around each call the whole arena is closed but
// for what the call was given: its operands from their first to their last element, and as much scratch as it asked
// for. Behind each call everything that it was not to write is compared with what was there before, which finds the
// stores that the sanitizer does not see (masked vectors, tiles). At the start of a run the arena is filled with a byte
// of the driver's choice, so that results which depend on memory that nobody wrote differ between runs.
//
// In all other builds this is empty: kRedZone is 0 and every function does nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel.h"

namespace ingot {

struct StagePlan;
struct Step;

#ifdef INGOT_RED_ZONES
constexpr bool kRedZones = true;
constexpr std::uint64_t kRedZone = 1024;  // bytes; a multiple of 64

/// What arenas are filled with before a run.
inline std::byte red_zone_fill{0xff};

void close_memory(const void* data, std::size_t bytes) noexcept;
void open_memory(const void* data, std::size_t bytes) noexcept;
#else
constexpr bool kRedZones = false;
constexpr std::uint64_t kRedZone = 0;

inline void close_memory(const void*, std::size_t) noexcept {}
inline void open_memory(const void*, std::size_t) noexcept {}
#endif

/// The worker that runs a step of a group where there are red zones: as many groups for each, so that the memory of all of them is looked at.
constexpr int zoned_worker(int group, int workers) { return group % workers; }

/// The arenas of a session and what of them is open. Ends the process when a call wrote where it was not to.
class RedZones {
 public:
#ifdef INGOT_RED_ZONES
  /// A stage begins: its arena is filled and closed.
  void begin(std::size_t stage, std::byte* arena, std::size_t bytes);
  /// The session itself reads or writes these.
  void open(std::span<const TensorView> views);
  void close(std::span<const TensorView> views);
  /// Around one call, by one worker while the others wait. That of a group of images is given the memory of zoned_worker().
  void begin_step(const StagePlan& plan, const Step& step, std::byte* arena, int workers);
  void end_step(const StagePlan& plan, const Step& step, std::byte* arena, int workers);

 private:
  struct Block {
    std::byte* data;
    std::size_t bytes;  // that the call asked for
    std::size_t all;
  };
  std::vector<std::span<std::byte>> arenas_;  // by stage
  std::vector<std::byte> before_;  // the buffers of the stage as the step found them
  std::vector<Block> blocks_;      // working memory of the step
  std::vector<TensorView> room_;
  std::span<const TensorView> in_, out_;  // its operands and results

  bool holds(const std::byte* data) const;
#else
  void begin(std::size_t, std::byte*, std::size_t) {}
  void open(std::span<const TensorView>) {}
  void close(std::span<const TensorView>) {}
  void begin_step(const StagePlan&, const Step&, std::byte*, int) {}
  void end_step(const StagePlan&, const Step&, std::byte*, int) {}
#endif
};

}  // namespace ingot
