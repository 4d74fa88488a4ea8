// Convolutions with few outputs: what every level provides to the host half (kernels/narrow.cpp).
//
// A vector holds 16 neighbouring values of a patch: channels, and taps along the last axis unless that is dilated. An output has
// one vector of sums; its order is positions of the window along the other axes (and of dilated taps), then values 16 apart, then
// the lanes in reduce_add's order. Taps outside x are left out. How x lies in memory changes no bits: taps with gaps between them
// are gathered.
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "epilogue.h"
#include "window.h"

namespace ingot {

constexpr int kNarrowOutputs = 8;
constexpr std::int64_t kNarrowValues = 4 * kTile;
constexpr std::int64_t kMostNarrowInt8 = 1024;  // products of int8 whose sum float32 holds

/// A run of outputs of one line.
struct NarrowJob {
  const std::byte* x;            // of the image
  DType dtype;                   // of x: float32, bfloat16 or float16; int8 of windows of one position
  std::int64_t x_step[3];        // bytes along the axes
  WindowAxis axis[3];
  bool together;                 // taps along the last axis are one run of values: they are not dilated
  bool gathered;                 // ... with gaps between them in x
  Span planes, lines;            // what the windows find along the first two axes
  const float* w;                // [output][plane][line][taps along the last axis * channels, rounded up to 16]
  std::int64_t w_output, w_line; // floats from output to output and from line to line
  std::int64_t channels;
  int outputs;                   // at most kNarrowOutputs
  std::int64_t first, last;      // columns
  float* values;                 // kNarrowValues, aligned to 64
  EpilogueJob epilogue;          // row 0 is column `first`
};

struct NarrowTable {
  void (*run)(const NarrowJob& job);
  void (*convert)(const void* x, DType x_dtype, void* y, DType y_dtype, std::int64_t count);
};

INGOT_FAMILY(narrow, NarrowTable)

}  // namespace ingot
