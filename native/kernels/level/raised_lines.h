// Lines of x as products of int8 read them where values have signs: copied once, with 128 added, in the place of once for each tap. Plain data that
// host and level halves share.
//
// A line holds what windows read of it, with what lies outside x; pixels follow each other without gaps. So the windows of neighbouring outputs lie at one
// distance, and nothing is packed.
//
// Limits: whole quads of channels, 1 or 2 spatial dimensions, and lines of which a few fit into L2.
#pragma once

#include <cstddef>
#include <cstdint>

#include "matmul.h"

namespace ingot {

struct RaisedLines {
  std::int64_t lines;  // that memory has room for; 0: there are none, and rows are packed
  std::int64_t pitch;  // bytes from line to line
  std::int64_t halo;   // lines that the windows of one line of outputs reach over

  constexpr std::int64_t bytes() const { return lines * pitch; }
};

/// The lines for patches of int8; none where copying them saves nothing.
constexpr RaisedLines raised_lines(const Patches& p) {
  constexpr std::int64_t kNear = 256 << 10, kMost = 512 << 10;  // beside results, in L2
  constexpr std::int64_t kLeastOutputs = 4, kLongest = 1 << 20;
  RaisedLines plan{};
  const WindowAxis &flat = p.axis[0], &down = p.axis[1], &along = p.axis[2];
  if (flat.kernel != 1 || flat.before != 0 || flat.size != 1 || p.out[0] != 1 || p.out[1] < 1 || p.out[2] < 1) return plan;
  if (p.channels < 1 || p.channels % 4 != 0 || p.channels > kLongest) return plan;
  if (p.out[2] > kLongest || down.stride > kLongest || down.kernel * along.kernel <= down.stride * along.stride) return plan;
  const std::int64_t read = (p.out[2] - 1) * along.stride + (along.kernel - 1) * along.dilation + 1;
  plan.halo = (down.kernel - 1) * down.dilation + 1;
  if (read > kLongest || plan.halo > kLongest) return plan;
  plan.pitch = read * p.channels;
  const std::int64_t least = ((p.out[1] < kLeastOutputs ? p.out[1] : kLeastOutputs) - 1) * down.stride + plan.halo;
  if (least * plan.pitch > kMost) return plan;
  const std::int64_t fit = kNear / plan.pitch;
  plan.lines = fit < least ? least : fit;
  return plan;
}

}  // namespace ingot
