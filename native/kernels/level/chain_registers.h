// Rows of operands and of results of a chain (chain.h) in registers: loaded, rounded and stored, and steps that take long.
#pragma once

#include "chain_links.h"

namespace ingot::INGOT_LEVEL {

namespace {

template <int R, int C>
INGOT_INLINE void load_rows(const TileOperand& from, std::int64_t row, std::int64_t column, int lanes, Vec (&v)[R][C]) {
  const std::int64_t at = row * from.row_stride + column * from.column_stride;
  const auto each = [&](auto* p) {
    if (from.row_stride == 0 && from.spacing() == Spacing::dense && lanes == kLanes * C) {  // a bias: one row for all
      Vec row[C];
      _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) row[c] = load(p + c * kLanes);
      _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
        _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) v[r][c] = row[c];
      }
      return;
    }
    _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r, p += from.row_stride) {
      if (from.spacing() == Spacing::repeated) {
        const Vec value = broadcast(load_one(p));
        _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) v[r][c] = value;
      } else {
        _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c)
          v[r][c] = lanes == kLanes * C ? load(p + c * kLanes) : load_partial(p + c * kLanes, lanes);
      }
    }
  };
  if (from.dtype == DType::float32) each((const float*)from.data + at);
  else if (from.dtype == DType::bfloat16) each((const bfloat16*)from.data + at);
  else if (from.dtype == DType::float16) each((const float16*)from.data + at);
  else if (from.dtype == DType::int8) each((const std::int8_t*)from.data + at);
  else each((const std::uint8_t*)from.data + at);
}

#if defined(__AVX512BF16__)
/// Stores rows of 32 by the instruction that rounds, unless it would flush a denormal. streams, normal: as for store_tile.
template <int R>
INGOT_INLINE bool store_rounded(bfloat16* p, std::int64_t stride, const Vec (&v)[R][2], bool streams, bool normal) {
  constexpr int kDenormal = 0x20;
  __mmask16 denormal = 0;
  if (!normal) {
    INGOT_UNROLL for (int r = 0; r < R; ++r)
      denormal = _kor_mask16(denormal, _kor_mask16(_mm512_fpclass_ps_mask(v[r][0].v, kDenormal), _mm512_fpclass_ps_mask(v[r][1].v, kDenormal)));
  }
  if (denormal != 0) return false;
  INGOT_UNROLL for (int r = 0; r < R; ++r, p += stride) {
    const __m512bh row = _mm512_cvtne2ps_pbh(v[r][1].v, v[r][0].v);
    if (streams) _mm512_stream_si512((__m512i*)p, (__m512i)row);
    else __builtin_memcpy(p, &row, sizeof row);
  }
  return true;
}

/// What store_rounded leaves: rarely, so apart from the code around it.
template <int R>
__attribute__((noinline)) void store_each(bfloat16* p, std::int64_t stride, const Vec (&v)[R][2]) {
  for (int r = 0; r < R; ++r, p += stride)
    for (int c = 0; c < 2; ++c) store(p + c * kLanes, v[r][c]);
}
#endif

/// Stores a register tile, `stride` values from row to row. streams: past the caches where a level can, p and the stride being whole lines. normal: no
/// value is a denormal.
template <class T, int R, int C>
INGOT_INLINE void store_tile(T* p, std::int64_t stride, const Vec (&v)[R][C], [[maybe_unused]] bool streams = false, [[maybe_unused]] bool normal = false) {
#if defined(__AVX512BF16__)
  if constexpr (__is_same(T, bfloat16) && C == 2) {
    if (store_rounded(p, stride, v, streams, normal)) return;
    Vec kept[R][C];  // a copy, so that the values themselves stay in registers
    __builtin_memcpy(kept, v, sizeof kept);
    return store_each(p, stride, kept);
  }
#endif
#if defined(__AVX512F__)
  if constexpr (__is_same(T, float)) {
    if (streams) {
      INGOT_UNROLL for (int r = 0; r < R; ++r, p += stride) {
        INGOT_UNROLL for (int c = 0; c < C; ++c) _mm512_stream_ps(p + c * kLanes, v[r][c].v);
      }
      return;
    }
  }
#endif
  INGOT_UNROLL for (int r = 0; r < R; ++r, p += stride) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(p + c * kLanes, v[r][c]);
  }
}

/// `lanes`: of the columns, kLanes * C or, of one vector, fewer.
template <int R, int C>
INGOT_INLINE void store_rows(const TileOperand& out, std::int64_t row, std::int64_t column, int lanes, const Vec (&v)[R][C]) {
  const std::int64_t at = row * out.row_stride + column;
  const auto store_all = [&](auto* p) __attribute__((always_inline)) {
    if (lanes == kLanes * C) return store_tile(p, out.row_stride, v);
    if constexpr (C == 1) each<R>([&](int r) { store_partial(p + r * out.row_stride, v[r][0], lanes); });
  };
  if (out.dtype == DType::float32) store_all((float*)out.data + at);
  else if (out.dtype == DType::bfloat16) store_all((bfloat16*)out.data + at);
  else if (out.dtype == DType::float16) store_all((float16*)out.data + at);
  else if (out.dtype == DType::int8) store_all((std::int8_t*)out.data + at);
  else store_all((std::uint8_t*)out.data + at);
}

template <class Half>
INGOT_INLINE Vec rounded_to(Vec v) {
  Half lanes[kLanes];
  store(lanes, v);
  return load(lanes);
}

template <class Half, int R, int C>
INGOT_INLINE void round_rows(Vec (&v)[R][C]) {
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) v[r][c] = rounded_to<Half>(v[r][c]);
}

/// Steps that take long anyway.
template <int R, int C>
__attribute__((noinline)) void slow_step_in_memory(Step step, Vec (&v)[R][C]) {
  const auto take = [&](auto of) __attribute__((always_inline)) {
    for (int r = 0; r < R; ++r) each<C>([&](int c) { v[r][c] = of(v[r][c]); });
  };
  switch (step) {
    case Step::round_bfloat16: return round_rows<bfloat16>(v);
    case Step::round_float16: return round_rows<float16>(v);
    case Step::silu: return take([](Vec x) { return silu(x); });
    case Step::mish: return take([](Vec x) { return mish(x); });
    case Step::gelu: return take([](Vec x) { return gelu(x); });
    case Step::tanh: return take([](Vec x) { return tanh(x); });
    default: return take([](Vec x) { return sigmoid(x); });
  }
}
/// The same by a copy, so that v itself stays in registers.
template <int R, int C>
INGOT_INLINE void slow_step(Step step, Vec (&v)[R][C]) {
  Vec kept[R][C];
  __builtin_memcpy(kept, v, sizeof kept);
  slow_step_in_memory(step, kept);
  __builtin_memcpy(v, kept, sizeof kept);
}

template <class T>
constexpr bool is_byte = __is_same(T, std::int8_t) || __is_same(T, std::uint8_t);

/// What the ending makes of a value: a whole number in the range of a byte.
INGOT_INLINE Vec ended(const Ending& ending, Vec v) {
  const Vec scaled = v * broadcast(ending.factor), known = select(is_nan(scaled), zero(), scaled);
  return round_even(min(broadcast(ending.high), max(broadcast(ending.low), known))) + broadcast(ending.zero);
}

#if defined(__AVX512BW__)
constexpr bool kEndsBounded = true;
#else
constexpr bool kEndsBounded = false;  // store_ended has nothing to gain
#endif
template <bool>
struct Flag {};
template <class T>
constexpr float least_of = __is_same(T, std::int8_t) ? -128 : 0;
template <class T>
constexpr float most_of = __is_same(T, std::int8_t) ? 127 : 255;

/// Whether there is an ending, and all that it gives is a T.
template <class T>
INGOT_INLINE bool ends_in(const Ending& ending) {
  return ending.present && ending.low + ending.zero >= least_of<T> && ending.high + ending.zero <= most_of<T>;
}

/// Stores two rows of two vectors `ended`. Rectified: the ending's lower limit is 0. Bounded: values are NaN or fit int32 when they are rounded,
/// and its upper limit is that of T.
template <class T, bool Rectified, bool Bounded>
INGOT_INLINE void store_ended(T* p, std::int64_t stride, const Ending& ending, const Vec (&v)[2][2]) {
#if defined(__AVX512BW__)
  const Vec factor = broadcast(ending.factor), low = broadcast(ending.low), high = broadcast(ending.high);
  const __m512i zero_point = _mm512_set1_epi16((short)ending.zero);
  __m512i words[2];
  INGOT_UNROLL for (int r = 0; r < 2; ++r) {
    __m512i q[2];
    INGOT_UNROLL for (int c = 0; c < 2; ++c) {
      const __m512 scaled = (v[r][c] * factor).v;
      // Rectified: what is below every int32, and a NaN, which passes as second operand, become the least one.
      const __m512 least = Rectified ? scaled : _mm512_maskz_max_ps(_mm512_cmp_ps_mask(scaled, scaled, _CMP_ORD_Q), scaled, low.v);
      const __m512 most = Bounded ? least : _mm512_min_ps(high.v, least);
      q[c] = _mm512_cvt_roundps_epi32(most, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    words[r] = _mm512_packs_epi32(q[0], q[1]);
    if constexpr (Rectified) words[r] = _mm512_max_epi16(words[r], _mm512_setzero_si512());
    if (ending.zero != 0) words[r] = _mm512_adds_epi16(words[r], zero_point);
  }
  const __m512i mixed = __is_same(T, std::int8_t) ? _mm512_packs_epi16(words[0], words[1]) : _mm512_packus_epi16(words[0], words[1]);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_permutexvar_epi32(order, mixed);
  _mm256_storeu_si256((__m256i*)p, _mm512_castsi512_si256(bytes));
  _mm256_storeu_si256((__m256i*)(p + stride), _mm512_extracti64x4_epi64(bytes, 1));
#else
  const Ending kept = ending;  // a store of bytes could be one to `ending`
  each<2, 2>([&](int r, int c) { store(p + r * stride + c * kLanes, ended(kept, v[r][c])); });
#endif
}
/// The same of R rows, two at a time: of an odd number the last one twice.
template <class T, bool Rectified, bool Bounded, int R>
INGOT_INLINE void store_ended_rows(T* p, std::int64_t stride, const Ending& ending, const Vec (&v)[R][2]) {
  INGOT_UNROLL for (int r = 0; r < R; r += 2, p += 2 * stride) {
    const int next = r + 1 < R ? r + 1 : r;
    const Vec two[2][2] = {{v[r][0], v[r][1]}, {v[next][0], v[next][1]}};
    store_ended<T, Rectified, Bounded>(p, (next - r) * stride, ending, two);
  }
}

/// Calls f with what makes values of an operand's whole numbers. Which of three ways that is, is asked once, not for each vector.
template <class F>
INGOT_INLINE void dequantise(const ChainOperand& operand, const F& f) {
  const Vec zero_point = broadcast(operand.zero), scale = broadcast(operand.scale);
  if (operand.rounded) f([&](Vec q) __attribute__((always_inline)) { return rounded_to<bfloat16>((q - zero_point) * scale); });
  else if (operand.zero == 0) f([&](Vec q) __attribute__((always_inline)) { return q * scale; });
  else f([&](Vec q) __attribute__((always_inline)) { return (q - zero_point) * scale; });
}

/// Adds a register tile of a residual, `stride` values from row to row. operand: of whole numbers, what they stand for.
template <class T, int R, int C>
INGOT_INLINE void add_residual(const T* from, std::int64_t stride, [[maybe_unused]] const ChainOperand& operand, Vec (&v)[R][C]) {
  const auto add = [&](const auto& value_of) __attribute__((always_inline)) {
    INGOT_UNROLL for (int r = 0; r < R; ++r, from += stride) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) v[r][c] = v[r][c] + value_of(load(from + c * kLanes));
    }
  };
  if constexpr (is_byte<T>) dequantise(operand, add);
  else add([](Vec w) __attribute__((always_inline)) { return w; });
}

/// C vectors of a row that all rows share; what changes no sum where there is none.
template <int C>
INGOT_INLINE void load_shared(const TileOperand* o, std::int64_t column, Vec (&row)[C]) {
  each<C>([&](int c) {
    const std::int64_t at = column + c * kLanes;
    if (o == nullptr) row[c] = broadcast(-0.0f);
    else if (o->dtype == DType::float32) row[c] = load((const float*)o->data + at);
    else if (o->dtype == DType::bfloat16) row[c] = load((const bfloat16*)o->data + at);
    else row[c] = load((const float16*)o->data + at);
  });
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
