// 3x3 convolution with stride 1 by Winograd's F(4x4, 3x3) and F(2x2, 3x3): what the host half (kernels/winograd.cpp) hands to the
// level halves. Plain data only.
//
// A tile of 4x4 outputs reads a patch d of 6x6 inputs: Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A for the interpolation points 0, ±5/8, ±3/2, ∞.
// Every constant of A and B is exact in float32, and the points keep the error at about twice the direct sum's (with the usual
// 0, ±1, ±2 it is five times): root mean square 6e-7 of the outputs' for 64 channels, 2e-6 for 512. A tile of 2x2 outputs reads
// 4x4 inputs, for the points 0, ±1, ∞; its transformed weight is less than half as large.
//
// The order of summation of an output is the same for every number of tiles, images and threads. At each position of
// the transformed tile the channel runs upwards in one accumulator; then come the fixed sums of the transforms.
//
// A value that is not finite would spread over its tile. It always reaches one of the tile's corner outputs, so a tile whose
// corners are not all finite is computed again from the weight itself, in the order of the direct product.
//
// x and the weight may be of 16 bits: transforms and products are float32 all the same, so that only what was stored is rounded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch.h"
#include "dtype.h"
#include "epilogue.h"

namespace ingot {

constexpr int kMostPositions = 36;  // of a transformed tile: 6x6
constexpr int kVDepth = 64;      // channels of a block of transformed inputs
constexpr int kVRow = 64 + 16;   // floats from tile to tile of a block: an odd number of cache lines
constexpr int kMTile = kMostPositions * 32;  // floats from tile to tile of the products
constexpr int kTileRun = 4;      // neighbouring tiles whose outputs are finished together: at most 16 pixels of 32 outputs, kTile

/// A group of tiles, numbered through all images in row-major order, whose transformed inputs lie together.
struct WinogradJob {
  int tile;                       // outputs of a tile each way: 4 or 2; it has (tile + 2)² positions
  // The images.
  DType dtype;                    // of x and the weight
  const std::byte* x;
  std::int64_t image_stride, row_stride, column_stride;  // elements
  std::int64_t height, width, channels, top, left;
  const std::byte* zeros;         // for pixels outside: one for each channel
  std::int64_t out_height, out_width, tiles_down, tiles_across, outputs;
  // The group.
  std::int64_t first_tile;
  int tiles;
  float* v;                       // [positions][ceil(channels / kVDepth)][tile][kVRow]
  std::int64_t v_position;        // floats from position to position
  // The product.
  const float* u;                 // [panel][positions][channels][32]
  const std::byte* weight;        // panels of k = (tap, channel) as in matmul.h, for tiles with values that are not finite
  std::int64_t panel_bytes;
  float* m;                       // [panel of the group][tile][positions][32], tiles kMTile apart
  // The epilogue.
  EpilogueJob epilogue;           // operand 0: the sum
  float* finished;                // [tile][kTileRun * tile][32]
};

constexpr std::int64_t v_blocks(std::int64_t channels) { return (channels + kVDepth - 1) / kVDepth; }
/// An odd number of cache lines, so that the positions of a tile fall into different sets.
constexpr std::int64_t v_position(std::int64_t channels, std::int64_t tiles) {
  return ((v_blocks(channels) * tiles * kVRow) / 16 | 1) * 16;
}

struct WinogradTable {
  /// Transforms a panel of the weight, k = (tap, channel), to [positions][channels][32].
  void (*weight)(const std::byte* panel, DType dtype, std::int64_t channels, int tile, float* u);
  /// Transforms the tiles of the group.
  void (*inputs)(const WinogradJob& job);
  /// Computes all tiles of the group for `panels` panels from `first` on.
  void (*outputs)(const WinogradJob& job, std::int64_t first, int panels);
};

INGOT_FAMILY(winograd, WinogradTable)

}  // namespace ingot
