// The vector primitives as one 512-bit register (AVX-512 F, BW, DQ, VL). Included by simd.h only, inside ingot::INGOT_LEVEL.

struct Vec {
  __m512 v;
};
struct Ints {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

INGOT_INLINE Vec broadcast(float v) { return {_mm512_set1_ps(v)}; }
INGOT_INLINE Ints broadcast_int(std::int32_t v) { return {_mm512_set1_epi32(v)}; }
INGOT_INLINE __mmask16 first_lanes(int n) { return (__mmask16)((1u << n) - 1u); }  // 0 <= n <= 16
INGOT_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
INGOT_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v.v); }
INGOT_INLINE Vec load_partial(const float* p, int n) {
  reads(p, n * 4);
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
INGOT_INLINE void store_partial(float* p, Vec v, int n) {
  writes(p, n * 4);
  _mm512_mask_storeu_ps(p, first_lanes(n), v.v);
}

INGOT_INLINE Vec operator+(Vec x, Vec y) { return {_mm512_add_ps(x.v, y.v)}; }
INGOT_INLINE Vec operator-(Vec x, Vec y) { return {_mm512_sub_ps(x.v, y.v)}; }
INGOT_INLINE Vec operator*(Vec x, Vec y) { return {_mm512_mul_ps(x.v, y.v)}; }
INGOT_INLINE Vec operator/(Vec x, Vec y) { return {_mm512_div_ps(x.v, y.v)}; }
INGOT_INLINE Vec max(Vec x, Vec y) { return {_mm512_max_ps(x.v, y.v)}; }
INGOT_INLINE Vec min(Vec x, Vec y) { return {_mm512_min_ps(x.v, y.v)}; }
INGOT_INLINE Vec fma(Vec x, Vec y, Vec z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
INGOT_INLINE Vec fnma(Vec x, Vec y, Vec z) { return {_mm512_fnmadd_ps(x.v, y.v, z.v)}; }

INGOT_INLINE Mask operator<(Vec x, Vec y) { return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ)}; }
INGOT_INLINE Mask operator<=(Vec x, Vec y) { return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_LE_OQ)}; }
INGOT_INLINE Mask operator==(Vec x, Vec y) { return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_EQ_OQ)}; }
INGOT_INLINE Mask is_nan(Vec x) { return {_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q)}; }
INGOT_INLINE Mask operator|(Mask x, Mask y) { return {(__mmask16)(x.v | y.v)}; }
INGOT_INLINE Mask operator&(Mask x, Mask y) { return {(__mmask16)(x.v & y.v)}; }
INGOT_INLINE bool any(Mask m) { return m.v != 0; }
INGOT_INLINE Vec select(Mask m, Vec x, Vec y) { return {_mm512_mask_blend_ps(m.v, y.v, x.v)}; }

INGOT_INLINE Ints bits(Vec x) { return {_mm512_castps_si512(x.v)}; }
INGOT_INLINE Vec from_bits(Ints x) { return {_mm512_castsi512_ps(x.v)}; }
INGOT_INLINE Ints operator+(Ints x, Ints y) { return {_mm512_add_epi32(x.v, y.v)}; }
INGOT_INLINE Ints operator-(Ints x, Ints y) { return {_mm512_sub_epi32(x.v, y.v)}; }
INGOT_INLINE Ints operator&(Ints x, Ints y) { return {_mm512_and_si512(x.v, y.v)}; }
INGOT_INLINE Ints operator|(Ints x, Ints y) { return {_mm512_or_si512(x.v, y.v)}; }
template <int N>
INGOT_INLINE Ints shift_left(Ints x) {
  return {_mm512_slli_epi32(x.v, N)};
}
template <int N>
INGOT_INLINE Ints shift_right(Ints x) {
  return {_mm512_srai_epi32(x.v, N)};
}
INGOT_INLINE Vec to_float(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }
INGOT_INLINE Ints truncate_to_int(Vec x) { return {_mm512_cvttps_epi32(x.v)}; }
INGOT_INLINE void store_bytes(std::int8_t* p, Ints x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(x.v)); }

INGOT_INLINE Vec load(const std::int8_t* p) { return to_float({_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}); }
INGOT_INLINE Vec load(const std::uint8_t* p) { return to_float({_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))}); }
INGOT_INLINE Vec load_partial(const std::int8_t* p, int n) {
  reads(p, n);
  return to_float({_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), p))});
}
INGOT_INLINE Vec load_partial(const std::uint8_t* p, int n) {
  reads(p, n);
  return to_float({_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), p))});
}
INGOT_INLINE void store(std::int8_t* p, Vec v) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(truncate_to_int(v).v)); }
INGOT_INLINE void store(std::uint8_t* p, Vec v) { store((std::int8_t*)p, v); }
INGOT_INLINE void store_partial(std::int8_t* p, Vec v, int n) {
  writes(p, n);
  _mm_mask_storeu_epi8(p, first_lanes(n), _mm512_cvtepi32_epi8(truncate_to_int(v).v));
}
INGOT_INLINE void store_partial(std::uint8_t* p, Vec v, int n) { store_partial((std::int8_t*)p, v, n); }

INGOT_INLINE Vec sqrt(Vec x) { return {_mm512_sqrt_ps(x.v)}; }
// x / y within 2 ulp, for a y whose inverse is no denormal: an estimate and Newton's step take less time than a division.
INGOT_INLINE Vec quotient(Vec x, Vec y) {
  const __m512 near = _mm512_rcp14_ps(y.v), rest = _mm512_fnmadd_ps(near, y.v, _mm512_set1_ps(1.0f));
  const Vec product{_mm512_mul_ps(x.v, near)};
  return fma(product, {rest}, product);
}
// The same within 2^-14 and a rounding, by the estimate alone.
INGOT_INLINE Vec near_quotient(Vec x, Vec y) { return x * Vec{_mm512_rcp14_ps(y.v)}; }
INGOT_INLINE Vec round_even(Vec x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
INGOT_INLINE Vec floor(Vec x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
INGOT_INLINE Vec ceil(Vec x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)}; }
INGOT_INLINE Vec ldexp_rounded(Vec y, Vec n) { return {_mm512_scalef_ps(y.v, n.v)}; }

// The instruction of AVX512_BF16 flushes denormals, so rounding is done on integers here too.
INGOT_INLINE __m256i round_bfloat16_16(__m512 v) {
  const __m512i word = _mm512_castps_si512(v);
  const __m512i top = _mm512_srli_epi32(word, 16);
  const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(word, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40)));
}
INGOT_INLINE Vec widen_bfloat16(__m256i h) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))}; }
INGOT_INLINE Vec load(const bfloat16* p) { return widen_bfloat16(_mm256_loadu_si256((const __m256i*)p)); }
INGOT_INLINE Vec load_partial(const bfloat16* p, int n) {
  reads(p, n * 2);
  return widen_bfloat16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
INGOT_INLINE void store(bfloat16* p, Vec x) { _mm256_storeu_si256((__m256i*)p, round_bfloat16_16(x.v)); }
INGOT_INLINE void store_partial(bfloat16* p, Vec x, int n) {
  writes(p, n * 2);
  _mm256_mask_storeu_epi16(p, first_lanes(n), round_bfloat16_16(x.v));
}
INGOT_INLINE Vec load(const float16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
INGOT_INLINE Vec load_partial(const float16* p, int n) {
  reads(p, n * 2);
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
INGOT_INLINE __m256i round_float16_16(__m512 v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INGOT_INLINE void store(float16* p, Vec x) { _mm256_storeu_si256((__m256i*)p, round_float16_16(x.v)); }
INGOT_INLINE void store_partial(float16* p, Vec x, int n) {
  writes(p, n * 2);
  _mm256_mask_storeu_epi16(p, first_lanes(n), round_float16_16(x.v));
}

// Fixed order: lane i with i + 8, then + 4, + 2, + 1. The other levels do the same.
INGOT_INLINE float reduce_add(Vec x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
INGOT_INLINE float reduce_max(Vec x) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
