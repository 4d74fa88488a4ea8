// Micro-batches: where each image of a batch is computed by itself, calls may run for a few images, one call after the
// other, and then for the next few. What they hand on stays in the caches then, and takes the memory of few images. Where
// there are as many images as workers, each worker takes groups of images through all these calls before it meets the others.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine.h"
#include "kernel.h"

namespace ingot {

constexpr std::size_t kMostOfGroup = 64;  // operands and results of a call that runs for some images

/// Calls [first_call, end_call) that run for `each` images at a time.
struct MicroBatches {
  int first_call = 0, end_call = 0;
  std::int64_t images = 0;  // of the batch: the first dimension of their results
  std::int64_t each = 0;
  int streams = 1;  // so many run side by side, each by one worker, whichever is free; or 1: all workers share each of them
  std::vector<std::uint64_t> operands;  // by call, of its operands: bit i says that operand i has a part for each image

  /// Images of each stream, where workers are equally fast; those that are left over are run by all workers together, after the others.
  std::int64_t own() const { return images / streams; }
  /// How often a worker comes to a call, and how often it does so with all others.
  std::int64_t rounds() const { return parts_of(own()) + parts_of(images % streams); }
  std::int64_t meetings() const { return streams > 1 ? parts_of(images % streams) : rounds(); }
  /// How many they are in all.
  std::int64_t count() const { return streams * parts_of(own()) + parts_of(images % streams); }
  std::int64_t parts_of(std::int64_t some) const { return (some + each - 1) / each; }
};

/// What is known of a stage's buffers when they are planned; all by buffer.
struct BufferSizes {
  std::span<const TensorView> views;
  std::span<const std::int64_t> offsets;  // of views into their buffer, in elements
};

/// The calls of a stage that are better run so, in order: those whose handing on saves more bytes from leaving the caches of
/// that many workers than weights are read again. Bits do not depend on it.
std::vector<MicroBatches> find_micro_batches(const LoadedProgram& loaded, const Stage& stage, const BufferSizes& sizes, int threads);

/// When the stage's buffers live if these calls run so.
struct Lifetimes {
  std::vector<Lifetime> outer;               // what they share with other calls lives as long as all of them run
  std::vector<std::vector<Lifetime>> inner;  // by batches: what only they use, while one stream runs them
};

Lifetimes lifetimes_of(const Program& program, const Stage& stage, std::span<const MicroBatches> batches);

}  // namespace ingot
