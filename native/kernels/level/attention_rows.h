// Rows of queries against chunks of keys and values, for one level: what paged and dense attention share.
//
// A row gets the same bits in a tile of any height. Scores are whole chains (attention_tile.h), the softmax is per row,
// and V is added from the row's first token to its last. A token that the row does not see is never added (0 * inf
// would not be 0). A row whose scores are all -inf gives zeros, or NaN where the task says so; NaN in a score or value
// that takes part makes the row's results NaN.
#pragma once

#include "attention.h"
#include "attention_blocks.h"
#include "attention_int8_weights.h"
#include "attention_pairs.h"
#include "attention_parts.h"
#include "attention_tile.h"
#include "attention_weights.h"

namespace ingot::INGOT_LEVEL {

namespace {

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
  in_column_pairs(task) ? add_values<ValuePair>(p, o, r, rows, scores, first, last)
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

// ---- segments of the context ----

/// What the sums and the totals of 16 rows are multiplied by, so that both are of the greater one of their reference scores.
struct FoldScales {
  float own[kLanes], total[kLanes], both[kLanes];
};
template <class Scores>
FoldScales fold_scales(const float* maximum, const float* total) {
  const Vec own = load(maximum), before = load(total), both = max(own, before);
  const auto scale_of = [&](Vec reference) {  // of minus infinity zeros, unless both are: then nothing was weighed, or only NaN
    return select(reference == both, broadcast(1.0f), power_of_two(Scores::exponent(reference - both)));
  };
  FoldScales scales;
  store(scales.own, scale_of(own)), store(scales.total, scale_of(before)), store(scales.both, both);
  return scales;
}

/// Adds the sums of row r to its totals.
void fold_row(const Parts& p, const Parts& total, int r, const FoldScales& scales) {
  const Vec scale = broadcast(scales.own[r % kLanes]), shrink = broadcast(scales.total[r % kLanes]);
  total.maximum[r] = scales.both[r % kLanes];
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
  std::int64_t last = task.position + task.first_row / task.group;  // token that the row sees
  int head = (int)(task.first_row % task.group);
  FoldScales scales;
  for (int r = 0; r < task.rows; ++r) {
    if (r % kLanes == 0) scales = fold_scales<Scores>(p.maximum + r, total.maximum + r);
    const std::int64_t first = last + 1 - task.window, first_segment = first > 0 ? first / kSegmentTokens : 0;
    const bool sees = segment >= first_segment && segment <= last / kSegmentTokens;
    if (sees && segment == first_segment) copy_row(p, total, r);
    else if (sees) fold_row(p, total, r, scales);
    if (++head == task.group) head = 0, ++last;
  }
}

// ---- rows against a chunk ----

/// Rows r .. r + rows; later ones see later tokens, so the first and the last bound what all see and what any sees.
template <class Scores, class After>
void attend_tile(const AttentionTask& task, const Parts& p, const Operands& o, std::int64_t start, int r, int rows,
                 const Seen* seen, [[maybe_unused]] bool finite, const After& after) {
  const Seen any{seen[0].first, seen[rows - 1].last}, every{seen[rows - 1].first, seen[0].last};
  if (any.none()) return;
  if (o.quads)
    score_quads(p, o, r, rows, any);
  else
    score_tile(task, p, o, r, rows, any);
  if (o.quads) {
    weigh_quad_rows<Scores>(task, p, o, start, r, rows, p.scores, seen,
                            [&](int i, int g) __attribute__((always_inline)) { return to_float(bits(load(p.scores + i * kChunkTokens + g * kTokenGroup))); },
                            [](int, int) {});
    return add_quads(p, o, r, rows, any);
  }
#if defined(__AVX512BF16__)
  if (o.pairs) return weigh_and_add_pairs<Scores>(task, p, o, start, r, rows, seen, finite, after);
#endif
  const bool own_bias = task.mask.data != nullptr && !same_for_all_rows(task);
  for (int i = 0; i < rows; ++i) {
    float* scores = p.scores + i * kChunkTokens;
    after(r + i, task.rows);
    if (seen[i].none()) continue;
    if (o.scaled) scale_by(scores, o.k_scale, seen[i]);
    if constexpr (Scores::kSloped)
      distances_of_row(task, r + i, start, p.bias);
    else if (own_bias)
      bias_of_row(task, r + i, start, p.bias);
    seen[i].whole() ? weigh_whole<Scores>(task, p, r + i, scores, p.bias) : weigh<Scores>(task, p, r + i, scores, p.bias, seen[i]);
    if (o.scaled) scale_by(scores, o.v_scale, seen[i]);
  }
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
#if defined(__AMX_BF16__)
  if (o.tiles) return attend_blocks<Scores>(task, p, o, start, after);
#endif
  std::int64_t next = task.position + task.first_row / task.group + 1 - start;  // the first token that a row does not see
  const std::int64_t end = task.tokens - start;
  int head = (int)(task.first_row % task.group);
  bool finite = true;
  int r = 0;
#if defined(__AVX512BF16__)
  if (o.pairs) finite = finite_where_needed(task, p, start);
  if constexpr (!Scores::kSloped) {
    if (o.pairs && finite && in_whole_tiles(task)) {
      r = task.rows / kTileRows * kTileRows;
      attend_tiles<Scores>(task, p, o, start, r / kTileRows, after);
      next += (head + r) / task.group, head = (head + r) % task.group;
    }
  }
#endif
  const int tiles = (task.rows + kTileRows - 1) / kTileRows, height = tiles == 1 ? task.rows : (task.rows + tiles - 1) / tiles;
  for (; r < task.rows; r += height) {
    const int rows = task.rows - r < height ? task.rows - r : height;
    Seen seen[kTileRows];
    for (int i = 0; i < rows; ++i) {
      seen[i] = {within_chunk(next - task.window), within_chunk(next < end ? next : end)};
      if (++head == task.group) head = 0, ++next;
    }
    if (tiles == 1)
      attend_tile<Scores>(task, p, o, start, r, rows, seen, finite, after);
    else
      attend_tile<Scores>(task, p, operands_of_tile(o, r / height, tiles), start, r, rows, seen, finite, after);
  }
}

/// With the tiles that its chunks multiply by.
void begin_rows(const AttentionTask& task) {
  begin(task);
  begin_blocks(task);
}

void finish_rows(const AttentionTask& task) {
  end_blocks(task);
  finish(task);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
