// Windows of x with signs, read from lines to which 128 was added as they were copied (raised_lines.h): the operand without a sign of VNNI's dot
// products. Sums begin with -128 times those of the weights, of the lines of taps that are inside x; the others take no time where zeros lie there.
#pragma once

#include "matmul_in_place.h"
#include "raised_lines.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
/// Whether a job's rows are read from such lines, in tiles of up to `height` rows, and which they are.
inline bool reads_raised(const MatmulJob& job, int height, RaisedLines& plan) {
  if (job.order == Order::packed || job.patches == nullptr || job.parts != 1 || job.rows < kShortestLine) return false;
  const std::int64_t pixels = job.patches->out[2];
  if (pixels < kShortestLine || pixels > kMostTiles * height || leaves_low(pixels, height)) return false;
  plan = raised_lines(*job.patches);
  return plan.lines > 0;
}

/// Copies whole quads, with 128 added to each value.
INGOT_INLINE void copy_raised(const std::byte* from, std::byte* to, std::int64_t bytes) {
  std::int64_t i = 0;
  for (; i + 64 <= bytes; i += 64) store((float*)(to + i), from_bits(load_quads(from + i)));
#if defined(__AVX512BW__)
  if (i == bytes) return;
  const __mmask64 last = ~(__mmask64)0 >> (64 - (bytes - i));
  reads(from + i, bytes - i);
  writes(to + i, bytes - i);
  _mm512_mask_storeu_epi8(to + i, last, _mm512_xor_si512(_mm512_maskz_loadu_epi8(last, from + i), _mm512_set1_epi8((char)-128)));
#else
  for (; i < bytes; i += 4) *(std::int32_t*)(to + i) = *(const std::int32_t*)(from + i) ^ (std::int32_t)0x80808080;
#endif
}

/// The line y of an image, or what is outside.
INGOT_INLINE void copy_line(const Patches& p, const RaisedLines& plan, const std::byte* image, std::int64_t y, std::byte* to) {
  const WindowAxis& along = p.axis[2];
  const std::int64_t pixels = plan.pitch / p.channels;
  const bool inside = y >= 0 && y < p.axis[1].size;
  const std::int64_t first = inside ? smaller(larger(along.before, 0), pixels) : pixels;
  const std::int64_t end = inside ? larger(first, smaller(along.before + along.size, pixels)) : pixels;
  const int outside = p.outside ^ -128;
  const std::byte* from = image + y * p.x_stride[1] + (first - along.before) * p.x_stride[2];
  __builtin_memset(to, outside, first * p.channels);
  __builtin_memset(to + end * p.channels, outside, (pixels - end) * p.channels);
  to += first * p.channels;
  if (p.x_stride[2] == p.channels) return copy_raised(from, to, (end - first) * p.channels);
  for (std::int64_t i = first; i < end; ++i, from += p.x_stride[2], to += p.channels) copy_raised(from, to, p.channels);
}

/// How such lines lie in memory.
inline void place_lines(const MatmulJob& job, const RaisedLines& plan, PlacedRows& placed) {
  const Patches& p = *job.patches;
  const WindowAxis &down = p.axis[1], &along = p.axis[2];
  placed.x = job.scratch;
  placed.row_stride = along.stride * p.channels;
  placed.line_stride = down.dilation * plan.pitch;
  placed.tap_stride = along.dilation * p.channels;
  placed.lines = (int)down.kernel;
  placed.taps = (int)along.kernel;
  placed.quads = (int)(p.channels / 4);
  placed.together = along.dilation == 1;
  placed.joined = false;
  placed.left = placed.right = 0;
}

/// Copies `count` lines of an image from line `top` on, but for those outside it where zeros lie there: no tile reads them.
INGOT_INLINE void copy_lines(const Patches& p, const RaisedLines& plan, const std::byte* image, std::int64_t top, std::int64_t count, std::byte* to) {
  for (std::int64_t y = top; y < top + count; ++y, to += plan.pitch) {
    const bool inside = y >= 0 && y < p.axis[1].size;
    if (inside || p.outside != 0) copy_line(p, plan, image, y, to);
  }
}

/// The lines of taps [first, end) that are multiplied for a line of outputs.
struct TapLines {
  int first, end;
};
INGOT_INLINE TapLines tap_lines(const Patches& p, std::int64_t line) {
  const WindowAxis& down = p.axis[1];
  if (p.outside != 0) return {0, (int)down.kernel};
  const Span inside = span_of(down, line);
  if (inside.count == 0) return {0, 0};
  return {(int)inside.skipped, (int)(inside.skipped + inside.count)};
}

/// Adds the tiles of rows [begin, end) of the pass, all in one line of outputs. `at`: bytes to the first tap of the first of them.
INGOT_INLINE void add_line(PlacedRows& placed, std::int64_t begin, std::int64_t end, int height, std::int64_t at, TapLines taps) {
  add_tiles(placed, (int)(end - begin), height, {.at = at, .row = (int)begin, .rows = 0, .first_line = taps.first, .end_line = taps.end, .left = 0, .right = 0});
}

/// Copies the lines that rows from `first` on read, of as many rows as there is room for, and lays out their tiles. Returns the row behind.
inline std::int64_t raise_lines(const MatmulJob& job, const RaisedLines& plan, std::int64_t first, int height, PlacedRows& placed) {
  const Patches& p = *job.patches;
  const WindowAxis& down = p.axis[1];
  const std::int64_t width = p.out[2], tiles = ceil_div(width, height);  // of a line of outputs
  std::int64_t row = first, held = 0;                                    // held: lines of x
  placed.count = 0;
  while (row < job.rows) {
    const Pixel pixel = pixel_of(p.first + row, p.out);
    // Lines of outputs up to the end of the job or of the image. The windows of n of them read (n - 1) * stride + halo lines of x.
    const std::int64_t wanted = smaller(ceil_div(pixel.x + job.rows - row, width), p.out[1] - pixel.y);
    const std::int64_t room = smaller((plan.lines - held - plan.halo + down.stride) / down.stride, (kMostTiles - placed.count) / tiles);
    if (room < wanted && held > 0) break;  // an image behind another one is whole
    const std::int64_t taken = ceil_div(wanted, ceil_div(wanted, room)), read = (taken - 1) * down.stride + plan.halo;
    copy_lines(p, plan, p.x + pixel.image * p.image_stride, pixel.y * down.stride - down.before, read, job.scratch + held * plan.pitch);
    for (std::int64_t i = 0, column = pixel.x; i < taken; ++i, column = 0) {
      const std::int64_t end = smaller(row + width - column, job.rows);
      const std::int64_t at = (held + i * down.stride) * plan.pitch + column * placed.row_stride;
      add_line(placed, row - first, end - first, height, at, tap_lines(p, pixel.y + i));
      row = end;
    }
    held += read;
  }
  return row;
}
#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
