// Lifetimes, and best fit with coalescing.
#include "layout.h"

#include <algorithm>

namespace ingot {
namespace {

/// The free gaps of an arena, sorted by offset and never adjacent.
class BestFit {
 public:
  std::uint64_t top() const noexcept { return top_; }

  std::uint64_t take(std::uint64_t bytes) {
    auto best = gaps_.end();
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      if (gap->bytes >= bytes && (best == gaps_.end() || gap->bytes < best->bytes)) best = gap;
    }
    if (best == gaps_.end()) return extend(bytes);
    const std::uint64_t offset = best->offset;
    best->offset += bytes;
    best->bytes -= bytes;
    if (best->bytes == 0) gaps_.erase(best);
    return offset;
  }

  void give(std::uint64_t offset, std::uint64_t bytes) {
    const auto next = std::find_if(gaps_.begin(), gaps_.end(), [&](const Gap& gap) { return gap.offset > offset; });
    const bool joins_next = next != gaps_.end() && offset + bytes == next->offset;
    const bool joins_previous = next != gaps_.begin() && (next - 1)->offset + (next - 1)->bytes == offset;
    if (joins_previous && joins_next) {
      (next - 1)->bytes += bytes + next->bytes;
      gaps_.erase(next);
    } else if (joins_previous) {
      (next - 1)->bytes += bytes;
    } else if (joins_next) {
      next->offset = offset;
      next->bytes += bytes;
    } else {
      gaps_.insert(next, {offset, bytes});
    }
  }

 private:
  struct Gap {
    std::uint64_t offset, bytes;
  };
  std::vector<Gap> gaps_;
  std::uint64_t top_ = 0;

  /// Grows the arena; a gap at its end is used as a part.
  std::uint64_t extend(std::uint64_t bytes) {
    std::uint64_t offset = top_;
    if (!gaps_.empty() && gaps_.back().offset + gaps_.back().bytes == top_) {
      offset = gaps_.back().offset;
      gaps_.pop_back();
    }
    top_ = offset + bytes;
    return offset;
  }
};

}  // namespace

std::vector<Stage> find_stages(const Program& program) {
  const int calls = static_cast<int>(program.calls.size());
  std::vector<Stage> stages(static_cast<std::size_t>(program.stages));
  for (Stage& stage : stages) stage.first_call = calls;
  for (int c = calls - 1; c >= 0; --c)
    stages[static_cast<std::size_t>(program.calls[static_cast<std::size_t>(c)].stage)].first_call = c;
  for (std::size_t s = 0; s < stages.size(); ++s)
    stages[s].end_call = s + 1 < stages.size() ? stages[s + 1].first_call : calls;

  constexpr int kNever = -2;
  std::vector<int> first(program.buffers.size(), kNever), last(program.buffers.size(), kNever);
  const auto slot = [](int buffer) { return static_cast<std::size_t>(buffer); };
  for (int input : program.inputs)  // those of a body lie elsewhere
    if (!program.is_body) first[slot(input)] = last[slot(input)] = -1;
  for (int c = 0; c < calls; ++c) {
    const Call& call = program.calls[slot(c)];
    for (int operand : call.in) last[slot(program.base(operand))] = c;
    for (int result : call.out) {
      const int base = program.base(result);
      if (first[slot(base)] == kNever) first[slot(base)] = c;
      last[slot(base)] = std::max(last[slot(base)], c);
    }
  }
  for (const Output& output : program.outputs) last[slot(program.base(output.buffer))] = calls;

  for (std::size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if ((buffer.kind != BufferKind::input && buffer.kind != BufferKind::temp) || first[b] == kNever) continue;
    Stage& stage = stages[slot(buffer.stage)];
    // What is used in later stages lives to the end of its own, whose arena stays as it is.
    stage.lifetimes.push_back(
        {static_cast<int>(b), std::max(first[b], stage.first_call - 1), std::min(last[b], stage.end_call)});
  }
  return stages;
}

std::vector<LifetimeEvent> events_of(std::span<const Lifetime> lifetimes, int first_call) {
  std::vector<std::pair<int, LifetimeEvent>> timed;  // 2 * call, and one more for a death
  for (const Lifetime& life : lifetimes) {
    // All that is there before the first call is filled before any of it is read.
    const int last = std::max(life.last, first_call);
    timed.push_back({2 * life.first, {life.buffer, true, std::max(life.first, first_call)}});
    timed.push_back({2 * last + 1, {life.buffer, false, last}});
  }
  std::stable_sort(timed.begin(), timed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<LifetimeEvent> events;
  events.reserve(timed.size());
  for (const auto& [time, event] : timed) events.push_back(event);
  return events;
}

Layout place_buffers(std::span<const LifetimeEvent> events, std::span<const std::uint64_t> bytes, std::span<std::uint64_t> offsets) {
  BestFit arena;
  Layout layout;
  std::uint64_t alive = 0;
  for (const LifetimeEvent& event : events) {
    const auto b = static_cast<std::size_t>(event.buffer);
    const std::uint64_t size = align_up(bytes[b]);
    if (event.begins) {
      offsets[b] = size == 0 ? 0 : arena.take(size);
      alive += size;
      if (alive > layout.lower_bound) {
        layout.lower_bound = alive;
        layout.most_at = event.call;
      }
    } else if (size != 0) {
      arena.give(offsets[b], size);
      alive -= size;
    }
  }
  layout.bytes = arena.top();
  return layout;
}

}  // namespace ingot
