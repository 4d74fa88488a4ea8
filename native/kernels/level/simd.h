// The vector vocabulary of the level code: a logical vector `Vec` of 16 float32 whatever the registers are (AVX-512: one,
// AVX2: two, portable: four 4-lane vectors of the compiler). Everything lives in namespace ingot::INGOT_LEVEL, so that no
// inline function of one level can be merged with another level's. Which primitives are used follows from the compile flags.
//
//   load / store / load_partial / store_partial    float*, bfloat16*, float16*; n first lanes, the others load as zero.
//                                                  Rounding to 16 bits is to nearest even; NaN stays NaN; denormals are kept
//                                                  int8*, uint8* too: as whole numbers; those stored must lie in its range
//   store_bytes                    Ints to int8*, held in its range
//   value_of<bits, n>              the nth whole number of so many bits in each word of Ints
//   + - * /  fma(x, y, z) = x*y + z  fnma = z - x*y (one rounding, except at the portable level)
//   max min       the second operand when one is NaN (the instruction's rule); max_nan, min_nan propagate NaN
//   < <= == is_nan select any      sqrt floor ceil round_even abs negate
//   reduce_add reduce_max          in one fixed order at every level (reduce_max ignores or keeps NaN: unspecified)
//   exp log tanh sigmoid silu erf sin cos     greatest error measured against float64 in ulp of the float32 result: see
//                                  simd_math.h; right for NaN, infinities, zeros and denormals
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#pragma GCC diagnostic push  // g++ 12 takes its own "undefined" operands in these headers for a fault of ours
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#ifndef INGOT_LEVEL
#error "INGOT_LEVEL names the namespace of the level this file is compiled for"
#endif

#include "seen.h"

#define INGOT_INLINE static inline __attribute__((always_inline))
#define INGOT_UNROLL _Pragma("GCC unroll 16")  // loops whose Vecs are registers

namespace ingot::INGOT_LEVEL {

constexpr int kLanes = 16;

struct bfloat16 {
  std::uint16_t bits;
};
struct float16 {
  std::uint16_t bits;
};

#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

INGOT_INLINE Vec zero() { return broadcast(0.0f); }
INGOT_INLINE Vec abs(Vec x) { return from_bits(bits(x) & broadcast_int(INT32_MAX)); }
INGOT_INLINE Ints sign_bits(Vec x) { return bits(x) & broadcast_int(INT32_MIN); }
INGOT_INLINE Vec copysign(Vec magnitude, Vec sign) { return from_bits(bits(abs(magnitude)) | sign_bits(sign)); }
INGOT_INLINE Vec negate(Vec x) { return from_bits(bits(x) + broadcast_int(INT32_MIN)); }
#if defined(__AVX512F__)
INGOT_INLINE Vec max_nan(Vec x, Vec y) { return {_mm512_mask_max_ps(x.v, _mm512_cmp_ps_mask(x.v, x.v, _CMP_ORD_Q), x.v, y.v)}; }
INGOT_INLINE Vec min_nan(Vec x, Vec y) { return {_mm512_mask_min_ps(x.v, _mm512_cmp_ps_mask(x.v, x.v, _CMP_ORD_Q), x.v, y.v)}; }
#else
INGOT_INLINE Vec max_nan(Vec x, Vec y) { return select(is_nan(x), x, max(x, y)); }
INGOT_INLINE Vec min_nan(Vec x, Vec y) { return select(is_nan(x), x, min(x, y)); }
#endif
INGOT_INLINE Vec operator-(Vec x) { return negate(x); }

/// The Nth value of `Bits` bits in each word, with its sign.
template <int Bits, int N>
INGOT_INLINE Vec value_of(Ints word) {
  return to_float(shift_right<32 - Bits>(shift_left<32 - Bits * (N + 1)>(word)));
}

#if !defined(__AVX512F__)
template <class Narrow>
INGOT_INLINE Vec load_partial_narrow(const Narrow* p, int n) {
  Narrow lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
template <class Narrow>
INGOT_INLINE void store_partial_narrow(Narrow* p, Vec v, int n) {
  Narrow lanes[16];
  store(lanes, v);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
INGOT_INLINE Vec load_partial(const bfloat16* p, int n) { return load_partial_narrow(p, n); }
INGOT_INLINE Vec load_partial(const float16* p, int n) { return load_partial_narrow(p, n); }
INGOT_INLINE void store_partial(bfloat16* p, Vec v, int n) { store_partial_narrow(p, v, n); }
INGOT_INLINE void store_partial(float16* p, Vec v, int n) { store_partial_narrow(p, v, n); }
INGOT_INLINE Vec load_partial(const std::int8_t* p, int n) { return load_partial_narrow(p, n); }
INGOT_INLINE Vec load_partial(const std::uint8_t* p, int n) { return load_partial_narrow(p, n); }
INGOT_INLINE void store_partial(std::int8_t* p, Vec v, int n) { store_partial_narrow(p, v, n); }
INGOT_INLINE void store_partial(std::uint8_t* p, Vec v, int n) { store_partial_narrow(p, v, n); }
#endif

// One element, by the same rules.
INGOT_INLINE float load_one(const float* p) { return *p; }
INGOT_INLINE float load_one(const std::int8_t* p) { return (float)*p; }
INGOT_INLINE float load_one(const std::uint8_t* p) { return (float)*p; }
INGOT_INLINE float load_one(const bfloat16* p) { return __builtin_bit_cast(float, (std::uint32_t)p->bits << 16); }
#if defined(__F16C__)
INGOT_INLINE float load_one(const float16* p) { return _cvtsh_ss(p->bits); }
INGOT_INLINE void store_one(float16* p, float v) { p->bits = (std::uint16_t)_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT); }
#else
INGOT_INLINE float load_one(const float16* p) { return widen_float16(p->bits); }
INGOT_INLINE void store_one(float16* p, float v) { p->bits = round_float16(v); }
#endif
INGOT_INLINE void store_one(float* p, float v) { *p = v; }
INGOT_INLINE void store_one(bfloat16* p, float v) {
  const std::uint32_t word = __builtin_bit_cast(std::uint32_t, v);
  const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
  p->bits = (std::uint16_t)(nan ? (word >> 16) | 0x40u : (word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

#include "simd_math.h"

}  // namespace ingot::INGOT_LEVEL
