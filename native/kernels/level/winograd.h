// Winograd's F(4x4, 3x3): what the host half (kernels/winograd.cpp) hands to the level halves. Plain data only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"
#include "tile.h"

namespace ingot {

constexpr int kPositions = 36;  // of a transformed tile: 6x6

/// A group of tiles, numbered through all images in row-major order, whose transformed inputs lie together.
struct WinogradJob {
  // The images.
  const float* x;
  std::int64_t image_stride, row_stride, column_stride;  // elements
  std::int64_t height, width, channels, top, left;
  const float* zeros;             // `channels` of them and a vector more
  std::int64_t out_height, out_width, tiles_down, tiles_across, outputs;
  // The group.
  std::int64_t first_tile;
  int tiles;
  float* v;                       // [36][tiles][v_row], positions v_position apart
  std::int64_t v_row, v_position;
  // The product.
  const float* u;                 // [panel][36][channels][32]
  const float* panels;            // the weight itself, for tiles with values that are not finite
  float* m;                       // [panel of the group][tile][36][32]
  // The epilogue.
  const TileCode* code;
  RunTile run_tile;
  const TileOperand* extras;      // of row 0 and column 0
  int extra_count;
  TileOperand out;
  std::byte* tile_scratch;
};

/// Transforms one panel [9 * channels][32] of the weight to [36][channels][32].
using WinogradWeights = void (*)(const float* panel, std::int64_t channels, float* u);
/// Transforms the tiles [first, last) of the group.
using WinogradInputs = void (*)(const WinogradJob& job, int first, int last);
/// Computes all tiles of the group for `panels` panels from `first` on.
using WinogradOutputs = void (*)(const WinogradJob& job, std::int64_t first, int panels);

struct WinogradLevel {
  WinogradWeights weights;
  WinogradInputs inputs;
  WinogradOutputs outputs;
};

#define INGOT_WINOGRAD(space)                                               \
  namespace space {                                                         \
  void winograd_weights(const float*, std::int64_t, float*);                \
  void winograd_inputs(const WinogradJob& job, int first, int last);        \
  void winograd_outputs(const WinogradJob& job, std::int64_t first, int panels); \
  }
INGOT_WINOGRAD(portable)
INGOT_WINOGRAD(avx2)
INGOT_WINOGRAD(avx512)
#undef INGOT_WINOGRAD

}  // namespace ingot
