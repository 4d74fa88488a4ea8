// Weighted sums of pixels: what every level provides to the host half (kernels/resample.cpp).
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "dtype.h"

namespace ingot {

constexpr int kMostTaps = 64;    // four along each of three axes
constexpr int kBlendPixels = 16;  // of a job

/// A pixel that counts towards another one: where its channels begin, in elements from x, and its weight.
struct Tap {
  std::int64_t offset;
  float weight;
};

/// The taps of some neighbouring outputs; an output without any is zero.
struct BlendJob {
  const void* x;
  void* y;  // the first output
  DType dtype;
  std::int64_t channels;  // side by side in x and y
  std::int64_t y_step;
  int pixels;
  int counts[kBlendPixels];
  Tap taps[kBlendPixels][kMostTaps];
};

struct ResampleTable {
  void (*blend)(const BlendJob& job);
};

INGOT_FAMILY(resample, ResampleTable)

}  // namespace ingot
