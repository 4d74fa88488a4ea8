// Small matrices of bfloat16 one after the other (SmallProducts), by dot products: b is read from where it lies, its rows becoming pairs in
// registers, so that nothing of it is packed.
#pragma once

#include <utility>

#include "matmul_ends.h"
#include "matmul_pairs.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512BF16__)
/// Rows of a, whose last value of an odd k has a 0 for its partner.
inline void pack_small_rows(const SmallProducts& job, const std::byte* a) {
  for (std::int64_t r = 0; r < job.m; ++r) {
    bfloat16* const to = (bfloat16*)(job.memory.rows + r * kXStride);
    copy_values((const bfloat16*)(a + r * job.a_row), to, (int)job.k);
    if (job.k % 2 != 0) to[job.k] = {};
  }
}

/// R rows of a by 32 columns of b. What is `ahead` of b is fetched.
template <int R>
void small_tile(const SmallProducts& job, const std::byte* x, const std::byte* b, std::int64_t ahead, std::byte* y) {
  Vec a[R][2];
  INGOT_UNROLL for (int r = 0; r < R; ++r) a[r][0] = a[r][1] = zero();
  // Pairs of rows are joined within 128 bits: a sum of the first vector is of columns 0 to 3 of each 8, one of the second of 4 to 7.
  const auto add = [&](const std::byte* pair, __m512i even, __m512i odd) __attribute__((always_inline)) {
    const __m512bh low = (__m512bh)_mm512_unpacklo_epi16(even, odd), high = (__m512bh)_mm512_unpackhi_epi16(even, odd);
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const __m512bh v = (__m512bh)_mm512_set1_epi32(*(const std::int32_t*)(pair + r * kXStride));
      a[r][0].v = _mm512_dpbf16_ps(a[r][0].v, v, low);
      a[r][1].v = _mm512_dpbf16_ps(a[r][1].v, v, high);
    }
  };
  std::int64_t k = 0;
  for (; k + 2 <= job.k; k += 2, b += 2 * job.b_row) {
    __builtin_prefetch(b + ahead);
    __builtin_prefetch(b + ahead + job.b_row);
    add(x + k * 2, _mm512_loadu_si512(b), _mm512_loadu_si512(b + job.b_row));
  }
  if (k < job.k) add(x + k * 2, _mm512_loadu_si512(b), _mm512_setzero_si512());
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    const __m512d low = _mm512_castps_pd(a[r][0].v), high = _mm512_castps_pd(a[r][1].v);
    a[r][0].v = _mm512_castpd_ps(_mm512_permutex2var_pd(low, first, high));
    a[r][1].v = _mm512_castpd_ps(_mm512_permutex2var_pd(low, second, high));
  }
  if (job.out == DType::bfloat16) store_tile((bfloat16*)y, job.y_row / 2, a);
  else store_tile((float*)y, job.y_row / 4, a);
}

template <int... R>
INGOT_INLINE void multiply_small(const SmallProducts& job, std::integer_sequence<int, R...>) {
  static constexpr decltype(&small_tile<1>) by_rows[] = {small_tile<R + 1>...};
  constexpr std::int64_t most = sizeof...(R);
  const std::int64_t tiles = (job.m + most - 1) / most;
  for (std::int64_t i = 0; i < job.count; ++i) {
    if (i == 0 || job.a_step != 0) pack_small_rows(job, job.a + i * job.a_step);
    for (std::int64_t column = 0; column < job.n; column += kPanel) {
      const std::byte* const b = job.b + i * job.b_step + column * 2;
      std::byte* const y = job.y + i * job.y_step + column * bytes_of(job.out);
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        const std::int64_t first = job.m * tile / tiles, rows = job.m * (tile + 1) / tiles - first;
        by_rows[rows - 1](job, job.memory.rows + first * kXStride, b, job.b_step, y + first * job.y_row);
      }
    }
  }
}

inline void run_small(const SmallProducts& job) { multiply_small(job, std::make_integer_sequence<int, kRows>()); }
#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
