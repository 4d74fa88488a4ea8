// Depthwise convolution of a line of outputs: what every level provides to the host half (kernels/depthwise.cpp).
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "dtype.h"
#include "epilogue.h"
#include "window.h"

namespace ingot {

constexpr std::int64_t kDepthwiseChannels = kTile;  // most of a job
constexpr std::int64_t kDepthwiseValues = 4096;     // accumulators, 16 KiB: part of L1

/// Columns whose accumulators are finished together; for 512 channels 8.
static constexpr std::int64_t depthwise_columns(std::int64_t channels) {
  return channels >= 512 ? 8 : channels <= 64 ? 64 : kDepthwiseValues / channels;
}

/// A run of columns of one output line. Steps count elements.
struct DepthwiseJob {
  const void* x;                    // the first plane and line that its windows find, at column 0
  const void* w;                    // the first plane's and line's weights, at column 0 of the window
  DType dtype;                      // of x and w
  std::int64_t channels;            // at most kDepthwiseChannels
  std::int64_t planes, lines;       // positions of the windows inside, along the outer axes
  std::int64_t plane_step, line_step, x_step;
  std::int64_t w_plane_step, w_line_step, w_step;
  WindowAxis columns;
  float outside;                    // what lies around x
  const void* whole_w;              // the weights of all positions, w_step apart
  std::int64_t positions;
  std::int64_t first, last;
  float* values;                    // depthwise_columns(channels) * channels, aligned to 64
  EpilogueJob epilogue;             // row 0 is column `first`
};

struct DepthwiseTable {
  void (*run)(const DepthwiseJob& job);
};

INGOT_FAMILY(depthwise, DepthwiseTable)

}  // namespace ingot
