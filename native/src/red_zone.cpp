// Closing and opening memory, and looking for stray writes. Empty without INGOT_RED_ZONES.
#include "red_zone.h"

#ifdef INGOT_RED_ZONES

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "layout.h"
#include "plan.h"

namespace ingot {
namespace {

constexpr std::byte kCanary{0x5c};

/// The bytes of a view from its first to its last element; none for an empty one.
std::span<std::byte> hull(const TensorView& view) {
  if (view.elements() == 0 || view.data == nullptr) return {};
  std::int64_t low = 0, high = 1;
  for (int i = 0; i < view.rank; ++i) {
    const std::int64_t reach = (view.shape[i] - 1) * view.stride[i];
    (reach < 0 ? low : high) += reach;
  }
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  return {view.as<std::byte>() + low * size, static_cast<std::size_t>((high - low) * size)};
}

/// Calls use(at, bytes) for all elements, those of a line that lie side by side at once.
template <class Use>
void each_line(const TensorView& view, int dim, std::byte* at, const Use& use) {
  const std::size_t size = size_of(view.dtype);
  if (dim == view.rank) return use(at, size);
  if (dim == view.rank - 1 && view.stride[dim] == 1) return use(at, static_cast<std::size_t>(view.shape[dim]) * size);
  const auto step = view.stride[dim] * static_cast<std::int64_t>(size);
  for (std::int64_t i = 0; i < view.shape[dim]; ++i, at += step) each_line(view, dim + 1, at, use);
}

// A loop over bytes that a sanitizer checks one by one takes 1 to 2.6 ns for each, memcmp a fiftieth of that.

/// The first of the bytes that differs from those at `other`, or null.
const std::byte* first_changed(std::span<const std::byte> bytes, const std::byte* other) {
  if (bytes.empty() || std::memcmp(bytes.data(), other, bytes.size()) == 0) return nullptr;
  return &*std::mismatch(bytes.begin(), bytes.end(), other).first;
}

/// The first of the bytes that is not `value`, or null.
const std::byte* first_other(std::span<const std::byte> bytes, std::byte value) {
  if (bytes.empty()) return nullptr;
  if (bytes.front() == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0) return nullptr;
  return &*std::find_if(bytes.begin(), bytes.end(), [&](std::byte found) { return found != value; });
}

[[noreturn]] void report(const Step& step, const char* where, std::size_t offset) {
  std::fprintf(stderr, "ingot: red zones: call %d wrote outside its outputs: %s, byte %zu\n", step.call, where, offset);
  std::abort();
}

}  // namespace

void close_memory([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t bytes) noexcept {
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(data, bytes);
#endif
}

void open_memory([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t bytes) noexcept {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(data, bytes);
#endif
}

bool RedZones::holds(const std::byte* data) const {
  return std::any_of(arenas_.begin(), arenas_.end(), [&](std::span<std::byte> arena) {
    return data >= arena.data() && data < arena.data() + arena.size();
  });
}

void RedZones::begin(std::size_t stage, std::byte* arena, std::size_t bytes) {
  arenas_.resize(std::max(arenas_.size(), stage + 1));
  arenas_[stage] = {arena, bytes};
  open_memory(arena, bytes);
  std::memset(arena, static_cast<int>(red_zone_fill), bytes);
  close_memory(arena, bytes);
}

void RedZones::open(std::span<const TensorView> views) {
  for (const TensorView& view : views) {
    const std::span<std::byte> bytes = hull(view);
    if (!bytes.empty() && holds(bytes.data())) open_memory(bytes.data(), bytes.size());
  }
}

void RedZones::close(std::span<const TensorView> views) {
  for (const TensorView& view : views) {
    const std::span<std::byte> bytes = hull(view);
    if (bytes.empty() || !holds(bytes.data())) continue;
    // Opening a part of 8 bytes opens what is before it in them.
    const std::size_t before = reinterpret_cast<std::uintptr_t>(bytes.data()) % 8;
    close_memory(bytes.data() - before, bytes.size() + before);
  }
}

void RedZones::begin_step(const StagePlan& plan, const Step& step, std::byte* arena, int workers) {
  const bool alone = step.group >= 0;
  const int runner = alone ? zoned_worker(step.group, workers) : 0;
  room_.resize(step.in.count + step.out.count);
  in_ = plan.at(step.in, runner, room_.data());
  out_ = plan.at(step.out, runner, room_.data() + step.in.count);
  const Scratch scratch = step.kernel->plan(in_, out_, alone ? 1 : workers);
  open_memory(arena, plan.arena_bytes);
  before_.assign(arena, arena + plan.shared_offset);
  blocks_.assign(1, {arena + plan.shared_offset, alone ? 0 : scratch.shared, plan.local_offset - plan.shared_offset});
  for (int i = 0; i < workers; ++i) {
    std::byte* const own = arena + plan.local_offset + plan.local_bytes * static_cast<std::uint64_t>(i);
    const bool works = !alone || i == runner;
    const std::uint64_t before = alone && works ? step.shared : 0;
    if (before != 0) blocks_.push_back({own, scratch.shared, step.shared});
    blocks_.push_back({own + before, works ? scratch.per_thread : 0, plan.local_bytes - before});
  }
  for (const Block& block : blocks_) {
    std::memset(block.data, static_cast<int>(red_zone_fill), block.bytes);
    std::memset(block.data + block.bytes, static_cast<int>(kCanary), block.all - block.bytes);
  }
  close_memory(arena, plan.arena_bytes);
  for (const Block& block : blocks_) open_memory(block.data, block.bytes);
  open(in_);
  open(out_);
}

void RedZones::end_step(const StagePlan& plan, const Step& step, std::byte* arena, int) {
  close(in_);  // those of earlier stages' arenas
  open_memory(arena, plan.arena_bytes);
  for (const TensorView& view : out_) {
    if (view.elements() == 0) continue;
    each_line(view, 0, view.as<std::byte>(), [&](const std::byte* at, std::size_t bytes) {
      std::memcpy(before_.data() + (at - arena), at, bytes);
    });
  }
  if (const std::byte* const changed = first_changed(before_, arena))
    report(step, "in the buffers", static_cast<std::size_t>(changed - before_.data()));
  for (const Block& block : blocks_) {
    if (const std::byte* const changed = first_other({block.data + block.bytes, block.all - block.bytes}, kCanary))
      report(step, "behind working memory", static_cast<std::size_t>(changed - block.data));
  }
  close_memory(arena, plan.arena_bytes);
}

}  // namespace ingot

#endif
