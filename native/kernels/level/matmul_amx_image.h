// Convolutions by tiles of an image (image.h): x is copied once, in the place of once for each tap.
#pragma once

#include "image.h"
#include "matmul_amx_tiles.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// Output lines of one input image: [line, end), from `at` on among the image's lines.
struct Slab {
  const std::byte* x;
  std::int64_t line, end, at;
};

/// Copies pixels of x, `step` bytes apart, each to all planes: up to 64 bytes to one, zeros behind them. What x has of a pixel is read as it lies.
INGOT_INLINE void copy_pixels(const std::byte* x, std::int64_t step, std::int64_t count, std::int64_t bytes, std::int64_t plane, std::byte* to) {
  const std::int64_t over = bytes % kPixel;
  for (std::int64_t i = 0; i < count; ++i, x += step, to += kPixel) {
    const std::byte* from = x;
    std::byte* pixel = to;
    for (; from + kPixel <= x + bytes; from += kPixel, pixel += plane) __builtin_memcpy(pixel, from, kPixel);
    if (over == 0) continue;
    __builtin_memset(pixel, 0, kPixel);
    __builtin_memcpy(pixel, from, over);
  }
}

/// Pixels outside x: zeros behind `bytes` of them.
INGOT_INLINE void fill_pixels(int outside, std::int64_t count, int bytes, std::byte* to) {
  if (bytes == kPixel) {
    __builtin_memset(to, outside, count * kPixel);
    return;
  }
  __builtin_memset(to, 0, count * kPixel);
  for (std::int64_t i = 0; i < count; ++i) __builtin_memset(to + i * kPixel, outside, bytes);
}

/// The lines of x that a slab's outputs read, of all phases and blocks of channels, with what lies outside.
template <class T>
void copy_slab(const Patches& p, const ImagePlan& plan, const Slab& slab, std::byte* image) {
  const WindowAxis &down = p.axis[1], &along = p.axis[2];
  const std::int64_t lines = slab.end - slab.line + plan.halo, bytes = p.channels * (int)sizeof(T);
  for (std::int64_t phase_y = 0; phase_y < plan.phases[0]; ++phase_y)
    for (std::int64_t phase_x = 0; phase_x < plan.phases[1]; ++phase_x) {
      std::byte* const planes = image + (phase_y * plan.phases[1] + phase_x) * plan.blocks * plan.plane;
      const auto column_of = [&](std::int64_t x) { return (x + along.before - phase_x + along.stride - 1) / along.stride; };  // the first from x on
      const std::int64_t first = smaller(phase_x < along.before ? column_of(0) : 0, plan.pitch);
      const std::int64_t end = larger(first, smaller(along.size + along.before > phase_x ? column_of(along.size) : 0, plan.pitch));
      for (std::int64_t line = 0; line < lines; ++line) {
        const std::int64_t y = (slab.line + line) * down.stride + phase_y - down.before;
        const bool inside = y >= 0 && y < down.size;
        const std::int64_t from = inside ? first : plan.pitch, to = inside ? end : plan.pitch;
        const std::byte* const x = slab.x + y * p.x_stride[1] + (first * along.stride + phase_x - along.before) * p.x_stride[2];
        std::byte* const pixels = planes + (slab.at + line) * plan.pitch * kPixel;
        for (std::int64_t block = 0; block < plan.blocks; ++block) {
          const int taken = (int)smaller(kPixel, bytes - block * kPixel);
          fill_pixels(p.outside, from, taken, pixels + block * plan.plane);
          fill_pixels(p.outside, plan.pitch - to, taken, pixels + block * plan.plane + to * kPixel);
        }
        copy_pixels(x, along.stride * p.x_stride[2], to - from, bytes, plan.plane, pixels + from * kPixel);
      }
    }
}

/// The right border of the last line.
template <class T>
INGOT_INLINE void end_lines(const Patches& p, const ImagePlan& plan, std::int64_t lines, std::byte* image) {
  const std::int64_t bytes = p.channels * (int)sizeof(T);
  for (std::int64_t plane = 0; plane < plan.planes(); ++plane)
    fill_pixels(p.outside, plan.overhang, (int)smaller(kPixel, bytes - plane % plan.blocks * kPixel),
                image + plane * plan.plane + lines * plan.pitch * kPixel);
}

/// What each step reads. Floats have one order, (tap, channel). Sums of whole numbers are exact in any: all taps of a block of channels, or of
/// two, follow each other there, since they read much the same pixels, which then are in L1. (Of two, since weights of one block of many lie
/// so far from tap to tap that they share few sets of L1.)
template <class T>
void find_steps(const Patches& p, const ImagePlan& plan, ImageStep* steps) {
  const WindowAxis &down = p.axis[1], &along = p.axis[2];
  const std::int64_t bytes = p.channels * (int)sizeof(T), taps = down.kernel * along.kernel;
  const std::int64_t together = sizeof(T) > 1 ? plan.blocks : plan.blocks > 2 ? 2 : 1;
  for (std::int64_t tap = 0; tap < taps; ++tap)
    for (std::int64_t block = 0; block < plan.blocks; ++block) {
      const std::int64_t at_y = tap / along.kernel * down.dilation, at_x = tap % along.kernel * along.dilation;
      const std::int64_t plane = (at_y % down.stride * plan.phases[1] + at_x % along.stride) * plan.blocks + block;
      const std::int64_t first = block / together * together, count = smaller(together, plan.blocks - first);
      steps[first * taps + tap * count + block - first] = {
          plane * plan.plane + (at_y / down.stride * plan.pitch + at_x / along.stride) * kPixel, (tap * bytes + block * kPixel) * kPanel};
    }
}

struct ImageSteps {
  const ImageStep* steps;
  int count;
  std::int64_t x(int step) const { return steps[step].x; }
  std::int64_t w(int step) const { return steps[step].w; }
};

/// What is outside around and a line of pixels of x inside, for rows that are packed from there.
template <class T>
void copy_lines(const Patches& p, const ImagePlan& plan, const Slab& slab, std::byte* image) {
  const WindowAxis &down = p.axis[1], &along = p.axis[2];
  const std::int64_t lines = (slab.end - slab.line) * down.stride + plan.halo;
  const std::int64_t first = smaller(along.before, plan.pitch), end = smaller(along.before + along.size, plan.pitch);
  std::byte* to = image + slab.at * plan.pitch * plan.pixel;
  for (std::int64_t line = 0; line < lines; ++line, to += plan.pitch * plan.pixel) {
    const std::int64_t y = slab.line * down.stride + line - down.before;
    const bool inside = y >= 0 && y < down.size;
    const std::int64_t taken = inside ? end - first : 0, before = inside ? first : plan.pitch;
    __builtin_memset(to, p.outside, before * plan.pixel);
    const std::byte* from = slab.x + y * p.x_stride[1];
    if (p.x_stride[2] == plan.pixel) {
      if (taken > 0) __builtin_memcpy(to + before * plan.pixel, from, taken * plan.pixel);
    } else {
      for (std::int64_t i = 0; i < taken; ++i, from += p.x_stride[2]) copy_values((const T*)from, (T*)(to + (before + i) * plan.pixel), (int)p.channels);
    }
    __builtin_memset(to + (before + taken) * plan.pixel, p.outside, (plan.pitch - before - taken) * plan.pixel);
  }
}

/// Packs a tile's rows: the lines of their windows one after the other, zeros up to a whole step. Lines are copied N bytes at a time, which may
/// reach into the next one's place.
template <int N>
void pack_windows(const Patches& p, const ImagePlan& plan, const ImageTile& tile, const std::byte* image, std::byte* to) {
  const std::int64_t line_bytes = plan.pitch * plan.pixel, run = p.axis[2].kernel * plan.pixel, used = run * p.axis[1].kernel;
  const std::int64_t tap = p.axis[1].dilation * line_bytes, next = p.axis[2].stride * plan.pixel;
  const __mmask64 behind = used % 64 == 0 ? 0 : ~0ull << (used % 64);
  const std::byte* window = image + tile.at;
  std::int64_t column = tile.column;
  for (std::int64_t r = 0; r < tile.pixels; ++r, to += plan.row_bytes()) {
    const std::byte* from = window;
    std::byte* packed = to;
    for (std::int64_t y = 0; y < p.axis[1].kernel; ++y, from += tap, packed += run)
      for (std::int64_t i = 0; i < run; i += N) __builtin_memcpy(packed + i, from + i, N);
    writes(to + used, used % 64 == 0 ? 0 : 64 - used % 64);
    _mm512_mask_storeu_epi8(to + used / 64 * 64, behind, _mm512_setzero_si512());
    window += next;
    if (++column == p.out[2]) {
      column = 0;
      window += p.axis[1].stride * line_bytes - p.out[2] * next;
    }
  }
}

/// Output lines from a job's row on that an image's lines from `at` on have room for, as many as are wanted; all or none behind others.
template <class T>
Slab next_slab(const MatmulJob& job, std::int64_t row, std::int64_t at) {
  const Patches& p = *job.patches;
  const ImagePlan& plan = *job.image;
  const std::int64_t width = p.out[2], height = p.out[1], pixel = p.first + row, line = pixel / width % height;
  const std::int64_t left = (pixel % width + job.rows - row + width - 1) / width, wanted = smaller(left, height - line);
  const std::int64_t room = (plan.lines - at - plan.halo) / (plan.packs ? p.axis[1].stride : 1);
  return {p.x + pixel / width / height * p.image_stride, line, line + (room >= wanted ? wanted : at == 0 ? room : 0), at};
}

/// Tiles of the outputs from a slab's `column` on, and of `row` of the job; returns how many.
INGOT_INLINE std::int64_t find_tiles(const Patches& p, const ImagePlan& plan, const Slab& slab, std::int64_t column, std::int64_t row,
                                     std::int64_t outputs, ImageTile* tiles) {
  const std::int64_t width = p.out[2], last = column + outputs - 1;
  std::int64_t count = 0;
  if (plan.packs) {
    for (std::int64_t output = column; output <= last; output += 16) {
      const std::int64_t from = (slab.at + output / width * p.axis[1].stride) * plan.pitch + output % width * p.axis[2].stride;
      tiles[count++] = {from * plan.pixel, row - column + output, output % width, smaller(16, last + 1 - output)};
    }
    return count;
  }
  const std::int64_t behind = last / width * plan.pitch + last % width + 1;
  for (std::int64_t pixel = column; pixel < behind; pixel += 16) {
    const std::int64_t in_line = pixel % plan.pitch, first = row - column + pixel / plan.pitch * width + smaller(in_line, width);
    tiles[count++] = {(slab.at * plan.pitch + pixel) * kPixel, first, in_line, smaller(16, behind - pixel)};
  }
  return count;
}

/// Copies what outputs from `row` of the job on read, as many as there is room for; `row` becomes the next one. Returns the number of tiles.
template <class T>
std::int64_t fill_image(const MatmulJob& job, const ImageMemory& memory, std::int64_t& row) {
  const Patches& p = *job.patches;
  const ImagePlan& plan = *job.image;
  const std::int64_t width = p.out[2], step = plan.packs ? p.axis[1].stride : 1;
  std::int64_t at = 0, tiles = 0;
  while (row < job.rows) {
    const Slab slab = next_slab<T>(job, row, at);
    const std::int64_t lines = slab.end - slab.line, column = (p.first + row) % width;
    if (lines == 0) break;
    const std::int64_t outputs = smaller(lines * width - column, job.rows - row);
    if (plan.packs) copy_lines<T>(p, plan, slab, memory.image);
    else copy_slab<T>(p, plan, slab, memory.image);
    tiles += find_tiles(p, plan, slab, column, row, outputs, memory.tiles + tiles);
    at += lines * step + plan.halo;
    row += outputs;
  }
  if (!plan.packs) end_lines<T>(p, plan, at, memory.image);
  return tiles;
}

/// Tiles whose rows are packed, a pair at a time.
template <class T>
void multiply_packed(const MatmulJob& job, const ImageMemory& memory, std::int64_t tiles) {
  const Patches& p = *job.patches;
  const ImagePlan& plan = *job.image;
  const std::int64_t stride = plan.row_bytes(), run = p.axis[2].kernel * plan.pixel;
  const auto pack = run <= 16 ? pack_windows<16> : run <= 32 ? pack_windows<32> : pack_windows<64>;
  const auto place = [&](std::int64_t i) { return memory.rows + i % 2 * 16 * stride; };
  const auto prepare = [&](std::int64_t pair) {
    for (std::int64_t i = 2 * pair; i < smaller(2 * pair + 2, tiles); ++i) pack(p, plan, memory.tiles[i], memory.image, place(i));
  };
  const auto tile = [&](std::int64_t i) { return RowTile{place(i), memory.tiles[i].row, 0, 0, (int)memory.tiles[i].pixels}; };
  multiply_tiles<T>(job, {stride, job.rows, job.rows, stride}, tiles, 1, prepare, tile, DenseSteps{(int)plan.steps}, memory.sums);
}

template <class T>
void multiply_image(const MatmulJob& job) {
  const ImagePlan& plan = *job.image;
  const auto memory = layout_at<ImageMemory>(job.scratch, plan);
  if (!plan.packs) find_steps<T>(*job.patches, plan, memory.steps);
  const auto tile = [&](std::int64_t i) {
    const ImageTile& of = memory.tiles[i];
    return RowTile{memory.image + of.at, of.row, of.column, 0, (int)of.pixels};
  };
  for (std::int64_t row = 0; row < job.rows;) {
    const std::int64_t tiles = fill_image<T>(job, memory, row);
    if (plan.packs) {
      multiply_packed<T>(job, memory, tiles);
    } else {
      const TileRows rows{kPixel, job.patches->out[2], plan.pitch, plan.planes() * kPixel};
      multiply_tiles<T>(job, rows, tiles, 0, [](std::int64_t) {}, tile, ImageSteps{memory.steps, (int)plan.steps}, memory.sums);
    }
  }
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
