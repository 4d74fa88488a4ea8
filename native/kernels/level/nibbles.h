// Rows of int8 against weights of 4 bits in groups: int32 sums of each group, which are exact, times the group's scale in float32.
//
// A word of eight weights becomes two words of four bytes, those with even and those with odd k: hence packed rows have each eight
// values in that order. The bytes are weights with 8 added, 0 to 15, as the unsigned operand of VNNI and of maddubs; so a group's
// sums begin with -8 times the row's sum over the group, which the packed row carries (kRowSum, one for each group).
#pragma once

#include "matmul_unpack.h"
#include "quads.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr int kNibbleDepth = kNibbleBlocking.depth;
static_assert(kNibbleDepth <= kRowSum && kRowSum + kNibbleDepth / kGroups[0] * 4 <= kXStride);

/// Bytes N (0: even values, 1: odd ones) of each word, with 8 added.
template <int N>
INGOT_INLINE Ints bytes_of_nibbles(Ints words) {
  constexpr std::int32_t kLow = 0x0f0f0f0f, kEight = 0x08080808;
#if defined(__AVX512F__)
  const __m512i from = N == 0 ? words.v : _mm512_srli_epi32(words.v, 4);
  return {_mm512_ternarylogic_epi32(from, _mm512_set1_epi32(kLow), _mm512_set1_epi32(kEight), 0x6a)};  // (from & low) ^ eight
#else
  return ((N == 0 ? words : shift_right<4>(words)) & broadcast_int(kLow)) ^ broadcast_int(kEight);
#endif
}

#if !defined(__AVX512VNNI__) && defined(__AVX512BW__)
INGOT_INLINE __m512i dots_of_bytes(__m512i w, __m512i x) {
  return _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1));
}
#elif !defined(__AVXVNNI__) && defined(__AVX2__)
INGOT_INLINE __m256i dots_of_bytes(__m256i w, __m256i x) {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
}
#endif

/// Adds to sum the products of four bytes of 0 to 15 with four values in each lane.
INGOT_INLINE void add_bytes(Ints& sum, Ints w, Ints x) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  add_dots(sum, w, x);
#elif defined(__AVX512BW__)
  sum = sum + Ints{dots_of_bytes(w.v, x.v)};
#elif defined(__AVX2__)
  sum = sum + Ints{dots_of_bytes(w.a, x.a), dots_of_bytes(w.b, x.b)};
#else
  const Quads16 wide = widened(w), by = widened(x);
  add_dot2(sum, wide.even, by.even);
  add_dot2(sum, wide.odd, by.odd);
#endif
}

/// Each eight values of a packed row in the order of bytes_of_nibbles, and behind them -8 times the sum of each group. `depth`: whole
/// words of weights; what follows up to the sums is overwritten.
inline void pack_for_nibbles(std::byte* row, int depth, int group) {
  typedef signed char Bytes __attribute__((vector_size(16)));
  constexpr Bytes kOrder = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  constexpr int kQuads = kNibbleDepth / 4, kStep = 64;
  __builtin_memset(row + depth, 0, round_up(depth, kStep) - depth);
  alignas(64) std::int32_t sums[2][kQuads] = {};
  for (int k = 0; k < depth; k += kStep) {
    for (int i = 0; i < kStep; i += 16) {
      Bytes values;
      __builtin_memcpy(&values, row + k + i, 16);
      values = __builtin_shuffle(values, kOrder);
      __builtin_memcpy(row + k + i, &values, 16);
    }
    Ints sum = broadcast_int(0);
    add_bytes(sum, broadcast_int(0x01010101), words_at(row, k / 4));
    store((float*)(sums[0] + k / 4), from_bits(sum));
  }
  int from = 0, count = kQuads;
  for (int width = 4; width < group; width *= 2, from ^= 1, count /= 2)
    for (int i = 0; i < count / 2; ++i) sums[from ^ 1][i] = sums[from][2 * i] + sums[from][2 * i + 1];
  std::int32_t* const to = (std::int32_t*)(row + kRowSum);
  for (int i = 0; i < count; ++i) to[i] = -8 * sums[from][i];
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
