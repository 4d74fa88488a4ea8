// Where each buffer of a stage lies in the arena. When a buffer lives does not depend on shapes and is found once per
// program. Its place is found once per set of shapes, by best fit over the buffers in the order in which they are made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program.h"
#include "red_zone.h"

namespace ingot {

constexpr std::uint64_t kArenaAlignment = 64;

/// The room that so many bytes take in an arena: aligned, and with the red zone behind them in builds that have any.
constexpr std::uint64_t align_up(std::uint64_t bytes) {
  return bytes == 0 ? 0 : (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment + kRedZone;
}

/// From the start of which call to the end of which call a buffer's memory is its own. Calls are counted over the
/// program; `first` is one less than the stage's first call for what is there before it (inputs, results that bind
/// symbols).
struct Lifetime {
  int buffer;
  int first;
  int last;
};

/// One buffer comes to life or dies, at a call.
struct LifetimeEvent {
  int buffer;
  bool begins;
  int call;
};

struct Stage {
  int first_call = 0;
  int end_call = 0;                   // one behind the last
  std::vector<Lifetime> lifetimes;    // of the inputs and temps that belong to the stage
};

/// The lives of buffers in the order in which they begin and end.
std::vector<LifetimeEvent> events_of(std::span<const Lifetime> lifetimes, int first_call);

/// Splits a verified program into its stages and finds every lifetime.
std::vector<Stage> find_stages(const Program& program);

struct Layout {
  std::uint64_t bytes = 0;        // the arena
  std::uint64_t lower_bound = 0;  // the most that is alive at once: no layout can do with less
  int most_at = 0;                // the first call at which that much is alive
};

/// Places a stage's buffers. `bytes` and `offsets` are indexed by buffer; only those of the stage are read and written.
Layout place_buffers(std::span<const LifetimeEvent> events, std::span<const std::uint64_t> bytes, std::span<std::uint64_t> offsets);

}  // namespace ingot
