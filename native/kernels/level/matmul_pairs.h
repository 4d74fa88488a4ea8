// Rows of bfloat16 as the products for vector units take them: two values of k side by side (matmul.cpp; the benchmark `invariance`
// derives its ways from this kind). Include after simd.h.
#pragma once

#include "matmul_floats.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512BF16__)
struct Pairs {
  typedef bfloat16 Source;
  typedef bfloat16 Packed;
  typedef __m512bh Values;
  static constexpr Blocking blocking = kPairBlocking;
  static constexpr int k_step = 2, w_depth = 2, w_bytes = kPanel * 4, x_bytes = 4;
  static constexpr bool integers = false, sums_of_groups = false, starts = false, pads_rows = false, ends_rows = true, scales_sums = true;
  static constexpr int unpacks_rows = kInWordsRows;
  static constexpr int panels_at_once(Packing packing, std::int64_t rows) { return panels_of(packing != Packing::same, rows); }
  INGOT_INLINE void finish_row(const MatmulJob& job, std::byte* row, int depth) {
    if (job.packing == Packing::int4) pair_halves(row, depth);
  }
  INGOT_INLINE Values values(const std::byte* w) { return (__m512bh)_mm512_loadu_si512(w); }
  template <Packing How, int N>
  INGOT_INLINE Values values_of(Ints words) { return (__m512bh)pair_of<How, N>(words).v; }
  INGOT_INLINE void store_values(std::byte* to, Values values) { _mm512_storeu_si512(to, (__m512i)values); }
  template <int R, int C>
  INGOT_INLINE void add(Vec (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const __m512bh v = (__m512bh)_mm512_set1_epi32(*(const std::int32_t*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c].v = _mm512_dpbf16_ps(a[r][c].v, v, b[c]);
    }
  }
  INGOT_INLINE void unpack(const MatmulJob& job, std::int64_t, const std::byte* from, std::int64_t, int k, std::byte* panel) {
    unpack_any<Pairs>(job, from, k, panel);
  }
  INGOT_INLINE void multiply(const BlockProduct& p) { multiply_any<Pairs>(p); }
};
#else
/// Without the instruction: the even value of each pair, then the odd one, in float32.
struct Pairs {
  typedef bfloat16 Source;
  typedef float Packed;
  struct Values {
    Vec even, odd;
  };
  static constexpr Blocking blocking = kVectorBlocking;
  static constexpr int k_step = 2, w_depth = 2, w_bytes = kPanel * 4, x_bytes = 8;
  static constexpr bool integers = false, sums_of_groups = false, starts = false, pads_rows = false, ends_rows = true, scales_sums = true;
  static constexpr int unpacks_rows = kInWordsRows;
  static constexpr int panels_at_once(Packing packing, std::int64_t rows) { return panels_of(packing != Packing::same, rows); }
  INGOT_INLINE Values values(const std::byte* w) {
    const Ints pair = bits(load((const float*)w));
    return {from_bits(shift_left<16>(pair)), from_bits(pair & broadcast_int((std::int32_t)0xffff0000))};
  }
  template <Packing How, int N>
  INGOT_INLINE Values values_of(Ints words) { return {narrow_of<How, 2 * N>(words), narrow_of<How, 2 * N + 1>(words)}; }
  template <int R, int C>
  INGOT_INLINE void add(Vec (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec v = broadcast(*(const float*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(v, b[c].even, a[r][c]);
    }
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec v = broadcast(*(const float*)(x + r * kXStride + 4));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(v, b[c].odd, a[r][c]);
    }
  }
#if defined(__AVX2__)
  // Both values and the sums take more than 16 registers, so that more rows than a tile's gain by floats. With 32 it takes four tiles to pay for making them.
  static constexpr int widens_rows = kVecRegisters == 1 ? 4 * kRows : kRows;
  INGOT_INLINE void store_values(std::byte* to, Values values) {
    store((float*)to, values.even);
    store((float*)to + kPanel, values.odd);
  }
  INGOT_INLINE void unpack(const MatmulJob& job, std::int64_t, const std::byte* from, std::int64_t, int k, std::byte* panel) {
    unpack_any<OneByOne<float>>(job, from, k, panel);
  }
  INGOT_INLINE void multiply(const BlockProduct& p) { multiply_narrow<Pairs>(p); }
#else
  // Tiles of two rows gain more by steps of two values, which are half as many.
  INGOT_INLINE void store_values(std::byte* to, Values values) {
    const Ints even = shift_right<16>(bits(values.even)) & broadcast_int(0xffff);
    store((float*)to, from_bits(even | (bits(values.odd) & broadcast_int((std::int32_t)0xffff0000))));
  }
  INGOT_INLINE void unpack(const MatmulJob& job, std::int64_t, const std::byte* from, std::int64_t, int k, std::byte* panel) {
    unpack_any<Pairs>(job, from, k, panel);
  }
  INGOT_INLINE void multiply(const BlockProduct& p) { multiply_any<Pairs>(p); }
#endif
};
#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
