// Packing of patches: what makes a convolution a matrix product. Channels lie side by side in x, and with dilation 1 so
// do the taps along the last dimension. Such runs of (tap, channel) are copied whole, for all output pixels of a line
// in turn.
#pragma once

#include "matmul.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

INGOT_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
INGOT_INLINE std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

/// Which output pixel that number is, of images of that size one after the other.
struct Pixel {
  std::int64_t image, z, y, x;
};
INGOT_INLINE Pixel pixel_of(std::int64_t number, const std::int64_t (&size)[3]) {
  const std::int64_t line = number / size[2], plane = line / size[1];
  return {plane / size[0], plane % size[0], line % size[1], number % size[2]};
}

template <int N>
struct Bytes {
  char bytes[N];
};
/// N bytes to 2N: the first N, then the last N, over each other.
template <int N>
INGOT_INLINE void copy_ends(const std::byte* from, std::byte* to, int bytes) {
  Bytes<N> first, last;
  __builtin_memcpy(&first, from, N);
  __builtin_memcpy(&last, from + bytes - N, N);
  __builtin_memcpy(to, &first, N);
  __builtin_memcpy(to + bytes - N, &last, N);
}

/// Copies count values, converted when the types differ; without a call: they are few and often of the same number.
template <class Source, class Packed>
INGOT_INLINE void copy_values(const Source* from, Packed* to, int count) {
  if constexpr (sizeof(Source) == sizeof(Packed)) {
    const int bytes = count * (int)sizeof(Source);
    const std::byte* source = (const std::byte*)from;
    std::byte* target = (std::byte*)to;
    if (bytes >= 64) {
      for (int i = 0; i + 64 <= bytes; i += 64) __builtin_memcpy(target + i, source + i, 64);
      if (bytes % 64 != 0) __builtin_memcpy(target + bytes - 64, source + bytes - 64, 64);
    } else if (bytes >= 32) {
      copy_ends<32>(source, target, bytes);
    } else if (bytes >= 16) {
      copy_ends<16>(source, target, bytes);
    } else if (bytes >= 8) {
      copy_ends<8>(source, target, bytes);
    } else {
      for (int i = 0; i < count; ++i) to[i] = from[i];
    }
  } else {
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
    if (i == count) return;
    if (count >= kLanes)
      store(to + count - kLanes, load(from + count - kLanes));
    else
      store_partial(to, load_partial(from, count), count);
  }
}

#if defined(__AVX512BW__)
/// Rows of up to V * 64 bytes each, more than (V - 1) * 64. Whole vectors are written: what follows in a packed row is packed later,
/// and between two rows there is room.
template <int V>
INGOT_INLINE void copy_rows(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t rows, int bytes) {
  const __mmask64 last = ~(__mmask64)0 >> (V * 64 - bytes);
  for (std::int64_t i = 0; i < rows; ++i, from += from_stride, to += kXStride) {
    reads(from, bytes);
    _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v)
      _mm512_storeu_si512(to + v * 64, v + 1 < V ? _mm512_loadu_si512(from + v * 64) : _mm512_maskz_loadu_epi8(last, from + v * 64));
  }
}
#endif

/// Copies `count` values to each of `rows` packed rows, from places `stride` bytes apart.
template <class Source, class Packed>
INGOT_INLINE void copy_to_rows(const std::byte* from, std::int64_t stride, Packed* to, std::int64_t rows, int count) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(Source) == sizeof(Packed)) {
    const int bytes = count * (int)sizeof(Source);
    if (bytes <= 64) return copy_rows<1>(from, stride, (std::byte*)to, rows, bytes);
    if (bytes <= 128) return copy_rows<2>(from, stride, (std::byte*)to, rows, bytes);
  }
#endif
  for (std::int64_t i = 0; i < rows; ++i) copy_values((const Source*)(from + i * stride), (Packed*)((std::byte*)to + i * kXStride), count);
}

/// One run (or a part of it) of the taps from `tap` on, values [at, at + length) of it, for output pixels [first, first + count)
/// of a line. `line` is the input line's first pixel, or null when the line lies outside.
template <class Source, class Packed>
INGOT_INLINE void pack_run(const Patches& p, const std::byte* line, std::int64_t tap, std::int64_t at, int length, std::int64_t first,
                           std::int64_t count, Packed* packed) {
  const auto row = [&](std::int64_t j) { return (Packed*)((std::byte*)packed + j * kXStride); };
  const std::int64_t step = p.axis[2].stride, offset = tap * p.axis[2].dilation - p.axis[2].before;  // the first tap's pixel: o * step + offset
  std::int64_t j = 0;
  while (j < count) {
    const std::int64_t pixel = (first + j) * step + offset;
    const std::int64_t room = p.axis[2].size - p.run - pixel;  // the pixels that follow before a tap would lie outside
    if (line != nullptr && pixel >= 0 && room >= 0) {
      const std::int64_t whole = smaller(count - j, room / step + 1);
      const std::byte* from = line + pixel * p.x_stride[2] + at * (int)sizeof(Source);
      copy_to_rows<Source>(from, step * p.x_stride[2], row(j), whole, length);
      j += whole;
      continue;
    }
    const std::int64_t inside = smaller(larger(0, -pixel), p.run);  // the first tap that is, and the first behind those
    const std::int64_t outside = larger(inside, smaller(p.run, p.axis[2].size - pixel));
    const std::int64_t low = smaller(larger(inside * p.channels - at, 0), length);
    const std::int64_t high = line == nullptr ? low : larger(low, smaller(outside * p.channels - at, length));
    Packed* to = row(j);
    __builtin_memset((void*)to, p.outside, length * sizeof(Packed));
    if (low < high)
      copy_values((const Source*)(line + pixel * p.x_stride[2] + (at + low) * (int)sizeof(Source)), to + low, (int)(high - low));
    ++j;
  }
}

/// Packs values [begin, end) of k of `rows` output pixels as [row][kXStride bytes].
template <class Source, class Packed>
void pack_patches(const Patches& p, std::int64_t first_row, std::int64_t rows, std::int64_t begin, std::int64_t end,
                  std::byte* packed) {
  const std::int64_t run = p.run * p.channels, runs = p.axis[2].kernel / p.run;
  for (std::int64_t r = 0, count; r < rows; r += count) {
    const Pixel pixel = pixel_of(p.first + first_row + r, p.out);
    const std::byte* image = p.x + pixel.image * p.image_stride;
    count = smaller(rows - r, p.out[2] - pixel.x);
    std::byte* to = packed + r * kXStride;
    for (std::int64_t k = begin, length; k < end; k += length, to += length * (int)sizeof(Packed)) {
      std::int64_t tap = k / run;
      const std::int64_t at = k - tap * run, last = tap % runs * p.run;
      length = smaller(run - at, end - k);
      tap /= runs;
      const std::int64_t in_y = pixel.y * p.axis[1].stride + tap % p.axis[1].kernel * p.axis[1].dilation - p.axis[1].before;
      const std::int64_t in_z = pixel.z * p.axis[0].stride + tap / p.axis[1].kernel * p.axis[0].dilation - p.axis[0].before;
      const bool inside = in_y >= 0 && in_y < p.axis[1].size && in_z >= 0 && in_z < p.axis[0].size;
      pack_run<Source>(p, inside ? image + in_z * p.x_stride[0] + in_y * p.x_stride[1] : nullptr, last, at, (int)length, pixel.x, count,
                       (Packed*)to);
    }
  }
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
