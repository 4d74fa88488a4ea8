// What the words of narrow weights hold (matmul.h, Packing).
#pragma once

#include "matmul.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

INGOT_INLINE Ints words_at(const std::byte* from, int column) { return bits(load((const float*)(from + column * 4))); }

#if defined(__AVX512BW__)
/// Pair N of each word, as bfloat16. Values of 4 bits are looked up by the lowest bits of each half of a word.
template <int Bits, int N>
INGOT_INLINE Ints pair_of(Ints words) {
  constexpr __mmask32 kUpper = 0xaaaaaaaa;
  if constexpr (Bits == 8) {
    const __m512i even = bits(value_of<8, 2 * N>(words)).v, odd = bits(value_of<8, 2 * N + 1>(words)).v;
    return {_mm512_mask_blend_epi16(kUpper, _mm512_srli_epi32(even, 16), odd)};
  } else {
    alignas(64) static constexpr std::uint16_t kValues[32] = {
        0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
        0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
    constexpr int kUp = 12 - 8 * N;
    const __m512i even = _mm512_srli_epi32(words.v, 8 * N);
    const __m512i odd = kUp > 0 ? _mm512_slli_epi32(words.v, kUp < 0 ? 0 : kUp) : _mm512_srli_epi32(words.v, kUp > 0 ? 0 : -kUp);
    return {_mm512_permutexvar_epi16(_mm512_mask_blend_epi16(kUpper, even, odd), _mm512_load_si512(kValues))};
  }
}
#endif

/// Floats from one panel's scales to the next one's.
INGOT_INLINE std::int64_t scales_of_panel(const MatmulJob& job) { return (job.k + job.group - 1) / job.group * kPanel; }

}  // namespace

}  // namespace ingot::INGOT_LEVEL
