// Dot products of int8: quads of four values, a lane each, with int32 sums that are exact.
//
// The instructions of VNNI take one operand without a sign. That is the weights with 128 added, which is an exclusive or, so
// 128 times the sum of x is too much: a packed row carries -128 times its sum (kRowSum). Elsewhere both operands are widened
// to 16 bits, even and odd values apart, and portably value by value.
#pragma once

#include "matmul.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kRowSums = true;
#else
constexpr bool kRowSums = false;
#endif

/// Four values of four weights of 16 outputs, as dot4 reads them.
INGOT_INLINE Ints load_quads(const std::byte* w) {
  const Ints quads = bits(load((const float*)w));
#if defined(__AVX512VNNI__)
  return {_mm512_xor_si512(quads.v, _mm512_set1_epi8((char)-128))};
#elif defined(__AVXVNNI__)
  const __m256i high = _mm256_set1_epi8((char)-128);
  return {_mm256_xor_si256(quads.a, high), _mm256_xor_si256(quads.b, high)};
#else
  return quads;
#endif
}

#if !defined(__AVX512VNNI__) && defined(__AVX512BW__)
INGOT_INLINE __m512i even_values(__m512i quads) { return _mm512_srai_epi16(_mm512_slli_epi16(quads, 8), 8); }
INGOT_INLINE __m512i odd_values(__m512i quads) { return _mm512_srai_epi16(quads, 8); }
INGOT_INLINE __m512i dot4(__m512i sum, __m512i w, __m512i x) {
  const __m512i even = _mm512_madd_epi16(even_values(w), even_values(x)), odd = _mm512_madd_epi16(odd_values(w), odd_values(x));
  return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
}
#elif !defined(__AVXVNNI__) && defined(__AVX2__)
INGOT_INLINE __m256i even_values(__m256i quads) { return _mm256_srai_epi16(_mm256_slli_epi16(quads, 8), 8); }
INGOT_INLINE __m256i odd_values(__m256i quads) { return _mm256_srai_epi16(quads, 8); }
INGOT_INLINE __m256i dot4(__m256i sum, __m256i w, __m256i x) {
  const __m256i even = _mm256_madd_epi16(even_values(w), even_values(x)), odd = _mm256_madd_epi16(odd_values(w), odd_values(x));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
#elif !defined(__AVX2__)
template <int N>
INGOT_INLINE Ints4 value_of_quads(Ints4 quads) {
  return (Ints4)((Words4)quads << (24 - 8 * N)) >> 24;
}
INGOT_INLINE Ints4 dot4(Ints4 sum, Ints4 w, Ints4 x) {
  return sum + value_of_quads<0>(w) * value_of_quads<0>(x) + value_of_quads<1>(w) * value_of_quads<1>(x) +
         value_of_quads<2>(w) * value_of_quads<2>(x) + value_of_quads<3>(w) * value_of_quads<3>(x);
}
#endif

/// sum + the products of four values in each lane.
INGOT_INLINE Ints dot4(Ints sum, Ints w, Ints x) {
#if defined(__AVX512VNNI__)
  return {_mm512_dpbusd_epi32(sum.v, w.v, x.v)};
#elif defined(__AVX512BW__)
  return {dot4(sum.v, w.v, x.v)};
#elif defined(__AVXVNNI__)
  return {_mm256_dpbusd_avx_epi32(sum.a, w.a, x.a), _mm256_dpbusd_avx_epi32(sum.b, w.b, x.b)};
#elif defined(__AVX2__)
  return {dot4(sum.a, w.a, x.a), dot4(sum.b, w.b, x.b)};
#else
  return {dot4(sum.a, w.a, x.a), dot4(sum.b, w.b, x.b), dot4(sum.c, w.c, x.c), dot4(sum.d, w.d, x.d)};
#endif
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
/// Adds to sum the products of four bytes without a sign and four with one. (Written as an instruction where there are many
/// sums: GCC 12 puts two moves of registers beside every three of the intrinsic here.)
INGOT_INLINE void add_dots(Ints& sum, Ints without, Ints with) {
#if defined(__AVX512VNNI__)
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(without.v), "v"(with.v));
#else
  sum = {_mm256_dpbusd_avx_epi32(sum.a, without.a, with.a), _mm256_dpbusd_avx_epi32(sum.b, without.b, with.b)};
#endif
}
#endif

/// Writes -128 times the sum of a packed row's `depth` values behind them.
[[maybe_unused]] INGOT_INLINE void store_row_sum(std::byte* row, int depth) {
  const std::int8_t* const x = (const std::int8_t*)row;
  std::int32_t sum = 0;
  int k = 0;
#if defined(__AVX512VNNI__)
  __m512i sums = _mm512_setzero_si512();
  for (; k < depth; k += 64) {
    const int left = depth - k;
    if (left < 64) reads(x + k, left);
    const __m512i values = left >= 64 ? _mm512_loadu_si512(x + k) : _mm512_maskz_loadu_epi8(((__mmask64)1 << left) - 1, x + k);
    sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), values);
  }
  sum = _mm512_reduce_add_epi32(sums);
#elif defined(__AVXVNNI__)
  __m256i sums = _mm256_setzero_si256();
  for (; k + 32 <= depth; k += 32) sums = _mm256_dpbusd_avx_epi32(sums, _mm256_set1_epi8(1), _mm256_loadu_si256((const __m256i*)(x + k)));
  std::int32_t lanes[8];
  _mm256_storeu_si256((__m256i*)lanes, sums);
  for (std::int32_t lane : lanes) sum += lane;
#endif
  for (; k < depth; ++k) sum += x[k];
  *(std::int32_t*)(row + kRowSum) = -128 * sum;
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
