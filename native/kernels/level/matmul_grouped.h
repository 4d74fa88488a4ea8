// Convolutions in groups of at most 16 outputs for AVX-512, where a panel of 32 outputs would stay nearly empty: a vector has 16
// outputs of one or several groups, and a permutation brings each of its lanes the channels of its own group.
//
// The sums have the order of the product over patches: positions of the window, then channels, in one accumulator. So the bits are the
// same. A lane sees no channel of another group, whatever that holds.
#pragma once

#include "matmul.h"
#include "matmul_patches.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512F__)

struct FloatWords {  // a word is a float
  INGOT_INLINE __m512i begin(__m512i x) { return x; }
  INGOT_INLINE Vec add(Vec sum, __m512i w, __m512i x) { return fma({_mm512_castsi512_ps(x)}, {_mm512_castsi512_ps(w)}, sum); }
  INGOT_INLINE Vec finish(Vec sum) { return sum; }
};

#if defined(__AVX512BF16__)
struct PairWords {
  INGOT_INLINE __m512i begin(__m512i x) { return x; }
  INGOT_INLINE Vec add(Vec sum, __m512i w, __m512i x) { return {_mm512_dpbf16_ps(sum.v, (__m512bh)x, (__m512bh)w)}; }
  INGOT_INLINE Vec finish(Vec sum) { return sum; }
};
#endif

#if defined(__AVX512VNNI__)
struct QuadWords {  // x has 128 added, which GroupedJob::start takes back
  INGOT_INLINE __m512i begin(__m512i x) { return _mm512_xor_si512(x, _mm512_set1_epi8((char)-128)); }
  INGOT_INLINE Vec add(Vec sum, __m512i w, __m512i x) { return from_bits({_mm512_dpbusd_epi32(bits(sum).v, x, w)}); }
  INGOT_INLINE Vec finish(Vec sum) { return to_float(bits(sum)); }
};
#endif

/// R neighbouring outputs from `column` on of 16 channels, to rows of values. `Inside`: their windows do not leave the line.
template <class Words, int W, int R, bool Inside>
INGOT_INLINE void grouped_tile(const GroupedJob& job, std::int64_t unit, std::int64_t column, float* values, std::int64_t stride) {
  const WindowAxis* const axis = job.axis;
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i first = _mm512_mullo_epi32(_mm512_srli_epi32(lanes, (unsigned)job.log_outputs), _mm512_set1_epi32(W));
  const std::int64_t groups = smaller(16 >> job.log_outputs, job.groups - (unit * 16 >> job.log_outputs));
  const __mmask16 mask = first_lanes((int)groups * W);
  const __m512i outside = _mm512_set1_epi8((char)job.outside);
  const std::byte* w = job.w + unit * job.w_unit;
  const std::byte* const x = job.x + (unit * 16 >> job.log_outputs) * W * 4;
  Vec sum[R];
  const Vec start = load(job.start + unit * kLanes);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = start;
  const std::int64_t left = column * axis[2].stride - axis[2].before;
  for (std::int64_t z = 0; z < axis[0].kernel; ++z) {
    const std::int64_t plane = job.plane + z * axis[0].dilation;
    for (std::int64_t y = 0; y < axis[1].kernel; ++y) {
      const std::int64_t line = job.line + y * axis[1].dilation;
      const bool there = plane >= 0 && plane < axis[0].size && line >= 0 && line < axis[1].size;
      const std::byte* const from = x + plane * job.x_step[0] + line * job.x_step[1];
      for (std::int64_t i = 0; i < axis[2].kernel; ++i, w += W * 64) {
        const std::int64_t pixel = left + i * axis[2].dilation;
        __m512i words[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const std::int64_t at = pixel + r * axis[2].stride;
          const bool inside = there && (Inside || (at >= 0 && at < axis[2].size));
          const __mmask16 read = inside ? mask : 0;
          if (inside) reads(from + at * job.x_step[2], groups * W * 4);
          words[r] = Words::begin(_mm512_mask_loadu_epi32(outside, read, inside ? from + at * job.x_step[2] : job.x));
        }
#pragma GCC unroll 16
        for (int c = 0; c < W; ++c) {
          const __m512i weight = _mm512_loadu_si512(w + c * 64), order = _mm512_add_epi32(first, _mm512_set1_epi32(c));
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) sum[r] = Words::add(sum[r], weight, _mm512_permutexvar_epi32(order, words[r]));
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) store(values + r * stride, Words::finish(sum[r]));
}

/// Outputs [first, last) of the line, to rows of values.
template <class Words, int W>
void grouped_columns(const GroupedJob& job, std::int64_t first, std::int64_t last, float* values, std::int64_t stride) {
  constexpr int kBlock = W <= 4 ? 12 : 8;
  const WindowAxis& axis = job.axis[2];
  const std::int64_t reach = (axis.kernel - 1) * axis.dilation;
  for (std::int64_t unit = 0; unit < job.units; ++unit, values += kLanes) {
    float* to = values;
    for (std::int64_t column = first; column < last;) {
      const std::int64_t at = column * axis.stride - axis.before, end = at + (kBlock - 1) * axis.stride + reach;
      if (last - column >= kBlock && at >= 0 && end < axis.size) {
        grouped_tile<Words, W, kBlock, true>(job, unit, column, to, stride);
        column += kBlock, to += kBlock * stride;
      } else if (last - column >= 4) {
        grouped_tile<Words, W, 4, false>(job, unit, column, to, stride);
        column += 4, to += 4 * stride;
      } else {
        grouped_tile<Words, W, 1, false>(job, unit, column, to, stride);
        column += 1, to += stride;
      }
    }
  }
}

template <class Words>
void run_grouped(const GroupedJob& job) {
  EpilogueTile tile;
  begin_epilogue(job.epilogue, tile);
  const std::int64_t width = job.units * kLanes, step = kGroupedValues / width;
  for (std::int64_t first = job.first; first < job.last; first += step) {
    const std::int64_t last = smaller(job.last, first + step);
    switch (job.words) {
      case 1: grouped_columns<Words, 1>(job, first, last, job.values, width); break;
      case 2: grouped_columns<Words, 2>(job, first, last, job.values, width); break;
      case 4: grouped_columns<Words, 4>(job, first, last, job.values, width); break;
      case 8: grouped_columns<Words, 8>(job, first, last, job.values, width); break;
      default: grouped_columns<Words, 16>(job, first, last, job.values, width); break;
    }
    run_epilogue(job.epilogue, tile, job.values, width, first - job.first, last - first, 0, job.outputs);
  }
}

#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
