// Rows of bfloat16 beside weights of 4 bits at the level amx: whole multiples of a unit for each 32 values, one step of the tiles.
//
// The unit is 2^-16 of the power of two at or below the step's largest value. Values above 1/512 of the largest are such multiples anyway; what is
// smaller is rounded to one, by at most 2^-17 of the largest. Then the sum of the first or of the second values of a step's pairs is a whole
// number of units, at most 2^24: tiles have it exactly, and so have dot products of the multiples' bytes, of which there are three (digits
// of -128 to 127). Both give the same bits, the latter with half the instructions of multiply-adds.
//
// A step that holds what is no finite number, nothing but denormals, or nearly either, stays as it is. A row with one in its block has no digits.
#pragma once

#include "matmul.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr int kVectorRows = 4;  // that go by vectors, of narrow weights
constexpr int kRowDepth = kTileBlocking.depth;
constexpr int kDigitStep = 32, kUnit = 16;  // a unit is 2^-kUnit of the power of two
// Where a packed row has its digits: the middle ones where it begins, the lower ones behind them, and the upper ones in the place of a row
// that only pads it (there are 16). Behind the lower ones: what the sums of its steps start from, since weights are 0 to 15 to the dot products; and
// its units, of which the first is NaN in a row without digits.
constexpr int kLowerDigits = kRowDepth, kUpperDigits = kVectorRows * kXStride;
constexpr int kDigitStarts = 2 * kRowDepth, kDigitUnits = kDigitStarts + kRowDepth / kDigitStep * 4;
static_assert(kDigitUnits + kRowDepth / kDigitStep * 4 <= kXStride && 2 * kVectorRows <= 16);

INGOT_INLINE bool has_digits(const std::byte* row) {
  const float unit = *(const float*)(row + kDigitUnits);
  return unit == unit;
}

/// The exponents, as those of floats, of the greatest values of a packed row's steps: of step s at where_step(s). -1 where it stays as it is;
/// any number where all are zero.
INGOT_INLINE __m512i exponents_of(const std::byte* row) {
  static_assert(kRowDepth == 8 * kDigitStep);
  __m512i fourths[4], halves[2];
  INGOT_UNROLL for (int i = 0; i < 4; ++i) {
    const __m512i sign = _mm512_set1_epi16(0x7fff);
    const __m512i a = _mm512_and_si512(_mm512_loadu_si512(row + 128 * i), sign), b = _mm512_and_si512(_mm512_loadu_si512(row + 128 * i + 64), sign);
    fourths[i] = _mm512_max_epu16(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
  }
  INGOT_UNROLL for (int i = 0; i < 2; ++i) {
    const __m512i a = fourths[2 * i], b = fourths[2 * i + 1];
    halves[i] = _mm512_max_epu16(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
  }
  __m512i most = _mm512_max_epu16(_mm512_unpacklo_epi64(halves[0], halves[1]), _mm512_unpackhi_epi64(halves[0], halves[1]));
  most = _mm512_max_epu16(most, _mm512_shuffle_epi32(most, (_MM_PERM_ENUM)0xb1));
  most = _mm512_and_si512(_mm512_max_epu16(most, _mm512_srli_epi32(most, 16)), _mm512_set1_epi32(0xffff));
  constexpr int kAny = 127, kLeast = 27, kMost = 245;
  const __m512i found = _mm512_srli_epi32(most, 7);
  const __mmask16 far = _mm512_cmpgt_epu32_mask(_mm512_sub_epi32(found, _mm512_set1_epi32(kLeast)), _mm512_set1_epi32(kMost - kLeast));
  const __m512i near = _mm512_mask_set1_epi32(found, far, -1);
  return _mm512_mask_set1_epi32(near, _mm512_testn_epi32_mask(most, most), kAny);
}
constexpr int where_step(int step) { return step % 4 * 4 + step / 4 * 2; }

INGOT_INLINE float power_of_two(int exponent) { return __builtin_bit_cast(float, exponent << 23); }

/// 16 values as whole multiples of a unit.
INGOT_INLINE __m512i multiples(__m256i values, __m512 per_unit) { return _mm512_cvtps_epi32(_mm512_mul_ps(widen_bfloat16(values).v, per_unit)); }

/// Rounds a packed row, and lays it out as the tiles meet words of 4 bits: each eight values as pairs of one of the first four and one of the
/// others.
[[maybe_unused]] void round_row(std::byte* row, int depth) {
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  // What is added to a large number and taken away again is rounded to what this counts in.
  const __m512i exponents = exponents_of(row), large = _mm512_slli_epi32(_mm512_add_epi32(exponents, _mm512_set1_epi32(23 - kUnit)), 23);
  alignas(64) float added[16];
  _mm512_store_si512(added, _mm512_maskz_or_epi32(_mm512_cmpge_epi32_mask(exponents, _mm512_setzero_si512()), large, _mm512_set1_epi32(1 << 22)));
  for (int step = 0; step * kDigitStep < depth; ++step) {
    std::byte* const at = row + step * kDigitStep * 2;
    const __m512i values = _mm512_loadu_si512(at);
    const Vec more = broadcast(added[where_step(step)]);
    const Vec even = from_bits({_mm512_slli_epi32(values, 16)}) + more - more;
    const Vec odd = from_bits({_mm512_and_si512(values, _mm512_set1_epi32((int)0xffff0000))}) + more - more;
    const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(bits(even).v, 16), bits(odd).v);
    _mm512_storeu_si512(at, _mm512_shuffle_epi8(both, order));
  }
}

/// A packed row as digits; one that cannot be is rounded where it can, its values in their order.
[[maybe_unused]] void make_digits(std::byte* row, int depth) {
  constexpr int kSteps = kRowDepth / kDigitStep;
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);  // of bytes_of_nibbles
  alignas(64) std::int8_t digits[3][kRowDepth];
  std::int32_t starts[kSteps];
  float units[kSteps];
  const int steps = (depth + kDigitStep - 1) / kDigitStep;
  alignas(64) std::int32_t exponents[16];
  _mm512_store_si512(exponents, exponents_of(row));
  bool all = true;
  for (int step = 0; step < steps; ++step) {
    const __m256i* const values = (const __m256i*)row + step * 2;
    const int unit = exponents[where_step(step)] - kUnit;
    all = all && unit >= 0;
    if (unit < 0) continue;
    const __m512 size = _mm512_set1_ps(power_of_two(unit)), per_unit = _mm512_set1_ps(power_of_two(254 - unit));
    __m512i sum = _mm512_setzero_si512();
    INGOT_UNROLL for (int half = 0; half < 2; ++half) {
      __m512i whole = multiples(_mm256_loadu_si256(values + half), per_unit);
      const __m512i rounded = _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(whole), size));
      _mm256_storeu_si256((__m256i*)values + half, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
      sum = _mm512_add_epi32(sum, whole);
      INGOT_UNROLL for (auto& plane : digits) {
        _mm_store_si128((__m128i*)(plane + step * kDigitStep) + half, _mm_shuffle_epi8(_mm512_cvtepi32_epi8(whole), order));
        whole = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
      }
    }
    starts[step] = -8 * _mm512_reduce_add_epi32(sum);
    units[step] = power_of_two(unit);
  }
  if (!all) {
    *(float*)(row + kDigitUnits) = __builtin_nanf("");
    return;
  }
  __builtin_memcpy(row + kLowerDigits, digits[0], steps * kDigitStep);
  __builtin_memcpy(row, digits[1], steps * kDigitStep);
  __builtin_memcpy(row + kUpperDigits, digits[2], steps * kDigitStep);
  __builtin_memcpy(row + kDigitStarts, starts, steps * 4);
  __builtin_memcpy(row + kDigitUnits, units, steps * 4);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
