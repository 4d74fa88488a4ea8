// What the words of narrow weights hold (matmul.h, Packing).
#pragma once

#include "matmul.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

INGOT_INLINE Ints words_at(const std::byte* from, int column) { return bits(load((const float*)(from + column * 4))); }

/// Byte N of each word, of float8 e4m3: its magnitude as bits 20 to 26 of a float has the exponent too low by 120. Where that is 0 there,
/// with 121 more it is 2^-6 above.
template <int N>
INGOT_INLINE Vec float8_of(Ints words) {
  const Ints magnitude = shift_right<8 * N>(words) & broadcast_int(0x7f);
  const Vec normal = from_bits(shift_left<20>(magnitude) + broadcast_int(120 << 23));
  const Vec least = broadcast(0x1p-6f);
  const Ints sign = shift_left<24 - 8 * N>(words) & broadcast_int((std::int32_t)0x80000000);
  return from_bits(bits(select(normal < least, normal + normal - least, normal)) | sign);
}

/// Value N of each word.
template <Packing How, int N>
INGOT_INLINE Vec narrow_of(Ints words) {
  if constexpr (How == Packing::float8) return float8_of<N>(words);
  else return value_of<How == Packing::int8 ? 8 : 4, N>(words);
}

#if defined(__AVX512BW__)
/// Values of 4 bits as bfloat16, twice, so that a fifth bit does not matter.
alignas(64) static constexpr std::uint16_t kPairValues[32] = {
    0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
    0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};

/// The upper halves of two vectors' words, side by side.
alignas(64) static constexpr std::uint16_t kUpperHalves[32] = {1,  33, 3,  35, 5,  37, 7,  39, 9,  41, 11, 43, 13, 45, 15, 47,
                                                               17, 49, 19, 51, 21, 53, 23, 55, 25, 57, 27, 59, 29, 61, 31, 63};

/// Pair N of each word, as bfloat16. A value of 8 bits with 128 added is the end of a float's fraction, which leaves few shifts. Values of 4 bits are
/// looked up by the lowest bits of each half of a word: pair N has values N and N + 4 (pair_halves).
template <Packing How, int N>
INGOT_INLINE Ints pair_of(Ints words) {
  constexpr __mmask32 kUpper = 0xaaaaaaaa;
  if constexpr (How == Packing::int8) {
    const auto value = [&](int at) __attribute__((always_inline)) {
      const __m512i byte = at == 0 ? words.v : _mm512_srli_epi32(words.v, 8 * at);
      const __m512i above = _mm512_ternarylogic_epi32(byte, _mm512_set1_epi32(0xff), _mm512_set1_epi32(0x4b000080), 0x6a);  // (byte & 0xff) ^ 2^23 and 128
      return _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(above), _mm512_set1_ps(0x1p23f + 128)));
    };
    return {_mm512_permutex2var_epi16(value(2 * N), _mm512_load_si512(kUpperHalves), value(2 * N + 1))};
  } else if constexpr (How != Packing::int4) {
    const __m512i even = bits(narrow_of<How, 2 * N>(words)).v, odd = bits(narrow_of<How, 2 * N + 1>(words)).v;
    return {_mm512_mask_blend_epi16(kUpper, _mm512_srli_epi32(even, 16), odd)};
  } else {
    return {_mm512_permutexvar_epi16(N == 0 ? words.v : _mm512_srli_epi32(words.v, 4 * N), _mm512_load_si512(kPairValues))};
  }
}

/// Lays out a packed row as the pairs of 4 bits are: each eight values as pairs of one of the first four and one of the others. What follows up to a
/// whole vector is overwritten.
[[maybe_unused]] INGOT_INLINE void pair_halves(std::byte* row, int depth) {
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  for (int k = 0; k < depth; k += 32, row += 64) _mm512_storeu_si512(row, _mm512_shuffle_epi8(_mm512_loadu_si512(row), order));
}
#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
