// Dot products of int8: quads of four values, a lane each, with int32 sums that are exact.
//
// The instructions of VNNI, and VPMADDUBSW where there is none, take one operand without a sign. That is x where no packed row has a
// negative value, as ReLU leaves them; the sum of two products, at most 2 · 127 · 128, fits into VPMADDUBSW's 16 bits. For other rows
// VNNI takes x with 128 added, which is an exclusive or, once for all outputs; so sums begin with -128 times the sum of an output's
// weights. (What lies outside int32 on the way does not matter: VPDPBUSD wraps around, and the sum comes back.) Without VNNI both
// operands are widened to 16 bits, even and odd values apart, whose products are summed in pairs: packed rows are widened once for all
// outputs.
#pragma once

#include "matmul.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

typedef std::int32_t Quads4 __attribute__((vector_size(16)));

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

constexpr bool kRowSums = true;
#define INGOT_UNSIGNED_QUADS 1

/// Four values of each of 16 outputs, with 128 added.
INGOT_INLINE Ints load_quads(const std::byte* w) {
  const Ints quads = bits(load((const float*)w));
#if defined(__AVX512VNNI__)
  return {_mm512_xor_si512(quads.v, _mm512_set1_epi8((char)-128))};
#else
  const __m256i high = _mm256_set1_epi8((char)-128);
  return {_mm256_xor_si256(quads.a, high), _mm256_xor_si256(quads.b, high)};
#endif
}

/// Adds to sum the products of four bytes without a sign and four with one. (Written as an instruction where there are many
/// sums: GCC 12 puts two moves of registers beside every three of the intrinsic here.)
INGOT_INLINE void add_dots(Ints& sum, Ints without, Ints with) {
#if defined(__AVX512VNNI__)
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(without.v), "v"(with.v));
#else
  sum = {_mm256_dpbusd_avx_epi32(sum.a, without.a, with.a), _mm256_dpbusd_avx_epi32(sum.b, without.b, with.b)};
#endif
}

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
#else
  __m256i sums = _mm256_setzero_si256();
  for (; k + 32 <= depth; k += 32) sums = _mm256_dpbusd_avx_epi32(sums, _mm256_set1_epi8(1), _mm256_loadu_si256((const __m256i*)(x + k)));
  std::int32_t lanes[8];
  _mm256_storeu_si256((__m256i*)lanes, sums);
  for (std::int32_t lane : lanes) sum += lane;
#endif
  for (; k < depth; ++k) sum += x[k];
  *(std::int32_t*)(row + kRowSum) = -128 * sum;
}

/// Adds to sum the products of four values in each lane, where no value of x is negative.
INGOT_INLINE void add_dot4(Ints& sum, Ints w, Ints x) { add_dots(sum, x, w); }

/// What signed rows need in a product: 128 is added to each of their `depth` values, and to what follows up to a whole vector.
inline void prepare_signed(std::byte* packed, std::int64_t rows, int depth) {
  for (std::int64_t r = 0; r < rows; ++r, packed += kXStride)
    for (int k = 0; k < depth; k += kLanes * 4) store((float*)(packed + k), from_bits(load_quads(packed + k)));
}

/// What the sums of a panel begin with for such rows: -128 times those of the weights, over a block of `depth` of them.
inline void start_signed(const std::byte* w, int depth, std::int32_t* start) {
#if defined(__AVX512F__)
  constexpr int kChains = 4;
#else
  constexpr int kChains = 2;
#endif
  Ints sums[kChains][2];
  for (auto& chain : sums) chain[0] = chain[1] = broadcast_int(0);
  const Ints each = broadcast_int((std::int32_t)0x80808080);
  const auto add = [&](Ints (&to)[2]) __attribute__((always_inline)) {
    add_dots(to[0], each, bits(load((const float*)w)));
    add_dots(to[1], each, bits(load((const float*)(w + kPanel * 2))));
    w += kPanel * 4;
  };
  int k = 0;
  for (; k + 4 * kChains <= depth; k += 4 * kChains) {
    INGOT_UNROLL for (int i = 0; i < kChains; ++i) add(sums[i]);
  }
  for (; k < depth; k += 4) add(sums[0]);
  for (int c = 0; c < 2; ++c) {
    for (int i = 1; i < kChains; ++i) sums[0][c] = sums[0][c] + sums[i][c];
    store((float*)(start + c * kLanes), from_bits(broadcast_int(0) - sums[0][c]));
  }
}

#else

#if defined(__AVX2__)
#define INGOT_UNSIGNED_QUADS 1

/// Adds to sum the products of four values in each lane, where no value of x is negative. (The empty instructions hold the order of the
/// sums, here and below: GCC 12 would add products before the sums, which leaves no registers for these.)
INGOT_INLINE void add_dot4(Ints& sum, Ints w, Ints x) {
#if defined(__AVX512BW__)
  sum = sum + Ints{_mm512_madd_epi16(_mm512_maddubs_epi16(x.v, w.v), _mm512_set1_epi16(1))};
  __asm__("" : "+v"(sum.v));
#else
  const auto products = [](__m256i a, __m256i b) { return _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)); };
  sum = sum + Ints{products(x.a, w.a), products(x.b, w.b)};
  __asm__("" : "+x"(sum.a), "+x"(sum.b));
#endif
}
#else
#define INGOT_UNSIGNED_QUADS 0  // SSE2 has no such instruction
#endif

/// Four values of each of 16 outputs: two of 16 bits in a lane of each.
struct Quads16 {
  Ints even, odd;
};
constexpr bool kRowSums = false;

typedef std::int16_t Shorts8 __attribute__((vector_size(16)));
INGOT_INLINE Quads4 even_words(Quads4 quads) { return (Quads4)(((Shorts8)quads << 8) >> 8); }
INGOT_INLINE Quads4 odd_words(Quads4 quads) { return (Quads4)((Shorts8)quads >> 8); }

#if !defined(__AVX2__)
INGOT_INLINE Ints4 dot2_4(Ints4 w, Ints4 x) {
#if defined(__SSE2__)
  return (Ints4)__builtin_ia32_pmaddwd128((Shorts8)w, (Shorts8)x);
#else
  return ((Ints4)((Words4)w << 16) >> 16) * ((Ints4)((Words4)x << 16) >> 16) + (w >> 16) * (x >> 16);
#endif
}
#endif

INGOT_INLINE Quads16 widened(Ints quads) {
#if defined(__AVX512BW__)
  return {{_mm512_srai_epi16(_mm512_slli_epi16(quads.v, 8), 8)}, {_mm512_srai_epi16(quads.v, 8)}};
#elif defined(__AVX2__)
  const auto even = [](__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); };
  return {{even(quads.a), even(quads.b)}, {_mm256_srai_epi16(quads.a, 8), _mm256_srai_epi16(quads.b, 8)}};
#else
  return {{even_words(quads.a), even_words(quads.b), even_words(quads.c), even_words(quads.d)},
          {odd_words(quads.a), odd_words(quads.b), odd_words(quads.c), odd_words(quads.d)}};
#endif
}

INGOT_INLINE Quads16 load_quads(const std::byte* w) { return widened(bits(load((const float*)w))); }

/// Adds to sum the products of two values of 16 bits in each lane.
INGOT_INLINE void add_dot2(Ints& sum, Ints w, Ints x) {
#if defined(__AVX512BW__)
  sum = sum + Ints{_mm512_madd_epi16(w.v, x.v)};
  __asm__("" : "+v"(sum.v));
#elif defined(__AVX2__)
  sum = sum + Ints{_mm256_madd_epi16(w.a, x.a), _mm256_madd_epi16(w.b, x.b)};
  __asm__("" : "+x"(sum.a), "+x"(sum.b));
#else
  sum = sum + Ints{dot2_4(w.a, x.a), dot2_4(w.b, x.b), dot2_4(w.c, x.c), dot2_4(w.d, x.d)};
#endif
}

/// Makes a packed row's `depth` values of 8 bits twice as wide where they lie, those of a quad in the order 0 2 1 3. What follows up to a whole 16
/// values is overwritten.
inline void widen_row(std::byte* row, int depth) {
  for (int k = ((depth + 15) & ~15) - 16; k >= 0; k -= 16) {  // from the end on: what is written has been read
    Quads4 quads;
    __builtin_memcpy(&quads, row + k, 16);
    const Quads4 even = even_words(quads), odd = odd_words(quads);
    const Quads4 wide[2] = {__builtin_shuffle(even, odd, Quads4{0, 4, 1, 5}), __builtin_shuffle(even, odd, Quads4{2, 6, 3, 7})};
    __builtin_memcpy(row + 2 * k, wide, 32);
  }
}

/// What signed rows need in a product.
inline void prepare_signed(std::byte* packed, std::int64_t rows, int depth) {
  for (std::int64_t r = 0; r < rows; ++r) widen_row(packed + r * kXStride, depth);
}

#endif

/// Whether one of a packed row's `depth` values, a multiple of 4, is negative.
INGOT_INLINE bool has_negative(const std::byte* row, int depth) {
#if defined(__AVX512BW__)
  __m512i found = _mm512_setzero_si512();
  for (int k = 0; k < depth; k += 64) {
    const int left = depth - k;
    if (left < 64) reads(row + k, left);
    found = _mm512_or_si512(found, left >= 64 ? _mm512_loadu_si512(row + k) : _mm512_maskz_loadu_epi8(((__mmask64)1 << left) - 1, row + k));
  }
  return _mm512_movepi8_mask(found) != 0;
#else
  Quads4 found = {};
  for (int k = 0; k + 16 <= depth; k += 16) {
    Quads4 quads;
    __builtin_memcpy(&quads, row + k, 16);
    found |= quads;
  }
  std::int32_t any = found[0] | found[1] | found[2] | found[3];
  for (int k = depth & ~15; k < depth; k += 4) any |= *(const std::int32_t*)(row + k);
  return (any & (std::int32_t)0x80808080) != 0;
#endif
}

/// Finds out whether packed rows are signed, says so in the first one, and prepares them if they are. Up to `few` of them stay as they are where
/// the weights become those without a sign, and say their sums.
inline void finish_quads(std::byte* packed, std::int64_t rows, int depth, [[maybe_unused]] std::int64_t few) {
  bool negative = !INGOT_UNSIGNED_QUADS;
  for (std::int64_t r = 0; r < rows && !negative; ++r) negative = has_negative(packed + r * kXStride, depth);
  *(std::int32_t*)(packed + kSigned) = negative;
  if (!negative) return;
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  if (rows <= few) {
    for (std::int64_t r = 0; r < rows; ++r) store_row_sum(packed + r * kXStride, depth);
    return;
  }
#endif
  prepare_signed(packed, rows, depth);
}
[[maybe_unused]] INGOT_INLINE bool are_signed(const std::byte* packed) { return *(const std::int32_t*)(packed + kSigned) != 0; }

}  // namespace

}  // namespace ingot::INGOT_LEVEL
