// The softmax of rows for one level: scores become weights, and what is added to scores before.
#pragma once

#include "attention_parts.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr float kLog2E = 1.44269504088896341f;

/// Without a mask scores are kept in units of log 2, so that a weight is a power of two.
struct Unmasked {
  static constexpr float kSlack = 8.0f;
  static constexpr bool kSloped = false;
  INGOT_INLINE Vec score(const AttentionTask& task, Vec product, const float*) {
    if (task.softcap == 0) return product * broadcast(task.scale * kLog2E);
    return broadcast(task.softcap * kLog2E) * tanh(product * broadcast(task.scale) / broadcast(task.softcap));
  }
  INGOT_INLINE Vec exponent(Vec difference) { return difference; }
};

/// With slopes the bias of a row is a multiple of the distance to each key (ALiBi).
struct Sloped {
  static constexpr float kSlack = 8.0f;
  static constexpr bool kSloped = true;
  INGOT_INLINE Vec score(const AttentionTask& task, Vec product, const float* bias) {
    const Vec x = fma(product, broadcast(task.scale), load(bias));
    if (task.softcap == 0) return x * broadcast(kLog2E);
    return broadcast(task.softcap * kLog2E) * tanh(x / broadcast(task.softcap));
  }
  INGOT_INLINE Vec exponent(Vec difference) { return difference; }
};

/// With one they are not: it may hold the least float, which times log2(e) would be -inf.
struct Masked {
  static constexpr float kSlack = 5.5f;
  static constexpr bool kSloped = false;
  INGOT_INLINE Vec score(const AttentionTask& task, Vec product, const float* bias) {
    return fma(product, broadcast(task.scale), load(bias));
  }
  INGOT_INLINE Vec exponent(Vec difference) { return difference * broadcast(kLog2E); }
};

#if defined(__AVX512F__)

/// 2^y for y up to some tens; zero below 2^-126, where it would be denormal. Within 1.5e-7 of its size; of whole y exact.
INGOT_INLINE Vec power_of_two(Vec y) {
  const Vec f{_mm512_reduce_ps(y.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};  // y - floor(y)
  Vec p = broadcast(1.8671381985768676e-3f);  // of the least relative error with p(0) = 1
  p = fma(p, f, broadcast(9.0170120820403099e-3f));
  p = fma(p, f, broadcast(5.5799927562475204e-2f));
  p = fma(p, f, broadcast(2.4016444385051727e-1f));
  p = fma(p, f, broadcast(6.9315129518508911e-1f));
  p = fma(p, f, broadcast(1.0f));
  return {_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(y.v, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), p.v, y.v)};  // times 2^floor(y)
}

#else

/// 2^y for y up to some tens; zero below 2^-126, where it would be denormal. The polynomial is Cephes' (S. Moshier).
INGOT_INLINE Vec power_of_two(Vec y) {
  const Vec n = round_even(y);
  const Vec f = y - n;
  Vec p = broadcast(1.535336188319500e-4f);
  p = fma(p, f, broadcast(1.339887440266574e-3f));
  p = fma(p, f, broadcast(9.618437357674640e-3f));
  p = fma(p, f, broadcast(5.550332471162809e-2f));
  p = fma(p, f, broadcast(2.402264791363012e-1f));
  p = fma(p, f, broadcast(6.931472028550421e-1f));
  p = fma(p, f, broadcast(1.0f));
  return select(y < broadcast(-126.0f), zero(), from_bits(bits(p) + shift_left<23>(truncate_to_int(n))));
}

#endif

/// A sum that has shrunk. Products of bfloat16 take denormals for zeros, as often as they meet them.
INGOT_INLINE Vec without_denormals(Vec x) {
#if defined(__AVX512BF16__)
  return select(abs(x) < broadcast(0x1p-126f), zero(), x);
#else
  return x;
#endif
}

/// Makes `greatest` a row's reference score, and shrinks what was summed under the one before.
template <class Scores>
void raise_to(const Parts& p, int r, float greatest) {
  const float before = p.maximum[r];
  p.maximum[r] = greatest;
  if (before == -__builtin_inff()) return;
  const Vec shrink = power_of_two(Scores::exponent(broadcast(before - greatest)));
  store(p.weight + r * kTokenGroup, load(p.weight + r * kTokenGroup) * shrink);
  float* sum = p.sum + r * p.value_width;
  for (int d = 0; d < p.value_width; d += kLanes) store(sum + d, without_denormals(load(sum + d) * shrink));
}

/// Raises a row's reference score when the chunk's greatest is well above it, and shrinks what was summed under the old one.
/// (Weights up to 2^8 lose nothing, and most chunks need no shrinking that way.) 0 while all scores were -inf.
template <class Scores>
INGOT_INLINE Vec raise_maximum(const Parts& p, int r, Vec best) {
  const float before = p.maximum[r], bound = before + Scores::kSlack;
  if (any(broadcast(bound) < best)) {  // foreseen, so that the weights need not wait for the greatest of 16
    const float greatest = reduce_max(best);
    if (greatest > bound) raise_to<Scores>(p, r, greatest);
  }
  return broadcast(p.maximum[r] == -__builtin_inff() ? 0.0f : p.maximum[r]);
}

/// Turns the scores of R rows from r on into weights 2^(score - maximum) and adds them up; put(i, weights) takes those of row r + i.
template <class Scores, int R, class Put>
INGOT_INLINE void weigh_rows(const AttentionTask& task, const Parts& p, int r, const float* scores, const float* bias, const Put& put) {
  Vec x[R][kChunkGroups], maximum[R];
  INGOT_UNROLL for (int i = 0; i < R; ++i) {
    INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g)
      x[i][g] = Scores::score(task, load(scores + i * kChunkTokens + g * kTokenGroup), bias + g * kTokenGroup);
  }
  INGOT_UNROLL for (int i = 0; i < R; ++i) {
    Vec best = x[i][0];
    INGOT_UNROLL for (int g = 1; g < kChunkGroups; ++g) best = max(best, x[i][g]);
    maximum[i] = raise_maximum<Scores>(p, r + i, best);
  }
  INGOT_UNROLL for (int i = 0; i < R; ++i) {
    Vec weight = load(p.weight + (r + i) * kTokenGroup);
    INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g) {
      x[i][g] = power_of_two(Scores::exponent(x[i][g] - maximum[i]));
      weight = weight + x[i][g];
    }
    store(p.weight + (r + i) * kTokenGroup, weight);
    put(i, x[i]);
  }
}

/// A row that sees the whole chunk; its weights take the place of its scores.
template <class Scores>
void weigh_whole(const AttentionTask& task, const Parts& p, int r, float* scores, const float* bias) {
  weigh_rows<Scores, 1>(task, p, r, scores, bias, [&](int, const Vec (&weights)[kChunkGroups]) __attribute__((always_inline)) {
    INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g) store(scores + g * kTokenGroup, weights[g]);
  });
}

/// The same of a row that sees a part.
template <class Scores>
void weigh(const AttentionTask& task, const Parts& p, int r, float* scores, const float* bias, Seen seen) {
  const int first = seen.first / kTokenGroup, last = (seen.last + kTokenGroup - 1) / kTokenGroup;
  const Vec nothing = broadcast(-__builtin_inff());
  const Vec token = load(kIota);
  Vec best = nothing;
  for (int g = first; g < last; ++g) {
    Vec x = Scores::score(task, load(scores + g * kTokenGroup), bias + g * kTokenGroup);
    x = select(token < broadcast((float)(seen.first - g * kTokenGroup)), nothing, x);
    x = select(token < broadcast((float)(seen.last - g * kTokenGroup)), x, nothing);
    store(scores + g * kTokenGroup, x);
    best = max(best, x);
  }
  const Vec maximum = raise_maximum<Scores>(p, r, best);
  Vec weight = load(p.weight + r * kTokenGroup);
  for (int g = first; g < last; ++g) {
    const Vec y = power_of_two(Scores::exponent(load(scores + g * kTokenGroup) - maximum));
    store(scores + g * kTokenGroup, y);
    weight = weight + y;
  }
  store(p.weight + r * kTokenGroup, weight);
}

// ---- masks ----

/// The bias of one row and chunk: what a float mask holds, or 0 and -inf; 0 behind the last token.
template <class T>
void bias_of(const T* mask, std::int64_t stride, int count, float* bias) {
  if constexpr (sizeof(T) == 1) {
    for (int i = 0; i < count; ++i) bias[i] = mask[i * stride] ? 0.0f : -__builtin_inff();
  } else {
    for (int i = 0; i < count; ++i) bias[i] = load_one(mask + i * stride);
  }
  for (int i = count; i < kChunkTokens; ++i) bias[i] = 0.0f;
}

template <class T>
void bias_of_type(const AttentionTask& task, std::int64_t offset, int count, float* bias) {
  const T* mask = (const T*)task.mask.data + offset;
  task.mask.key_stride == 1 ? bias_of(mask, 1, count, bias) : bias_of(mask, task.mask.key_stride, count, bias);
}

void bias_of_row(const AttentionTask& task, int r, std::int64_t start, float* bias) {
  const AttentionMask& mask = task.mask;
  const std::int64_t row = task.first_row + r, left = task.tokens - start;
  const int count = left < kChunkTokens ? (int)left : kChunkTokens;
  const std::int64_t offset =
      row / task.group * mask.token_stride + row % task.group * mask.head_stride + start * mask.key_stride;
  if (mask.dtype == DType::boolean)
    bias_of_type<std::uint8_t>(task, offset, count, bias);
  else if (mask.dtype == DType::float32)
    bias_of_type<float>(task, offset, count, bias);
  else if (mask.dtype == DType::bfloat16)
    bias_of_type<bfloat16>(task, offset, count, bias);
  else
    bias_of_type<float16>(task, offset, count, bias);
}

/// slope * (key position - query position) of one row and chunk. Distances below 2^24 are exact.
void distances_of_row(const AttentionTask& task, int r, std::int64_t start, float* bias) {
  const std::int64_t row = task.first_row + r, query = task.position + row / task.group;
  const Vec slope = broadcast(task.slopes[row % task.group]), token = load(kIota);
  for (int i = 0; i < kChunkTokens; i += kLanes) store(bias + i, slope * (token + broadcast((float)(start + i - query))));
}

bool same_for_all_rows(const AttentionTask& task) {
  return task.mask.token_stride == 0 && (task.group == 1 || task.mask.head_stride == 0);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
