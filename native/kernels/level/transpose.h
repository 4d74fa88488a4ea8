// 16 vectors of 16 floats as the columns of a block in memory.
#pragma once

#include "simd.h"

namespace ingot::INGOT_LEVEL {

// y[16 * d + t] = x[t][d]. Where registers have shuffles: pairs, fours, then 128-bit lanes twice.
#if defined(__AVX512F__)
INGOT_INLINE void transpose(const Vec* x, float* y) {
  __m512 a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(x[i].v, x[i + 1].v);
    a[i + 1] = _mm512_unpackhi_ps(x[i].v, x[i + 1].v);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // b[4 * j + i]: columns i, i + 4, i + 8, i + 12 of rows 4 * j ..
    a[i] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
    a[i + 4] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
    a[i + 8] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
    a[i + 12] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    store(y + i * 16, {_mm512_shuffle_f32x4(a[i], a[i + 8], 0x88)});
    store(y + (i + 4) * 16, {_mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0x88)});
    store(y + (i + 8) * 16, {_mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd)});
    store(y + (i + 12) * 16, {_mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0xdd)});
  }
}
#else
INGOT_INLINE void transpose(const Vec* x, float* y) {
  for (int t = 0; t < kLanes; ++t) {
    float row[kLanes];
    store(row, x[t]);
    for (int d = 0; d < kLanes; ++d) y[d * kLanes + t] = row[d];
  }
}
#endif

}  // namespace ingot::INGOT_LEVEL
