// The softmax of rows over a cache of int8 whose products are sums of whole numbers (attention_int8.h), for one level.
//
// A weight times the scale of its value becomes a whole number of up to 16 bits, with a unit a row and chunk. Weights are powers of two of
// score - M. M is the greatest of score + e, rounded up, where e is the exponent of a value's scale less the greatest of those that the
// row sees in the chunk: so no product of weight and scale is above 2^16 units. One maximum is found before the weights and none after
// them, and all factors between row, chunk and unit are powers of two.
#pragma once

#include "attention_int8.h"
#include "attention_weights.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if INGOT_ATTENTION_QUADS

constexpr float kNumberBits = 16.0f;
constexpr float kLeastExponent = -100.0f;  // of a scale: one below 2^-100 counts for little or nothing
constexpr float kLeastDistance = -80.0f;   // between exponents, so that weights stay finite
constexpr float kFarScore = 0x1p20f;       // from here on a sum of score and exponent may be rounded too far: scores go alone

/// x for the tokens of a group that are seen, else y.
INGOT_INLINE Vec where_seen(Vec x, Vec y, Seen seen, int group) {
  const Vec token = load(kIota);
  x = select(token < broadcast((float)(seen.first - group * kTokenGroup)), y, x);
  return select(token < broadcast((float)(seen.last - group * kTokenGroup)), x, y);
}

INGOT_INLINE bool has_seen(Seen seen, int group) { return group * kTokenGroup < seen.last && (group + 1) * kTokenGroup > seen.first; }

void read_value_scales(const Operands& o, Seen seen, ValueScales& to) {
  Vec scale[kChunkGroups], exponent[kChunkGroups], most = broadcast(kLeastExponent);
  INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g) {
    scale[g] = has_seen(seen, g) ? load(o.v_scale[g]) : zero();
    if (!seen.whole()) scale[g] = where_seen(scale[g], zero(), seen, g);
    exponent[g] = to_float(shift_right<23>(bits(scale[g])) - broadcast_int(127));
    most = max(most, exponent[g]);
  }
  const float greatest = reduce_max(most);
  to.unit = greatest - (kNumberBits - 1.0f);
  const Vec factor = from_bits(broadcast_int((127 - (std::int32_t)to.unit) << 23));
  INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g) {
    store(to.exponent + g * kTokenGroup, max(exponent[g] - broadcast(greatest), broadcast(kLeastDistance)));
    store(to.scale + g * kTokenGroup, scale[g] * factor);
  }
}

/// A row's weights in the place of its scores, as digits.
INGOT_INLINE void put_digits(const AttentionTask& task, float* scores, const Vec (&weights)[kChunkGroups]) {
  std::int8_t *const high = (std::int8_t*)scores, *const low = high + (stacks_digits(task) ? kStackedRows * kChunkTokens * 4 : kChunkTokens);
#if defined(__AVX512BW__)
  const __m512i byte = _mm512_set1_epi16(255);
  const auto number = [&](int g) { return _mm512_cvtps_epi32(weights[g].v); };  // of NaN: the least one, which becomes 0
  const __m512i x = _mm512_packus_epi32(number(0), number(1)), y = _mm512_packus_epi32(number(2), number(3));
  _mm512_store_si512(high, _mm512_packus_epi16(_mm512_srli_epi16(x, 8), _mm512_srli_epi16(y, 8)));
  _mm512_store_si512(low, _mm512_packus_epi16(_mm512_and_si512(x, byte), _mm512_and_si512(y, byte)));
#else
  INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g) {
    const Ints number = truncate_to_int(round_even(min(weights[g], broadcast(65535.0f))));
    store_bytes(high + g * kTokenGroup, shift_right<24>(shift_left<16>(number)));
    store_bytes(low + g * kTokenGroup, shift_right<24>(shift_left<24>(number)));
  }
#endif
}

/// Whether scores are products times a factor.
template <class Scores>
INGOT_INLINE bool are_plain(const AttentionTask& task) {
  return __is_same(Scores, Unmasked) && task.softcap == 0;
}
INGOT_INLINE Vec plain_factor(const AttentionTask& task, const Parts& p, int r) { return broadcast(read_query(p, r).scale * (task.scale * kLog2E)); }

/// 2^n of a whole n; 0 where that would be denormal, or n is not finite.
INGOT_INLINE float whole_power(float n) { return n >= -126.0f && n <= 127.0f ? __builtin_bit_cast(float, ((std::int32_t)n + 127) << 23) : 0.0f; }

/// Weighs any row. product(group): sums of whole numbers for its tokens.
template <class Scores, class Product>
void weigh_quads(const AttentionTask& task, const Parts& p, const Operands& o, int r, float* scores, Seen seen, const Product& product) {
  if (!seen.whole()) read_value_scales(o, seen, p.value_scales[1]);
  const ValueScales& values = p.value_scales[seen.whole() ? 0 : 1];
  const Vec nothing = broadcast(-__builtin_inff());
  Vec x[kChunkGroups], best = nothing, highest = nothing;
  INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g) {
    x[g] = nothing;
    if (!has_seen(seen, g)) continue;
    const Vec scale = load(o.k_scale[g]);
    x[g] = are_plain<Scores>(task) ? product(g) * (scale * plain_factor(task, p, r))
                                   : Scores::score(task, product(g) * (scale * broadcast(read_query(p, r).scale)), p.bias + g * kTokenGroup);
    if (!seen.whole()) x[g] = where_seen(x[g], nothing, seen, g);
    best = max(best, x[g] + load(values.exponent + g * kTokenGroup));
    highest = max(highest, x[g]);
  }
  float top = __builtin_ceilf(reduce_max(best));
  if (!(__builtin_fabsf(top) < kFarScore)) top = __builtin_ceilf(reduce_max(highest));
  if (top > p.maximum[r] + Scores::kSlack) raise_to<Scores>(p, r, top);
  const float reference = top == -__builtin_inff() ? 0.0f : top, above = reference - p.maximum[r];
  Vec total = zero();
  INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g) {
    x[g] = power_of_two(x[g] - broadcast(reference));
    total = total + x[g];
    x[g] = x[g] * load(values.scale + g * kTokenGroup);
  }
  float* const weight = p.weight + r * kTokenGroup;
  store(weight, fma(total, broadcast(whole_power(above)), load(weight)));
  p.units[r] = whole_power(above + values.unit);
  put_digits(task, scores, x);
}

#if defined(__AVX512F__)

/// The greatest of each row's 16.
template <int R>
INGOT_INLINE __m128 greatest_of(const Vec (&x)[R]) {
  const auto halves = [&](int a, int b) __attribute__((always_inline)) {
    const __m512 u = x[a < R ? a : 0].v, v = x[b < R ? b : 0].v;
    return _mm512_max_ps(_mm512_shuffle_f32x4(u, v, 0x44), _mm512_shuffle_f32x4(u, v, 0xee));
  };
  const __m512 u = halves(0, 1), v = halves(2, 3);
  __m512 all = _mm512_max_ps(_mm512_shuffle_f32x4(u, v, 0x88), _mm512_shuffle_f32x4(u, v, 0xdd));
  all = _mm512_max_ps(all, _mm512_permute_ps(all, 0x4e));
  all = _mm512_max_ps(all, _mm512_permute_ps(all, 0xb1));
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12), all));
}

/// The same of R rows at once that see the whole chunk and have plain scores; false, and nothing done, where one is far. product(i, group).
template <int R, class Product>
INGOT_INLINE bool weigh_near(const AttentionTask& task, const Parts& p, const Operands& o, int r, float* scores, const Product& product) {
  constexpr __mmask8 kRows = (1 << R) - 1;
  const ValueScales& values = p.value_scales[0];
  Vec x[R][kChunkGroups], best[R];
  INGOT_UNROLL for (int i = 0; i < R; ++i) {
    const Vec factor = plain_factor(task, p, r + i);
    best[i] = broadcast(-__builtin_inff());
    INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g) {
      x[i][g] = product(i, g) * (load(o.k_scale[g]) * factor);
      best[i] = max(best[i], x[i][g] + load(values.exponent + g * kTokenGroup));
    }
  }
  const __m128 top = _mm_roundscale_ps(greatest_of(best), _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
  if ((_mm_cmp_ps_mask(_mm_andnot_ps(_mm_set1_ps(-0.0f), top), _mm_set1_ps(kFarScore), _CMP_LT_OQ) & kRows) != kRows) return false;
  reads(p.maximum + r, R * 4);
  __m128 before = _mm_maskz_loadu_ps(kRows, p.maximum + r);
  const __mmask8 higher = _mm_mask_cmp_ps_mask(kRows, top, _mm_add_ps(before, _mm_set1_ps(Unmasked::kSlack)), _CMP_GT_OQ);
  alignas(16) float tops[4], shares[4];
  _mm_store_ps(tops, top);
  if (__builtin_expect(higher != 0, 0)) {
    for (int i = 0; i < R; ++i)
      if (higher >> i & 1) raise_to<Unmasked>(p, r + i, tops[i]);
    before = _mm_maskz_loadu_ps(kRows, p.maximum + r);
  }
  const auto power = [](__m128 n) { return _mm_maskz_scalef_ps(_mm_cmp_ps_mask(n, _mm_set1_ps(-126.0f), _CMP_GE_OQ), _mm_set1_ps(1.0f), n); };
  const __m128 above = _mm_sub_ps(top, before);
  _mm_store_ps(shares, power(above));
  writes(p.units + r, R * 4);
  _mm_mask_storeu_ps(p.units + r, kRows, power(_mm_add_ps(above, _mm_set1_ps(values.unit))));
  INGOT_UNROLL for (int i = 0; i < R; ++i) {
    Vec total = zero();
    INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g) {
      x[i][g] = power_of_two(x[i][g] - broadcast(tops[i]));
      total = total + x[i][g];
      x[i][g] = x[i][g] * load(values.scale + g * kTokenGroup);
    }
    float* const weight = p.weight + (r + i) * kTokenGroup;
    store(weight, fma(total, broadcast(shares[i]), load(weight)));
    put_digits(task, scores + i * kChunkTokens, x[i]);
  }
  return true;
}

#else

template <int R, class Product>
bool weigh_near(const AttentionTask&, const Parts&, const Operands&, int, float*, const Product&) {
  return false;
}

#endif

/// Turns the scores of `rows` rows from r on into digits of weights, and adds the weights up. product(row, group), counted from r;
/// between(row, rows) runs before these rows are weighed.
template <class Scores, class Product, class Between>
INGOT_INLINE void weigh_quad_rows(const AttentionTask& task, const Parts& p, const Operands& o, std::int64_t start, int r, int rows, float* scores,
                                  const Seen* seen, const Product& product, const Between& between) {
  for (int i = 0, taken; i < rows; i += taken) {
    const bool near = are_plain<Scores>(task) && seen[i].whole();
    taken = 1;
    while (near && taken < 4 && i + taken < rows && seen[i + taken].whole()) ++taken;
    between(i, taken);
    float* const own = scores + i * kChunkTokens;
    const auto from = [&](int j, int g) __attribute__((always_inline)) { return product(i + j, g); };
    if (near) {
      if (taken == 4 && weigh_near<4>(task, p, o, r + i, own, from)) continue;
      if (taken == 3 && weigh_near<3>(task, p, o, r + i, own, from)) continue;
      if (taken == 2 && weigh_near<2>(task, p, o, r + i, own, from)) continue;
      if (taken == 1 && weigh_near<1>(task, p, o, r + i, own, from)) continue;
    }
    for (int j = 0; j < taken; ++j) {
      float* const place = own + j * kChunkTokens;
      if (seen[i + j].none()) {
        no_weights(place);
        if (stacks_digits(task)) no_weights(place + kStackedRows * kChunkTokens);
        p.units[r + i + j] = 0;
        continue;
      }
      if constexpr (Scores::kSloped) distances_of_row(task, r + i + j, start, p.bias);
      weigh_quads<Scores>(task, p, o, r + i + j, place, seen[i + j], [&](int g) __attribute__((always_inline)) { return from(j, g); });
    }
  }
}

#else

inline void read_value_scales(const Operands&, Seen, ValueScales&) {}
template <class Scores, class Product, class Between>
void weigh_quad_rows(const AttentionTask&, const Parts&, const Operands&, std::int64_t, int, int, float*, const Seen*, const Product&, const Between&) {}

#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
