// Attention of bfloat16 queries, keys and values by dot products of pairs, where no AMX tiles make them.
//
// Scores: pairs along head_dim, as the cache has its keys. Sums: weights are rounded to bfloat16 and multiplied two tokens at a time by values
// that are put into pairs of tokens once for a chunk and all rows. What sums are divided by is the sum of the rounded weights, so that a row
// stays a mean of values.
//
// A row has the same bits in any company: pairs begin at even tokens and are added in order, and a token that the row does not see has weight
// 0. 0 times a value is 0 unless that is infinite or NaN: where a row does not see all of a chunk whose values are not all finite, its sums
// are made alone, from values that it sees. Denormals are taken for zeros, so sums never hold any; a zero has no sign in the end.
#pragma once

#include "attention_tile.h"
#include "attention_weights.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512BF16__)

constexpr int kPairs = kChunkTokens / 2;

// ---- values ----

/// Two rows of values side by side (y null: zeros), in as many vectors of pairs as hold the columns.
INGOT_INLINE void pair_rows(const bfloat16* x, const bfloat16* y, int columns, float* to) {
  for (int d = 0; d < columns; d += 2 * kLanes, to += 2 * kLanes) {
    const int left = columns - d;
    const __mmask32 there = left >= 32 ? ~0u : (1u << left) - 1u;
    if (left < 32) {
      reads(x + d, 2 * left);
      if (y != nullptr) reads(y + d, 2 * left);
    }
    const __m512i a = left >= 32 ? _mm512_loadu_si512(x + d) : _mm512_maskz_loadu_epi16(there, x + d);
    __m512i b = _mm512_setzero_si512();
    if (y != nullptr) b = left >= 32 ? _mm512_loadu_si512(y + d) : _mm512_maskz_loadu_epi16(there, y + d);
    _mm512_store_si512(to, pair_first(a, b));
    if (left > kLanes) _mm512_store_si512(to + kLanes, pair_last(a, b));
  }
}

/// The first `count` of a group's 16 rows of values, as pairs of tokens: [8][width][2], where width is value_dim in whole vectors. What is
/// missing of the last pair is zeros.
void pair_values(const AttentionTask& task, const bfloat16* v, std::int64_t stride, int count, int width, float* to) {
  if (task.value_dim == 64) {  // a constant: unrolled, without masks
    for (int t = 0; t < count; t += 2, v += 2 * stride, to += width) pair_rows(v, t + 1 < count ? v + stride : nullptr, 64, to);
    return;
  }
  for (int t = 0; t < count; t += 2, v += 2 * stride, to += width) pair_rows(v, t + 1 < count ? v + stride : nullptr, task.value_dim, to);
}

/// What all rows see of a chunk, and what any of them sees.
struct SeenByRows {
  Seen every, any;
};
SeenByRows seen_by_rows(const AttentionTask& task, std::int64_t start) {
  const auto next_of = [&](int r) { return task.position + (task.first_row + r) / task.group + 1 - start; };
  const std::int64_t first = next_of(0), last = next_of(task.rows - 1), end = task.tokens - start;
  return {{within_chunk(last - task.window), within_chunk(first < end ? first : end)}, {within_chunk(first - task.window), within_chunk(last < end ? last : end)}};
}

/// Whether the values of a chunk are paired as they are multiplied: one or two rows that see all of it would not pay for more.
inline bool pairs_in_place(const AttentionTask& task, std::int64_t start) {
  return task.rows <= 2 && task.value_dim % (2 * kLanes) == 0 && seen_by_rows(task, start).every.whole();
}

/// Whether all rows see all of the chunk, or the values of all tokens that any row sees, and of those beside them, are finite.
bool finite_where_needed(const AttentionTask& task, const Parts& p, std::int64_t start) {
  const auto [every, seen] = seen_by_rows(task, start);
  if (seen.none() || every.whole()) return true;
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 faults = 0;
  const float* const behind = p.v + (seen.last + 1) / 2 * p.value_width;
  for (const float* at = p.v + seen.first / 2 * p.value_width; at < behind; at += kLanes)
    faults |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_load_si512(at), exponent), exponent);
  return faults == 0;
}

/// Adds the weighted values of the pairs that hold the tokens to the sums of `rows` rows. T: Pair, or RowPair where they are the rows.
template <class T>
void add_pairs(const Parts& p, const Operands& o, int r, int rows, const float* weights, Seen seen) {
  constexpr int kColumns = __is_same(T, RowPair) ? 2 : 1;
  const int vectors = p.value_width / kLanes, first = seen.first / 2, last = (seen.last + 1) / 2;
  for (int at = 0, count = 0; at < vectors; at += count) {
    count = vectors_at_once(rows, vectors - at);
    Product product;
    product.a = weights + first, product.segments = 0;
    product.b_stride = p.value_width;
    product.c = p.sum + r * p.value_width + at * kLanes, product.c_stride = p.value_width, product.accumulate = true;
    for (int pair = first; pair < last; ++product.segments) {
      constexpr int kGroup = kTokenGroup / 2;
      const int group = pair / kGroup, end = (group + 1) * kGroup < last ? (group + 1) * kGroup : last;
      const std::int64_t offset = pair % kGroup * product.b_stride + at / kColumns * kLanes;
      auto& segment = product.segment[product.segments];
      segment.b[0] = (const float*)o.v[group] + offset;
      segment.ahead = (const float*)o.v_ahead[group] + offset;
      segment.count = end - pair;
      pair = end;
    }
    if constexpr (__is_same(T, RowPair))
      rows == 2 ? multiply_rows<2, T, false>(product, count) : multiply_rows<1, T, false>(product, count);
    else
      multiply_tile<T, false>(product, rows, count);
  }
}
void add_pairs(const Parts& p, const Operands& o, int r, int rows, const float* weights, Seen seen) {
  o.bfloat16_v ? add_pairs<RowPair>(p, o, r, rows, weights, seen) : add_pairs<Pair>(p, o, r, rows, weights, seen);
}

/// The same of one row without the values of tokens that it does not see.
void add_seen_pairs(const Parts& p, const Operands& o, int r, const float* weights, Seen seen) {
  float* const masked = p.v + kPairs * p.value_width;
  Operands own = o;
  for (int g = 0; g < kChunkGroups; ++g) own.v[g] = own.v_ahead[g] = masked + g * (kTokenGroup / 2) * p.value_width;
  for (int pair = seen.first / 2; pair < (seen.last + 1) / 2; ++pair) {
    const std::uint32_t mask = (2 * pair >= seen.first ? 0xffffu : 0u) | (2 * pair + 1 < seen.last ? 0xffff0000u : 0u);
    for (int d = pair * p.value_width; d < (pair + 1) * p.value_width; d += kLanes)
      store(masked + d, from_bits(bits(load(p.v + d)) & broadcast_int((std::int32_t)mask)));
  }
  add_pairs(p, own, r, 1, weights, seen);
}

// ---- weights ----

/// 2^y within 1e-4 of its size, which is a twentieth of what rounding to bfloat16 loses; of whole y exact, of minus infinity 0.
INGOT_INLINE Vec near_power_of_two(Vec y) {
  const Vec f{_mm512_reduce_ps(y.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};  // y - floor(y)
  Vec p = broadcast(7.706724029949934e-2f);  // of the least relative error with p(0) = 1
  p = fma(p, f, broadcast(2.2764497750173077e-1f));
  p = fma(p, f, broadcast(6.951166307279053e-1f));
  p = fma(p, f, broadcast(1.0f));
  return ldexp_rounded(p, y);  // rounds y down
}

/// Turns the scores of a row, all of its V groups of tokens from the first on, into weights of bfloat16 and adds those to its sums of weights.
template <class Scores, int V>
INGOT_INLINE void put_pairs(float* sums, float* weights, const Vec (&x)[V], Vec maximum) {
  const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  __m512 sum = load(sums).v;
  INGOT_UNROLL for (int g = 0; g < V; g += 2) {
    const Vec a = near_power_of_two(Scores::exponent(x[g] - maximum));
    Vec b = zero();
    if (g + 1 < V) b = near_power_of_two(Scores::exponent(x[g + 1] - maximum));
    const __m512bh pairs = _mm512_cvtne2ps_pbh(b.v, a.v);
    sum = _mm512_dpbf16_ps(sum, pairs, ones);
    store(weights + g / 2 * kTokenGroup, {(__m512)pairs});
  }
  store(sums, {sum});
}

/// R rows from r on that see the whole chunk, with one bias.
template <class Scores, int R>
INGOT_INLINE void weigh_whole_pairs(const AttentionTask& task, const Parts& p, int r, float* scores) {
  Vec x[R][kChunkGroups], maximum[R];
  INGOT_UNROLL for (int i = 0; i < R; ++i) {
    INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g)
      x[i][g] = Scores::score(task, load(scores + i * kChunkTokens + g * kTokenGroup), p.bias + g * kTokenGroup);
  }
  INGOT_UNROLL for (int i = 0; i < R; ++i) {
    Vec best = x[i][0];
    INGOT_UNROLL for (int g = 1; g < kChunkGroups; ++g) best = max(best, x[i][g]);
    maximum[i] = raise_maximum<Scores>(p, r + i, best);
  }
  INGOT_UNROLL for (int i = 0; i < R; ++i) put_pairs<Scores>(p.weight + (r + i) * kTokenGroup, scores + i * kChunkTokens, x[i], maximum[i]);
}

/// A row that sees a part; the other tokens' weights are 0.
template <class Scores>
void weigh_some_pairs(const AttentionTask& task, const Parts& p, int r, float* scores, Seen seen) {
  const Vec nothing = broadcast(-__builtin_inff()), token = load(kIota);
  Vec x[kChunkGroups], best = nothing;
  INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g) {
    x[g] = nothing;
    if (g * kTokenGroup >= seen.last || (g + 1) * kTokenGroup <= seen.first) continue;
    x[g] = Scores::score(task, load(scores + g * kTokenGroup), p.bias + g * kTokenGroup);
    x[g] = select(token < broadcast((float)(seen.first - g * kTokenGroup)), nothing, x[g]);
    x[g] = select(token < broadcast((float)(seen.last - g * kTokenGroup)), x[g], nothing);
    best = max(best, x[g]);
  }
  put_pairs<Scores>(p.weight + r * kTokenGroup, scores, x, raise_maximum<Scores>(p, r, best));
}

// ---- whole tiles ----

/// sum[r][v] += a[r] times b[v], which are `count` pairs. A line at `ahead` is fetched with each.
template <int R, int V>
INGOT_INLINE void add_products(Vec (&sum)[R][V], const float* a, std::int64_t a_stride, const float* const (&b)[V], std::int64_t b_stride, int count,
                               const std::byte* ahead) {
  for (std::int64_t k = 0; k < count; ++k) {
    Vec column[V];
    INGOT_UNROLL for (int v = 0; v < V; ++v) column[v] = load(b[v] + k * b_stride);
    __builtin_prefetch(ahead + k * 64, 0, 3);
    INGOT_UNROLL for (int i = 0; i < R; ++i) {
      const Vec row = broadcast(a[i * a_stride + k]);
      INGOT_UNROLL for (int v = 0; v < V; ++v) sum[i][v] = step<Pair>(row, column[v], sum[i][v]);
    }
  }
}

/// kTileRows rows from r on, whose scores have become weights of the pairs [first, last) of tokens.
struct WeighedTile {
  int r;
  const float* weights;
  int first, last;
};

template <int V>
INGOT_INLINE void add_columns(const Parts& p, const WeighedTile& tile, int at, const std::byte* ahead) {
  const std::int64_t width = p.value_width;
  float* const to = p.sum + tile.r * width + at;
  const float* b[V];
  Vec sum[kTileRows][V];
  INGOT_UNROLL for (int v = 0; v < V; ++v) b[v] = p.v + tile.first * width + at + v * kLanes;
  INGOT_UNROLL for (int i = 0; i < kTileRows; ++i)
    INGOT_UNROLL for (int v = 0; v < V; ++v) sum[i][v] = load(to + i * width + v * kLanes);
  add_products(sum, tile.weights + tile.first, kChunkTokens, b, width, tile.last - tile.first, ahead);
  INGOT_UNROLL for (int i = 0; i < kTileRows; ++i)
    INGOT_UNROLL for (int v = 0; v < V; ++v) store(to + i * width + v * kLanes, sum[i][v]);
}

/// Adds the weighted values of a tile.
void add_tile(const Parts& p, const WeighedTile& tile, const std::byte* ahead) {
  int at = 0;
  for (; at + 4 * kLanes <= p.value_width; at += 4 * kLanes, ahead += kPairs * 64) add_columns<4>(p, tile, at, ahead);
  if (at + 2 * kLanes <= p.value_width) add_columns<2>(p, tile, at, ahead), at += 2 * kLanes;
  if (at < p.value_width) add_columns<1>(p, tile, at, ahead);
}

/// raise_maximum of a tile's rows, whose scores of V groups lie at `scores`.
template <class Scores, int V>
__attribute__((noinline)) void raise_maxima(const Parts& p, int r, const float* scores, float* maximum) {
  for (int i = 0; i < kTileRows; ++i, scores += kChunkTokens) {
    Vec best = load(scores);
    INGOT_UNROLL for (int g = 1; g < V; ++g) best = max(best, load(scores + g * kTokenGroup));
    const float before = p.maximum[r + i], greatest = reduce_max(best);
    if (greatest > before + Scores::kSlack) raise_to<Scores>(p, r + i, greatest);
    maximum[i] = p.maximum[r + i] == -__builtin_inff() ? 0.0f : p.maximum[r + i];
  }
}

/// The weights of a tile for the first V groups of the chunk. seen: what its rows see, which is not looked at where that is all of the chunk.
template <class Scores, int V, bool kWhole>
INGOT_INLINE void weigh_tile(const AttentionTask& task, const Parts& p, const Operands& o, int r, float* weights, const Seen* seen, const std::byte* ahead) {
  const float* k[V];
  Vec x[kTileRows][V];
  const int first = kWhole ? 0 : seen[0].first / kTokenGroup;  // groups before it need not be there
  INGOT_UNROLL for (int g = 0; g < V; ++g) k[g] = (const float*)o.k[g < first ? first : g];
  INGOT_UNROLL for (int i = 0; i < kTileRows; ++i)
    INGOT_UNROLL for (int g = 0; g < V; ++g) x[i][g] = zero();
  add_products(x, p.q + (std::int64_t)r * p.width, p.width, k, kTokenGroup, task.head_dim / 2, ahead);
  const float* maximum = p.maximum + r;
  __mmask16 above = 0;
  INGOT_UNROLL for (int i = 0; i < kTileRows; ++i) {
    INGOT_UNROLL for (int g = 0; g < V; ++g) {
      x[i][g] = Scores::score(task, x[i][g], p.bias + g * kTokenGroup);
      if (!kWhole) x[i][g].v = _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), seen[i].lanes(g), x[i][g].v);
    }
    Vec best = x[i][0];
    INGOT_UNROLL for (int g = 1; g < V; ++g) best = max(best, x[i][g]);
    above = (__mmask16)(above | _mm512_cmp_ps_mask(best.v, broadcast(maximum[i] + Scores::kSlack).v, _CMP_NLT_UQ));
  }
  float raised[kTileRows];
  if (__builtin_expect(above != 0, 0)) {
    INGOT_UNROLL for (int i = 0; i < kTileRows; ++i)
      INGOT_UNROLL for (int g = 0; g < V; ++g) store(weights + i * kChunkTokens + g * kTokenGroup, x[i][g]);
    raise_maxima<Scores, V>(p, r, weights, raised);
    maximum = raised;
    INGOT_UNROLL for (int i = 0; i < kTileRows; ++i)
      INGOT_UNROLL for (int g = 0; g < V; ++g) x[i][g] = load(weights + i * kChunkTokens + g * kTokenGroup);
  }
  float* const sums = p.weight + r * kTokenGroup;
  INGOT_UNROLL for (int i = 0; i < kTileRows; ++i) put_pairs<Scores>(sums + i * kTokenGroup, weights + i * kChunkTokens, x[i], broadcast(maximum[i]));
}

/// Whether rows go by tiles of kTileRows that keep their scores in registers: many rows, with one bias for all. (Few fetch more of what lies ahead
/// with each tile.)
bool in_whole_tiles(const AttentionTask& task) {
  return task.rows > 3 * kTileRows && (task.mask.data == nullptr || same_for_all_rows(task));
}

/// The first `tiles` tiles of the task's rows. Scores leave the registers as weights only. A tile's values are added behind the next one's weights:
/// the processor finds products to do while those wait for one another.
template <class Scores, class After>
void attend_tiles(const AttentionTask& task, const Parts& p, const Operands& o, std::int64_t start, int tiles, const After& after) {
  std::int64_t next = task.position + task.first_row / task.group + 1 - start;
  const std::int64_t end = task.tokens - start;
  int head = (int)(task.first_row % task.group);
  WeighedTile weighed{};  // the tile whose values are not added yet
  for (int tile = 0; tile < tiles; ++tile) {
    const int r = tile * kTileRows;
    Seen seen[kTileRows];
    for (int i = 0; i < kTileRows; ++i) {
      seen[i] = {within_chunk(next - task.window), within_chunk(next < end ? next : end)};
      if (++head == task.group) head = 0, ++next;
    }
    const Seen any{seen[0].first, seen[kTileRows - 1].last}, every{seen[kTileRows - 1].first, seen[0].last};
    for (int i = 0; i < kTileRows; ++i) after(r + i, task.rows);
    if (any.none()) continue;
    const int ahead = tile * kChunkGroups / tiles;
    float* const weights = p.scores + tile % 2 * kTileRows * kChunkTokens;
    const std::byte* const k_ahead = (const std::byte*)o.k_ahead[ahead];
    if (every.whole()) {
      weigh_tile<Scores, 4, true>(task, p, o, r, weights, seen, k_ahead);
    } else {
      switch ((any.last + kTokenGroup - 1) / kTokenGroup) {
        case 1: weigh_tile<Scores, 1, false>(task, p, o, r, weights, seen, k_ahead); break;
        case 2: weigh_tile<Scores, 2, false>(task, p, o, r, weights, seen, k_ahead); break;
        case 3: weigh_tile<Scores, 3, false>(task, p, o, r, weights, seen, k_ahead); break;
        default: weigh_tile<Scores, 4, false>(task, p, o, r, weights, seen, k_ahead); break;
      }
    }
    if (weighed.weights != nullptr) add_tile(p, weighed, (const std::byte*)o.v_ahead[ahead]);
    weighed = {r, weights, any.first / 2, (any.last + 1) / 2};
  }
  if (weighed.weights != nullptr) add_tile(p, weighed, (const std::byte*)o.v_ahead[kChunkGroups - 1]);
}

/// The rows of a tile: their scores become weights, and values are added. finite: see finite_where_needed.
template <class Scores, class After>
void weigh_and_add_pairs(const AttentionTask& task, const Parts& p, const Operands& o, std::int64_t start, int r, int rows, const Seen* seen, bool finite,
                         const After& after) {
  const Seen any{seen[0].first, seen[rows - 1].last}, every{seen[rows - 1].first, seen[0].last};
  const bool own_bias = Scores::kSloped || (task.mask.data != nullptr && !same_for_all_rows(task));
  for (int i = 0; i < rows; ++i) after(r + i, task.rows);
  if (every.whole() && !own_bias) {
    int i = 0;
    for (; i + 2 <= rows; i += 2) weigh_whole_pairs<Scores, 2>(task, p, r + i, p.scores + i * kChunkTokens);
    if (i < rows) weigh_whole_pairs<Scores, 1>(task, p, r + i, p.scores + i * kChunkTokens);
    return add_pairs(p, o, r, rows, p.scores, any);
  }
  for (int i = 0; i < rows; ++i) {
    float* const scores = p.scores + i * kChunkTokens;
    if (seen[i].none()) {
      __builtin_memset((void*)scores, 0, kPairs * sizeof(float));
      continue;
    }
    if constexpr (Scores::kSloped)
      distances_of_row(task, r + i, start, p.bias);
    else if (own_bias)
      bias_of_row(task, r + i, start, p.bias);
    seen[i].whole() ? weigh_whole_pairs<Scores, 1>(task, p, r + i, scores) : weigh_some_pairs<Scores>(task, p, r + i, scores, seen[i]);
    if (!finite) add_seen_pairs(p, o, r + i, scores, seen[i]);
  }
  if (finite) add_pairs(p, o, r, rows, p.scores, any);
}

#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
