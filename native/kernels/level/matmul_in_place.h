// Rows of int8 that a product reads from where they lie: dense rows of x, or windows of output pixels that follow each other in a line. Nothing
// is packed then, all of k is summed in registers, and taps outside x take no time.
//
// Only rows without a negative value are what the products take (quads.h), so each pass looks at what it will read; that fetches it too.
// Limits: whole quads of channels, 1 or 2 spatial dimensions, no number but 0 around x, and along a line taps outside x at the first and the last
// pixel only. Where windows are one pixel wide, output lines that follow each other in x as in y are one line, as far as all their taps are inside.
#pragma once

#include "matmul_blocks.h"
#include "quads.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr std::int64_t kShortestLine = 7;  // of output pixels: tiles of fewer would wait for their own sums
constexpr std::int64_t kLongestLine = 1 << 30;  // of x, in bytes
constexpr int kMostTiles = 256;            // of a pass
constexpr std::int64_t kMostRows = 512;

/// Rows of a register tile, all in one line.
struct PlacedTile {
  std::int64_t at;  // bytes from x to the first tap of the first row, which may lie outside
  int row, rows;    // of the pass
  int first_line, end_line;  // of taps, those inside
  int left, right;  // taps at either end of a tap line that the tile's first row, and its last one, have outside
};

/// How the rows of a job lie, and the tiles of a pass.
struct PlacedRows {
  const std::byte* x;
  std::int64_t row_stride, line_stride, tap_stride;  // bytes
  int lines, taps, quads;                            // of a window, of a line of taps, and of a tap
  bool together;                                     // whether taps follow each other as their weights do
  bool joined;                                       // whether output lines follow each other as their pixels do
  int left, right;                                   // taps outside, of the first and the last pixel of a line
  int count;
  PlacedTile tiles[kMostTiles];
};

/// Whether tiles of up to `height` rows are low in lines of that many output pixels.
INGOT_INLINE bool leaves_low(std::int64_t pixels, int height) { return 8 * pixels < 5 * height * ceil_div(pixels, height); }

/// Whether a job's rows can be read from where they lie, and gain by it, in tiles of up to `height` rows; and how they lie. Weights come from
/// beyond L1 for each tile then, not once for all rows of a pass: what has no taps to leave out gains while they are small only, and so do lines
/// that leave tiles low.
inline bool lies_in_place(const MatmulJob& job, int height, PlacedRows& placed) {
  const auto whole = [](std::int64_t bytes) { return bytes % 4 == 0; };
  if (job.order == Order::packed || job.packed || job.parts != 1 || job.runs.length != 0 || job.k == 0 || job.rows < kShortestLine) return false;
  if (job.patches == nullptr) {
    placed.x = job.x;
    placed.row_stride = job.x_stride;
    placed.line_stride = placed.tap_stride = 0;
    placed.lines = placed.taps = 1;
    placed.quads = (int)(job.k / 4);
    placed.together = true;
    placed.left = placed.right = 0;
    return job.k <= kLong && whole(job.k) && whole(job.x_stride) && whole((std::int64_t)(std::size_t)job.x);
  }
  const Patches& p = *job.patches;
  const WindowAxis &flat = p.axis[0], &down = p.axis[1], &along = p.axis[2];
  if (flat.kernel != 1 || flat.before != 0 || flat.size != 1 || p.out[0] != 1 || p.out[2] < kShortestLine) return false;
  if (along.size * p.channels > kLongestLine || !whole(p.channels) || !whole((std::int64_t)(std::size_t)p.x) || !whole(p.image_stride) || !whole(p.x_stride[1]) || !whole(p.x_stride[2])) return false;
  placed.x = p.x;
  placed.row_stride = along.stride * p.x_stride[2];
  placed.line_stride = down.dilation * p.x_stride[1];
  placed.tap_stride = along.dilation * p.x_stride[2];
  placed.lines = (int)down.kernel;
  placed.taps = (int)along.kernel;
  placed.quads = (int)(p.channels / 4);
  placed.together = p.run == along.kernel;
  const auto outside = [&](std::int64_t pixel, bool behind) {  // taps before x, or behind it
    std::int64_t count = 0;
    for (std::int64_t tap = 0; tap < along.kernel; ++tap) {
      const std::int64_t at = pixel * along.stride + tap * along.dilation - along.before;
      count += behind ? at >= along.size : at < 0;
    }
    return count;
  };
  placed.left = (int)outside(0, false);
  placed.right = (int)outside(p.out[2] - 1, true);
  placed.joined = along.kernel == 1 && along.stride == 1 && along.before == 0 && p.out[2] == along.size && down.stride == 1 && down.dilation == 1 &&
                  p.x_stride[1] == along.size * p.x_stride[2];
  const bool low = leaves_low(placed.joined ? p.out[1] * p.out[2] : p.out[2], height), leaves_out = placed.left != 0 && placed.right != 0;
  if ((low || (job.k > kLong && placed.lines * placed.taps == 1)) && !leaves_out) return false;
  if (outside(1, false) != 0 || outside(p.out[2] - 2, true) != 0 || placed.left + placed.right > along.kernel) return false;
  const std::int64_t lowest = (p.out[1] - 1) * down.stride + (down.kernel - 1) * down.dilation - down.before;
  return p.outside == 0 || (placed.left == 0 && placed.right == 0 && down.before <= 0 && lowest < down.size);
}

/// Whether `count` runs of that many bytes hold a negative value.
INGOT_INLINE bool any_negative(const std::byte* from, std::int64_t stride, std::int64_t count, std::int64_t bytes) {
  if (stride == bytes) bytes *= count, count = 1;
  for (std::int64_t i = 0; i < count; ++i)
    if (has_negative(from + i * stride, (int)bytes)) return true;
  return false;
}

/// Adds tiles of `rows` rows in one line, of nearly equal height.
INGOT_INLINE void add_tiles(PlacedRows& placed, int rows, int height, PlacedTile tile) {
  const int count = (rows + height - 1) / height, left = tile.left, right = tile.right, first = tile.row;
  const std::int64_t at = tile.at;
  for (int i = 0; i < count; ++i) {
    const int begin = rows * i / count;
    tile.at = at + begin * placed.row_stride;
    tile.row = first + begin;
    tile.rows = rows * (i + 1) / count - begin;
    tile.left = i == 0 ? left : 0;
    tile.right = i + 1 == count ? right : 0;
    placed.tiles[placed.count++] = tile;
  }
}

/// What the tiles of a pass are: of how many rows, and whether none of what they read is negative.
struct Placed {
  std::int64_t rows;
  bool suits;
};
inline Placed place_dense(const MatmulJob& job, std::int64_t first, std::int64_t most, int height, PlacedRows& placed) {
  const std::int64_t rows = smaller(smaller(job.rows - first, most), kMostTiles * height);
  placed.count = 0;
  add_tiles(placed, (int)rows, height, {first * placed.row_stride, 0, 0, 0, 1, 0, 0});
  return {rows, !any_negative(placed.x + first * placed.row_stride, placed.row_stride, rows, job.k)};
}

inline Placed place_patches(const MatmulJob& job, std::int64_t first, std::int64_t most, int height, PlacedRows& placed) {
  const Patches& p = *job.patches;
  const WindowAxis &down = p.axis[1], &along = p.axis[2];
  const std::int64_t end = smaller(job.rows, first + most);
  // Lines of x that were looked at: those below `seen` of the same remainder, where windows of all output lines have that one.
  const bool alike = down.stride % down.dilation == 0;
  std::int64_t row = first, seen_image = -1, seen = 0;
  bool negative = false;
  placed.count = 0;
  while (row < end && placed.count < kMostTiles) {
    const Pixel pixel = pixel_of(p.first + row, p.out);
    const std::int64_t top = pixel.y * down.stride - down.before, image = pixel.image * p.image_stride;
    const Span lines = span_of(down, pixel.y);
    const std::int64_t whole = smaller(down.size + down.before - down.kernel, p.out[1] - 1) - pixel.y;  // joined lines that follow and have all taps inside
    const std::int64_t more = placed.joined && lines.count == down.kernel ? larger(whole, 0) : 0;
    const std::int64_t rows = smaller(smaller(end - row, (1 + more) * p.out[2] - pixel.x), (kMostTiles - placed.count) * height);
    const std::int64_t below = (pixel.x + rows - 1) / p.out[2];  // the output lines behind the first
    const std::int64_t at = image + top * p.x_stride[1] + (pixel.x * along.stride - along.before) * p.x_stride[2];
    if (pixel.image != seen_image) seen_image = pixel.image, seen = 0;
    for (std::int64_t tap = 0; tap < lines.count + below && !negative; ++tap) {
      const std::int64_t line = lines.first + tap * down.dilation;
      if (alike && line < seen) continue;
      negative = any_negative(p.x + image + line * p.x_stride[1], p.x_stride[2], along.size, p.channels);
      seen = line + 1;
    }
    const int first_line = lines.count > 0 ? (int)lines.skipped : 0;
    add_tiles(placed, (int)rows, height, {at, (int)(row - first), 0, first_line, first_line + (int)lines.count, pixel.x == 0 ? placed.left : 0,
                                          pixel.x + rows == p.out[2] ? placed.right : 0});
    row += rows;
  }
  return {row - first, !negative};
}

/// Lays out tiles of up to `height` rows for the job's rows from `first` on, at most `most`.
inline Placed place_rows(const MatmulJob& job, std::int64_t first, std::int64_t most, int height, PlacedRows& placed) {
  return job.patches == nullptr ? place_dense(job, first, most, height, placed) : place_patches(job, first, most, height, placed);
}

/// Rows of a pass: so many that what they read stays near while all panels pass, in L1 beside weights that stay in L2, otherwise in L2.
inline std::int64_t rows_in_place(const MatmulJob& job, const PlacedRows& placed, std::int64_t weights) {
  constexpr std::int64_t kNear = 24 << 10, kFar = 256 << 10, kLeast = 56;
  if (job.order == Order::rows) return kLeast;
  if (job.order == Order::weights) return kManyRows;
  const std::int64_t of_row = job.patches == nullptr ? job.k : placed.row_stride * job.patches->axis[1].stride;
  const std::int64_t most = (weights <= kNearWeights ? kNear : kFar) / larger(of_row, 1);
  return smaller(larger(most, kLeast), kMostRows);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
