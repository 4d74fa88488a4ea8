// Rows of queries against chunks of keys and values, for one level: what paged and dense attention share.
//
// A row gets the same bits in a tile of any height. Scores are whole chains (attention_tile.h), the softmax is per row,
// and V is added from the row's first token to its last. A token that the row does not see is never added (0 * inf
// would not be 0). A row whose scores are all -inf gives zeros, or NaN where the task says so; NaN in a score or value
// that takes part makes the row's results NaN.
#pragma once

#include "attention.h"
#include "attention_int8.h"
#include "attention_parts.h"
#include "attention_tile.h"

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
#if defined(__AVX512F__)
  const Vec power = ldexp_rounded(p, n);
#else
  const Vec power = from_bits(bits(p) + shift_left<23>(truncate_to_int(n)));
#endif
  return select(y < broadcast(-126.0f), zero(), power);
}

/// Raises a row's reference score when the chunk's greatest is well above it, and shrinks what was summed under the old one.
/// (Weights up to 2^8 lose nothing, and most chunks need no shrinking that way.) 0 while all scores were -inf.
template <class Scores>
INGOT_INLINE Vec raise_maximum(const Parts& p, int r, Vec best) {
  const float before = p.maximum[r], bound = before + Scores::kSlack;
  if (any(broadcast(bound) < best)) {  // foreseen, so that the weights need not wait for the greatest of 16
    const float greatest = reduce_max(best);
    if (greatest > bound) p.maximum[r] = greatest;
    if (greatest > bound && before > -__builtin_inff()) {
      const Vec shrink = power_of_two(Scores::exponent(broadcast(before - greatest)));
      store(p.weight + r * kTokenGroup, load(p.weight + r * kTokenGroup) * shrink);
      float* sum = p.sum + r * p.value_width;
      for (int d = 0; d < p.value_width; d += kLanes) store(sum + d, load(sum + d) * shrink);
    }
  }
  return broadcast(p.maximum[r] == -__builtin_inff() ? 0.0f : p.maximum[r]);
}

/// Turns a row's scores into weights 2^(score - maximum) and adds them up. The first form is the second for a whole chunk.
template <class Scores>
void weigh_whole(const AttentionTask& task, const Parts& p, int r, float* scores, const float* bias) {
  Vec x[kChunkGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kChunkGroups; ++g)
    x[g] = Scores::score(task, load(scores + g * kTokenGroup), bias + g * kTokenGroup);
  Vec best = x[0];
#pragma GCC unroll 4
  for (int g = 1; g < kChunkGroups; ++g) best = max(best, x[g]);
  const Vec maximum = raise_maximum<Scores>(p, r, best);
  Vec weight = load(p.weight + r * kTokenGroup);
#pragma GCC unroll 4
  for (int g = 0; g < kChunkGroups; ++g) {
    const Vec y = power_of_two(Scores::exponent(x[g] - maximum));
    store(scores + g * kTokenGroup, y);
    weight = weight + y;
  }
  store(p.weight + r * kTokenGroup, weight);
}

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

/// Adds weights [first, last) times V, which is T, to the sums of `rows` rows.
template <class T>
void add_values(const Parts& p, const Operands& o, int r, int rows, const float* scores, int first, int last) {
  constexpr int kColumns = __is_same(T, ValuePair) ? 2 : 1;  // of an element of T
  const int vectors = p.value_width / kLanes;
  for (int at = 0, count = 0; at < vectors; at += count) {
    count = vectors_at_once(rows, vectors - at);
    Product product;  // not cleared: that would take a tenth of the time of one row
    product.a = scores + first, product.segments = 0;
    product.b_stride = o.v_stride / kColumns;
    product.c = p.sum + r * p.value_width + at * kLanes, product.c_stride = p.value_width, product.accumulate = true;
    for (int token = first; token < last; ++product.segments) {
      const int group = token / kTokenGroup, end = (group + 1) * kTokenGroup < last ? (group + 1) * kTokenGroup : last;
      const std::int64_t offset = token % kTokenGroup * product.b_stride;
      auto& segment = product.segment[product.segments];
      const std::int64_t column = offset + at / kColumns * kLanes;
      segment.b[0] = (const T*)o.v[group] + column;
      segment.ahead = (const T*)o.v_ahead[group] + column;
      segment.count = end - token;
      token = end;
    }
    if constexpr (__is_same(T, ValuePair)) {
      if (count == 1) {
        at % 2 == 0 ? multiply_tile<First, false>(product, rows, 1) : multiply_tile<Second, false>(product, rows, 1);
        continue;
      }
    }
    multiply_tile<T, false>(product, rows, count);
  }
}

void add_values(const AttentionTask& task, const Parts& p, const Operands& o, int r, int rows, const float* scores, int first, int last) {
  if (first >= last) return;
  if (!o.bfloat16_v) return add_values<float>(p, o, r, rows, scores, first, last);
  task.value_pairs ? add_values<ValuePair>(p, o, r, rows, scores, first, last)
                   : add_values<bfloat16>(p, o, r, rows, scores, first, last);
}

/// Keys in as many parts as there are vectors, so that the groups ahead are fetched one after the other.
INGOT_INLINE void score_tile(const AttentionTask& task, const Parts& p, const Operands& o, int r, int rows, Seen all) {
  const int last = (all.last + kTokenGroup - 1) / kTokenGroup;
  const int steps = in_pairs(task) || o.bfloat16_k ? task.head_dim / 2 : task.head_dim;
  for (int at = all.first / kTokenGroup, count = 0; at < last; at += count) {
    count = vectors_at_once(rows, last - at);
    Product product;
    product.a = p.q + r * p.width, product.a_stride = p.width;
    product.c = p.scores + at * kTokenGroup, product.c_stride = kChunkTokens, product.accumulate = false;
    product.segments = steps % count == 0 ? count : 1;
    const int part = steps / product.segments;
    for (int s = 0; s < product.segments; ++s) {
      auto& segment = product.segment[s];
      for (int i = 0; i < count; ++i) segment.b[i] = (const float*)o.k[at + i] + s * part * kTokenGroup;
      segment.ahead = o.k_ahead[at + s];
      segment.count = part;
    }
    if (in_pairs(task))
      multiply_tile<Pair, true>(product, rows, count);
    else
      o.bfloat16_k ? multiply_tile<KeyPair, true>(product, rows, count) : multiply_tile<float, true>(product, rows, count);
  }
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

// ---- segments of the context ----

/// Adds the sums of row r to its totals, both brought to the greater of the two reference scores.
template <class Scores>
void fold_row(const Parts& p, const Parts& total, int r) {
  const float own = p.maximum[r], before = total.maximum[r], both = own > before ? own : before;
  const auto scale_of = [&](float maximum) {  // minus infinity: nothing was weighed, or only NaN
    if (maximum == both) return broadcast(1.0f);
    return maximum == -__builtin_inff() ? zero() : power_of_two(Scores::exponent(broadcast(maximum - both)));
  };
  const Vec scale = scale_of(own), shrink = scale_of(before);
  total.maximum[r] = both;
  float *weight = total.weight + r * kTokenGroup, *sum = total.sum + r * p.value_width;
  store(weight, fma(load(p.weight + r * kTokenGroup), scale, load(weight) * shrink));
  for (int d = 0; d < p.value_width; d += kLanes)
    store(sum + d, fma(load(p.sum + r * p.value_width + d), scale, load(sum + d) * shrink));
}

void copy_row(const Parts& p, const Parts& total, int r) {
  total.maximum[r] = p.maximum[r];
  store(total.weight + r * kTokenGroup, load(p.weight + r * kTokenGroup));
  for (int d = r * p.value_width; d < (r + 1) * p.value_width; d += kLanes) store(total.sum + d, load(p.sum + d));
}

/// A row takes part when it sees tokens of the segment, whatever the others see.
template <class Scores>
void fold_rows(const AttentionTask& task, std::int64_t segment) {
  const Parts p = parts_of(task), total = totals_of(task);
  for (int r = 0; r < task.rows; ++r) {
    const std::int64_t last = task.position + (task.first_row + r) / task.group, first = last + 1 - task.window;
    const std::int64_t first_segment = first > 0 ? first / kSegmentTokens : 0;
    if (segment < first_segment || segment > last / kSegmentTokens) continue;
    segment == first_segment ? copy_row(p, total, r) : fold_row<Scores>(p, total, r);
  }
}

// ---- rows against a chunk ----

/// Rows r .. r + rows; later ones see later tokens, so the first and the last bound what all see and what any sees.
template <class Scores, class After>
void attend_tile(const AttentionTask& task, const Parts& p, const Operands& o, std::int64_t start, int r, int rows,
                 const Seen* seen, const After& after) {
  const Seen any{seen[0].first, seen[rows - 1].last}, every{seen[rows - 1].first, seen[0].last};
  if (any.none()) return;
  if (o.quads)
    score_quads(p, o, r, rows, any);
  else
    score_tile(task, p, o, r, rows, any);
  const bool own_bias = task.mask.data != nullptr && !same_for_all_rows(task);
  for (int i = 0; i < rows; ++i) {
    float* scores = p.scores + i * kChunkTokens;
    after(r + i, task.rows);
    if (seen[i].none()) {
      if (o.quads) no_weights(scores);
      continue;
    }
    if (o.scaled) scale_by(scores, o.k_scale, seen[i]);
    if constexpr (Scores::kSloped)
      distances_of_row(task, r + i, start, p.bias);
    else if (own_bias)
      bias_of_row(task, r + i, start, p.bias);
    seen[i].whole() ? weigh_whole<Scores>(task, p, r + i, scores, p.bias) : weigh<Scores>(task, p, r + i, scores, p.bias, seen[i]);
    if (o.quads)
      weights_in_quads(scores, o.v_scale, seen[i]);
    else if (o.scaled)
      scale_by(scores, o.v_scale, seen[i]);
  }
  if (o.quads) return add_quads(p, o, r, rows, any);
  if (every.none()) {
    for (int i = 0; i < rows; ++i) add_values(task, p, o, r + i, 1, p.scores + i * kChunkTokens, seen[i].first, seen[i].last);
    return;
  }
  for (int i = 0; i < rows; ++i) add_values(task, p, o, r + i, 1, p.scores + i * kChunkTokens, seen[i].first, every.first);
  add_values(task, p, o, r, rows, p.scores, every.first, every.last);
  for (int i = 0; i < rows; ++i) add_values(task, p, o, r + i, 1, p.scores + i * kChunkTokens, every.last, seen[i].last);
}

/// All rows of the task against the chunk whose first token is `start`; `after` runs once for each row.
template <class Scores, class After>
void attend_rows(const AttentionTask& task, const Parts& p, const Operands& o, std::int64_t start, const After& after) {
  std::int64_t next = task.position + task.first_row / task.group + 1 - start;  // the first token that a row does not see
  const std::int64_t end = task.tokens - start;
  int head = (int)(task.first_row % task.group);
  const int tiles = (task.rows + kTileRows - 1) / kTileRows, height = tiles == 1 ? task.rows : (task.rows + tiles - 1) / tiles;
  for (int r = 0; r < task.rows; r += height) {
    const int rows = task.rows - r < height ? task.rows - r : height;
    Seen seen[kTileRows];
    for (int i = 0; i < rows; ++i) {
      seen[i] = {within_chunk(next - task.window), within_chunk(next < end ? next : end)};
      if (++head == task.group) head = 0, ++next;
    }
    if (tiles == 1)
      attend_tile<Scores>(task, p, o, start, r, rows, seen, after);
    else
      attend_tile<Scores>(task, p, operands_of_tile(o, r / height, tiles), start, r, rows, seen, after);
  }
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
