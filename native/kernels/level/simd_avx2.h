// The vector primitives as two 256-bit registers (AVX2, FMA, F16C). Included by simd.h only, inside ingot::INGOT_LEVEL.

struct Vec {
  __m256 a, b;
};
struct Ints {
  __m256i a, b;
};
struct Mask {
  __m256 a, b;
};

INGOT_INLINE Vec broadcast(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
INGOT_INLINE Ints broadcast_int(std::int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
INGOT_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INGOT_INLINE void store(float* p, Vec v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}
INGOT_INLINE __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INGOT_INLINE Vec load_partial(const float* p, int n) {
  reads(p, n * 4);
  return {_mm256_maskload_ps(p, first_lanes(n)), n > 8 ? _mm256_maskload_ps(p + 8, first_lanes(n - 8)) : _mm256_setzero_ps()};
}
INGOT_INLINE void store_partial(float* p, Vec v, int n) {
  writes(p, n * 4);
  _mm256_maskstore_ps(p, first_lanes(n), v.a);
  if (n > 8) _mm256_maskstore_ps(p + 8, first_lanes(n - 8), v.b);
}

INGOT_INLINE Vec operator+(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
INGOT_INLINE Vec operator-(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
INGOT_INLINE Vec operator*(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
INGOT_INLINE Vec operator/(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
INGOT_INLINE Vec max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
INGOT_INLINE Vec min(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
INGOT_INLINE Vec fma(Vec x, Vec y, Vec z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
INGOT_INLINE Vec fnma(Vec x, Vec y, Vec z) { return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)}; }

INGOT_INLINE Mask operator<(Vec x, Vec y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
INGOT_INLINE Mask operator<=(Vec x, Vec y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LE_OQ)}; }
INGOT_INLINE Mask operator==(Vec x, Vec y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)}; }
INGOT_INLINE Mask is_nan(Vec x) { return {_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)}; }
INGOT_INLINE Mask operator|(Mask x, Mask y) { return {_mm256_or_ps(x.a, y.a), _mm256_or_ps(x.b, y.b)}; }
INGOT_INLINE Mask operator&(Mask x, Mask y) { return {_mm256_and_ps(x.a, y.a), _mm256_and_ps(x.b, y.b)}; }
INGOT_INLINE bool any(Mask m) { return _mm256_movemask_ps(_mm256_or_ps(m.a, m.b)) != 0; }
INGOT_INLINE Vec select(Mask m, Vec x, Vec y) { return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)}; }

INGOT_INLINE Ints bits(Vec x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
INGOT_INLINE Vec from_bits(Ints x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
INGOT_INLINE Ints operator+(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
INGOT_INLINE Ints operator-(Ints x, Ints y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
INGOT_INLINE Ints operator&(Ints x, Ints y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
INGOT_INLINE Ints operator|(Ints x, Ints y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
INGOT_INLINE Ints operator^(Ints x, Ints y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
template <int N>
INGOT_INLINE Ints shift_left(Ints x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
template <int N>
INGOT_INLINE Ints shift_right(Ints x) {
  return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)};
}
INGOT_INLINE Vec to_float(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INGOT_INLINE Ints truncate_to_int(Vec x) { return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }
INGOT_INLINE void store_bytes(std::int8_t* p, Ints x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

INGOT_INLINE Vec load(const std::int8_t* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return to_float({_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))});
}
INGOT_INLINE Vec load(const std::uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return to_float({_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))});
}
INGOT_INLINE void store(std::int8_t* p, Vec v) { store_bytes(p, truncate_to_int(v)); }
INGOT_INLINE void store(std::uint8_t* p, Vec v) {
  const Ints x = truncate_to_int(v);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

INGOT_INLINE Vec sqrt(Vec x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
INGOT_INLINE Vec quotient(Vec x, Vec y) { return x / y; }
INGOT_INLINE Vec near_quotient(Vec x, Vec y) { return x / y; }
INGOT_INLINE Vec round_even(Vec x) {
  return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
INGOT_INLINE Vec floor(Vec x) { return {_mm256_floor_ps(x.a), _mm256_floor_ps(x.b)}; }
INGOT_INLINE Vec ceil(Vec x) { return {_mm256_ceil_ps(x.a), _mm256_ceil_ps(x.b)}; }

INGOT_INLINE __m256 ldexp_rounded_8(__m256 y, __m256 n) {
  const __m256i whole = _mm256_cvttps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(y, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}
INGOT_INLINE Vec ldexp_rounded(Vec y, Vec n) { return {ldexp_rounded_8(y.a, n.a), ldexp_rounded_8(y.b, n.b)}; }

INGOT_INLINE __m256 widen_bfloat16_8(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
INGOT_INLINE __m256i round_bfloat16_8(__m256 v) {
  const __m256i word = _mm256_castps_si256(v);
  const __m256i top = _mm256_srli_epi32(word, 16);
  const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}
INGOT_INLINE Vec load(const bfloat16* p) {
  return {widen_bfloat16_8(_mm_loadu_si128((const __m128i*)p)), widen_bfloat16_8(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
INGOT_INLINE void store(bfloat16* p, Vec x) {
  const __m256i packed = _mm256_packus_epi32(round_bfloat16_8(x.a), round_bfloat16_8(x.b));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
INGOT_INLINE Vec load(const float16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
INGOT_INLINE void store(float16* p, Vec x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Fixed order: lane i with i + 8, then + 4, + 2, + 1. The other levels do the same.
INGOT_INLINE float reduce_add(Vec x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
INGOT_INLINE float reduce_max(Vec x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
