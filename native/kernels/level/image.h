// The image of a convolution: x copied so that tiles read their rows from where they lie. Plain data that host and level halves
// share.
//
// Output pixels are taken as flat over lines of `pitch` columns, the last of which are no outputs: what a tap reads for pixels that follow
// each other then lies at one distance, through the ends of lines too. What lies outside x is part of the image. A line's right border
// is the next one's left border. Channels lie in blocks of 64 bytes, a plane of the image each; with a stride so do the lines and
// columns of each phase, so that a tap's pixels follow each other.
//
// Where channels do not fill such blocks (an image of three colours) pixels lie as in x, borders on both sides, and the rows of a few tiles at
// a time are packed from there: each tap line of a window lies side by side.
#pragma once

#include <cstddef>
#include <cstdint>

#include "frame.h"
#include "matmul.h"

namespace ingot {

constexpr std::int64_t kPixel = 64;              // bytes of a pixel in a plane
constexpr std::int64_t kImageBytes = 512 << 10;  // stays in L2 beside the weights
constexpr std::int64_t kPackedSteps = 18;        // most of rows that are packed: those of two tiles stay in L1
constexpr std::int64_t kMostSteps = 1024;        // of a product by an image
constexpr std::int64_t kMostPairs = 16;          // of tiles, whose sums are kept between parts of k
constexpr std::int64_t kBlockSums = 32 * kPanel;  // of a pair of tiles and a panel

struct ImagePlan {
  std::int64_t lines;       // of a plane; 0: there is no image, and patches are packed from x
  std::int64_t pixel;       // bytes of a pixel in a plane
  bool packs;               // rows are packed from the image; there is one plane then, and one phase
  std::int64_t pitch;       // pixels from line to line
  std::int64_t halo;        // lines of a plane that a window reaches beyond the first one
  std::int64_t overhang;    // pixels that one reaches beyond the first one of a line
  std::int64_t blocks;      // of channels
  std::int64_t phases[2];   // of lines and of columns
  std::int64_t plane;       // bytes
  std::int64_t steps;       // of the product

  constexpr std::int64_t planes() const { return blocks * phases[0] * phases[1]; }
  constexpr std::int64_t row_bytes() const { return steps * 64 + (steps % 2 == 0 ? 64 : 0); }  // of a packed row: an odd number of cache lines
};

/// A tile's rows: pixels of the image that follow each other.
struct ImageTile {
  std::int64_t at;      // bytes from the image's first pixel
  std::int64_t row;     // of the job: the first output from that pixel on
  std::int64_t column;  // of its line
  std::int64_t pixels;  // that may be outputs
};

/// What a step of k reads: bytes from a tile's first pixel, and from where the panel begins.
struct ImageStep {
  std::int64_t x, w;
};

/// A worker's memory for images.
struct ImageMemory {
  ImageStep* steps;
  ImageTile* tiles;
  float* sums;
  std::byte *image, *rows;

  ImageMemory(Frame& frame, const ImagePlan& plan)
      : steps(frame.take<ImageStep>(plan.steps)), tiles(frame.take<ImageTile>(plan.lines * (plan.pitch / 16 + 1) + 1)),
        sums(frame.take<float>(kMostPairs * kBlockSums)),
        image(frame.take<std::byte>(plan.planes() * plan.plane)), rows(frame.take<std::byte>(plan.packs ? 33 * plan.row_bytes() : 0)) {}
};

/// The columns from line to line with which a line's right border is the next one's left border.
constexpr std::int64_t image_pitch(const WindowAxis& axis, std::int64_t out, std::int64_t phases, std::int64_t overhang) {
  for (std::int64_t pitch = out;; ++pitch) {
    bool suits = true;
    for (std::int64_t phase = 0; phase < phases; ++phase)
      for (std::int64_t at = pitch; at < out + overhang; ++at)
        suits = suits && at * axis.stride + phase - axis.before >= axis.size && (at - pitch) * axis.stride + phase < axis.before;
    if (suits) return pitch;
  }
}

/// How many lines an image has, and its bytes; none where few of them take too much.
constexpr void size_image(ImagePlan& plan, std::int64_t least, std::int64_t most) {
  const std::int64_t line = plan.pitch * plan.pixel * plan.planes(), fit = kImageBytes / line, lines = fit < least ? least : fit;
  if (lines * line > 2 * kImageBytes) return;
  plan.lines = lines < most ? lines : most;
  // A tile reads up to 15 pixels behind the last output. Planes lie an odd number of half pages apart, away from each other's sets of L1.
  plan.plane = round_up((plan.lines * plan.pitch + plan.overhang + 16) * plan.pixel + 64, 4096) + 2048;
}

/// The image of patches of values of that many bytes, of `images` images.
constexpr ImagePlan image_plan(const Patches& p, int width, std::int64_t images) {
  constexpr std::int64_t kFarthest = 64, kLongest = 1 << 30;  // pixels of a line
  ImagePlan plan{};
  const WindowAxis &down = p.axis[1], &along = p.axis[2];
  const std::int64_t bytes = p.channels * width, taps = down.kernel * along.kernel;
  if (p.axis[0].kernel != 1 || p.axis[0].size != 1 || p.out[0] != 1 || p.out[1] < 1 || p.out[2] < 1 || taps < 1 || taps > kMostSteps) return plan;
  if (down.before < 0 || along.before < 0) return plan;
  // Of int8 the last block's missing channels are zeros, beside weights of the next tap. Floats there could be infinite.
  const bool whole = width == 1 ? bytes % 4 == 0 && bytes >= kPixel / 2 : bytes % kPixel == 0;
  const std::int64_t few = p.out[1] < 4 ? p.out[1] : 4;
  if (!whole) {
    if (along.dilation != 1 || bytes * taps > kPackedSteps * 64 || down.kernel * down.dilation > kFarthest || down.stride > kFarthest) return plan;
    plan.packs = true;
    plan.pixel = bytes;
    plan.blocks = plan.phases[0] = plan.phases[1] = 1;
    plan.steps = (bytes * taps + 63) / 64;
    plan.halo = (down.kernel - 1) * down.dilation + 1 - down.stride;  // beyond `stride` lines for each one of the outputs
    const std::int64_t read = (p.out[2] - 1) * along.stride + along.kernel, held = along.before + along.size;
    plan.pitch = read > held ? read : held;
    if (plan.pitch > kLongest) return plan;
    size_image(plan, few * down.stride + plan.halo, (p.out[1] * down.stride + (plan.halo > 0 ? plan.halo : 0)) * images);
    return plan;
  }
  plan.pixel = kPixel;
  plan.blocks = (bytes + kPixel - 1) / kPixel;
  if (plan.blocks > kMostSteps / taps) return plan;
  plan.steps = taps * plan.blocks;
  for (int i = 0; i < 2; ++i) {
    const WindowAxis& axis = p.axis[1 + i];
    if (axis.stride != 1 && axis.dilation != 1) return plan;
    plan.phases[i] = axis.stride < axis.kernel ? axis.stride : axis.kernel;
    (i == 0 ? plan.halo : plan.overhang) = (axis.kernel - 1) * axis.dilation / axis.stride;
  }
  if (plan.overhang > kFarthest || plan.halo > kFarthest || plan.phases[0] * plan.phases[1] > 16) return plan;
  plan.pitch = image_pitch(along, p.out[2], plan.phases[1], plan.overhang);
  size_image(plan, plan.halo + few, (p.out[1] + plan.halo) * images);
  return plan;
}

}  // namespace ingot
