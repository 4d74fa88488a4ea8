// Convolution by Winograd's F(4x4, 3x3) and F(2x2, 3x3), along one axis by F(4, 5) and F(2, 3), and of two taps by F(4x4, 2x2) and F(4, 2):
// what the host half (kernels/winograd.cpp) hands to the level halves. Plain data only.
//
// A tile of 4x4 outputs reads a patch d of 6x6 inputs: Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A for the interpolation points 0, ±5/8, ±3/2, ∞.
// Every constant of A and B is exact in float32, and the points keep the error at about twice the direct sum's (with the usual
// 0, ±1, ±2 it is five times): root mean square 6e-7 of the outputs' for 64 channels, 2e-6 for 512. A tile of 2x2 outputs reads
// 4x4 inputs, for the points 0, ±1, ∞; its transformed weight is less than half as large.
//
// A kernel of k taps along one axis with stride s is a sum of blocks of at most 5 taps, s inputs apart: of block b the first tap is
// the one at (b / s) * 5 * s + b % s. A tile of 4 outputs reads 8 inputs of a block, y = Aᵀ Σ (G g ⊙ Bᵀ d) for the points 0, ±1/2, ±1,
// ±2, ∞; the blocks are summed as more channels are, before the one transform of outputs. 9 taps with stride 1 or 2 are two
// blocks: 15 products in the place of 36. The error is 2.1 to 2.6 times the direct sum's (with 6 outputs of a tile, or 9 taps in one
// block, it would be 7 to 20 times). A tile of 2 outputs has blocks of at most 3 taps and reads 4 inputs of each, for the points 0, ±1,
// ∞: 9 taps with stride 1 are three blocks, 12 products in the place of 18, with stride 2 four blocks and 14. At the last position a block
// that lacks its last tap has no weight, and no product is made.
//
// The order of summation of an output is the same for every number of tiles, images and threads. At each position of
// the transformed tile the block and in it the channel run upwards in one accumulator; then come the fixed sums of the transforms.
//
// Two taps, which phases of transposed convolutions have along an axis, take tiles of 4 outputs that read 5 inputs, for the points 0, 1/2, -1,
// 2, ∞: 5 products in the place of 8, and of 2x2 taps 25 in the place of 64. The error is 2.8 times the direct sum's (with 0, ±1, 2, ∞
// it would be 4.2 times): root mean square 6e-7 for 64 channels, as of 3x3 taps.
//
// A value that is not finite would spread over its tile. It always reaches one of the tile's corner outputs (of a line its ends), so a
// tile whose corners are not all finite is computed again from the weight itself, in the order of the direct product.
//
// x and the weight may be of 16 bits: transforms and products are float32 all the same, so that only what was stored is rounded. But
// where a level has dot products of bfloat16 (`pairs`), tiles of 2 outputs multiply what the transforms of bfloat16 make as bfloat16:
// each is rounded once more, and two products are added to the sum so far in one step. That adds 1.3 (a line) to 1.7 (a square) times the
// error of rounding an output to bfloat16. In tiles of 4 outputs it would be 3.3 and 7 times, so these stay float32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch.h"
#include "dtype.h"
#include "epilogue.h"

namespace ingot {

constexpr int kVDepth = 64;      // rows of k of a block of transformed inputs
constexpr int kVRow = 64 + 16;   // floats from tile to tile of a block: an odd number of cache lines
constexpr int kRunPixels = 16;   // outputs side by side of neighbouring tiles that are finished together: 32 outputs of them are kTile

/// Which outputs a tile has: 4x4, 2x2, 4x1, 2x1, 1x4, 1x2; then 4x4, 4x1 and 1x4 of two taps each way, the short ones.
enum class WinogradTile : std::uint8_t { square_4, square_2, down_4, down_2, across_4, across_2, short_square, short_down, short_across };

constexpr bool is_short(WinogradTile tile) { return tile >= WinogradTile::short_square; }
constexpr bool is_down(WinogradTile tile) {
  return tile == WinogradTile::down_4 || tile == WinogradTile::down_2 || tile == WinogradTile::short_down;
}
constexpr bool is_across(WinogradTile tile) {
  return tile == WinogradTile::across_4 || tile == WinogradTile::across_2 || tile == WinogradTile::short_across;
}
constexpr bool is_line(WinogradTile tile) { return is_down(tile) || is_across(tile); }
/// Outputs each way.
constexpr int size_of(WinogradTile tile) {
  return tile == WinogradTile::square_2 || tile == WinogradTile::down_2 || tile == WinogradTile::across_2 ? 2 : 4;
}
constexpr int height_of(WinogradTile tile) { return is_across(tile) ? 1 : size_of(tile); }
constexpr int width_of(WinogradTile tile) { return is_down(tile) ? 1 : size_of(tile); }
/// Taps of a square each way, or of a block of a line.
constexpr int block_of(WinogradTile tile) { return is_short(tile) ? 2 : is_line(tile) && size_of(tile) == 4 ? 5 : 3; }
/// Inputs that a tile reads along its taps: of a square's, or of a line's block.
constexpr int inputs_of(WinogradTile tile) { return size_of(tile) + block_of(tile) - 1; }
constexpr int positions_of(WinogradTile tile) { return is_line(tile) ? inputs_of(tile) : inputs_of(tile) * inputs_of(tile); }

/// The kernel of a line of taps, and how many of them a block has; of a square one its taps each way, 1 and the same again.
struct WinogradTaps {
  std::int64_t count, stride, block;

  constexpr std::int64_t first_of(std::int64_t number) const { return number / stride * (block * stride) + number % stride; }
  /// Blocks with a tap.
  constexpr std::int64_t blocks() const {
    const std::int64_t rest = count % (block * stride);
    return count / (block * stride) * stride + (rest < stride ? rest : stride);
  }
  /// Those that have all of theirs, which are the first ones. The last position's weights are the last tap's, so it is for these alone.
  constexpr std::int64_t full_blocks() const {
    const std::int64_t rest = count % (block * stride), last = rest - (block - 1) * stride;
    return count / (block * stride) * stride + (last > 0 ? last : 0);
  }
};

/// A block's channels in rows of k: whole vectors, so that none lies across two blocks of transformed inputs.
constexpr std::int64_t block_depth(std::int64_t channels) { return (channels + 15) / 16 * 16; }

/// A group of tiles, numbered through all images in row-major order, whose transformed inputs lie together.
struct WinogradJob {
  WinogradTile tile;
  WinogradTaps taps;
  bool paired;                    // transformed inputs and weight are bfloat16, two rows of k in the place of one float
  std::int64_t depth;             // rows of k at a position, or pairs of them: channels, of lines block_depth of each block
  std::int64_t last_depth;        // those that are not zero at the last position
  // The images.
  DType dtype;                    // of x and the weight
  const std::byte* x;
  std::int64_t image_stride, row_stride, column_stride;  // elements
  std::int64_t height, width, channels, top, left;
  const std::byte* zeros;         // for pixels outside: one for each channel
  std::int64_t out_height, out_width, tiles_down, tiles_across, outputs;
  std::int64_t out_image, out_line;  // rows of the output and the extras from image to image and from line to line; from pixel to pixel: epilogue.apart
  // The group.
  std::int64_t first_tile;
  int tiles;
  float* v;                       // [positions][ceil(depth / kVDepth)][tile][kVRow]
  std::int64_t v_position;        // floats from position to position
  // The product.
  const float* u;                 // [panel][positions][depth][32]
  const std::byte* weight;        // panels of k = (tap, channel) as in matmul.h, for tiles with values that are not finite
  std::int64_t panel_bytes;
  float* m;                       // [panel of the group][tile][positions][32], tiles m_tile apart
  std::int64_t m_tile;
  // The epilogue.
  EpilogueJob epilogue;           // operand 0: the sum
  float* finished;                // [row of a tile][kRunPixels][32]
};

constexpr std::int64_t v_blocks(std::int64_t depth) { return (depth + kVDepth - 1) / kVDepth; }
/// An odd number of cache lines, so that the positions of a tile fall into different sets.
constexpr std::int64_t v_position(std::int64_t depth, std::int64_t tiles) { return ((v_blocks(depth) * tiles * kVRow) / 16 | 1) * 16; }
constexpr std::int64_t m_tile_of(WinogradTile tile) { return positions_of(tile) * 32 + 16; }  // odd too

struct WinogradTable {
  bool pairs;  // it has products of bfloat16
  /// Transforms a panel of the weight, k = (tap, channel), to [positions][depth][32], of pairs [32][2]; what no tap reaches keeps its
  /// zeros.
  void (*weight)(const std::byte* panel, DType dtype, std::int64_t channels, WinogradTile tile, const WinogradTaps& taps, bool paired, float* u);
  /// Transforms the tiles of the group.
  void (*inputs)(const WinogradJob& job);
  /// Computes all tiles of the group for `panels` panels from `first` on.
  void (*outputs)(const WinogradJob& job, std::int64_t first, int panels);
};

INGOT_FAMILY(winograd, WinogradTable)

}  // namespace ingot
