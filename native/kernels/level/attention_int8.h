// Attention over a cache of int8, for one level: what is stored of a key or value is whole numbers up to 127 and one scale.
//
// Where there are dot products of int8 (VNNI), rows of queries and weights become whole numbers of two digits, a byte each, so
// that both products are sums of whole numbers, which are exact in any order: queries have 15 bits and a sign, with a scale a
// row, and weights (times the scales of the values) 16 bits, with a unit a row and chunk (attention_int8_weights.h). A token that a row
// does not see has weight 0 there. AMX tiles make the same sums (attention_int8_tiles.h). Elsewhere K and V of a chunk are widened to
// float32 in scratch, the scores of 16 tokens are multiplied by the scales of the keys, and weights by those of the values.
#pragma once

#include "attention_parts.h"

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define INGOT_ATTENTION_QUADS 1
#include "quads.h"
#else
#define INGOT_ATTENTION_QUADS 0
#endif

namespace ingot::INGOT_LEVEL {

namespace {

/// The scales of a group of tokens lie behind its K or V.
INGOT_INLINE const float* scales_of(const void* group, int width) { return (const float*)((const std::byte*)group + kTokenGroup * width); }

/// Multiplies what a row has for the tokens of a chunk by their scales.
void scale_by(float* scores, const float* const* scale, Seen seen) {
  for (int g = seen.first / kTokenGroup; g * kTokenGroup < seen.last; ++g)
    store(scores + g * kTokenGroup, load(scores + g * kTokenGroup) * load(scale[g]));
}

#if INGOT_ATTENTION_QUADS

/// Whether AMX tiles multiply, which find all high digits of a row side by side, then all low ones. Few rows are faster by VNNI.
[[maybe_unused]] bool int8_in_tiles([[maybe_unused]] const AttentionTask& task) {
#if defined(__AMX_INT8__)
  return task.rows > 6 && task.state_dtype == DType::int8 && padded_width(task.head_dim) % 64 == 0;
#else
  return false;
#endif
}

/// Up to 8 rows have their low digits as 8 rows more of a tile: that takes half the products, each of which takes as long for 8 rows as for 16.
constexpr int kStackedRows = 8;
[[maybe_unused]] bool stacks_digits([[maybe_unused]] const AttentionTask& task) { return int8_in_tiles(task) && task.rows <= kStackedRows; }

/// In the place of a row's floats: its digits, q = 256 * high + low, what the sums of VNNI begin with, and its scale. Of every
/// 16 elements there are first the high digits, then the low ones (but see int8_in_tiles and stacks_digits).
struct QueryRow {
  const std::int8_t* digits;
  float scale;
  std::int32_t first_high, first_low;
};

constexpr float kMostQuery = 127 * 256 + 127;

std::byte* query_row(const Parts& p, int r) { return (std::byte*)(p.q + (std::int64_t)r * p.width); }

QueryRow read_query(const Parts& p, int r) {
  const std::byte* row = query_row(p, r);
  QueryRow q{(const std::int8_t*)row, 0, 0, 0};
  __builtin_memcpy(&q.scale, row + 2 * p.width, 4);
  __builtin_memcpy(&q.first_high, row + 2 * p.width + 4, 4);
  __builtin_memcpy(&q.first_low, row + 2 * p.width + 8, 4);
  return q;
}

INGOT_INLINE Ints four_bytes(const void* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, 4);
  return broadcast_int(word);
}

#if defined(__AVX512VNNI__)
constexpr int kQuadRows = 6;
constexpr int quad_vectors(int rows) { return rows <= 3 ? 4 : 2; }  // 24 of 32 registers hold sums
#else
constexpr int kQuadRows = 3;
constexpr int quad_vectors(int rows) { return rows == 1 ? 2 : 1; }  // 12 of 16
#endif

/// Whole numbers of R rows' scores for the tokens of V groups. (They fit: 512 · 127 · 32,639 is below 2^31.)
template <int R, int V>
void score_quads_tile(const Parts& p, const Operands& o, int r, int group, float* scores) {
  QueryRow q[R];
  Ints high[R][V], low[R][V];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    q[i] = read_query(p, r + i);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) high[i][v] = broadcast_int(q[i].first_high), low[i][v] = broadcast_int(q[i].first_low);
  }
  for (int from = 0; from < p.width; from += kLanes) {
#pragma GCC unroll 4
    for (int k = 0; k < kLanes; k += 4) {
      Ints key[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        key[v] = load_quads((const std::byte*)o.k[group + v] + (from + k) * kTokenGroup);
        __builtin_prefetch((const std::byte*)o.k_ahead[group + v] + (from + k) * kTokenGroup, 0, 3);
      }
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        const Ints x = four_bytes(q[i].digits + 2 * from + k), y = four_bytes(q[i].digits + 2 * from + kLanes + k);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) add_dots(high[i][v], key[v], x), add_dots(low[i][v], key[v], y);
      }
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    __builtin_prefetch(scales_of(o.k_ahead[group + v], p.width), 0, 3);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
      store(scores + i * kChunkTokens + v * kTokenGroup, from_bits(shift_left<8>(high[i][v]) + low[i][v]));
  }
}

/// In the place of a row's scores: the high digits of its weights' whole numbers, 256 * high + low, then the low ones.
struct WeightRow {
  const std::uint8_t *high, *low;
};

WeightRow read_weights(const float* scores) { return {(const std::uint8_t*)scores, (const std::uint8_t*)scores + kChunkTokens}; }

void no_weights(float* scores) { __builtin_memset((void*)scores, 0, 2 * kChunkTokens); }

/// Where the digits of four tokens lie among those of a chunk: as bytes come out when vectors are narrowed.
INGOT_INLINE int place_of_quad(int quad) {
#if defined(__AVX512BW__)
  return quad % 4 * 4 + quad / 4;
#else
  return quad;
#endif
}

/// Adds the weighted values of the quads of tokens [first, last) to V vectors, from vector `at` on, of the sums of R rows.
template <int R, int V>
void add_quads_tile(const Parts& p, const Operands& o, int r, const float* scores, int first, int last, int at) {
  WeightRow w[R];
  Ints high[R][V], low[R][V];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    w[i] = read_weights(scores + i * kChunkTokens);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) high[i][v] = low[i][v] = broadcast_int(0);
  }
  for (int quad = first; quad < last; ++quad) {
    const std::int64_t offset = (std::int64_t)(quad % 4) * p.value_width * 4 + at * 4 * kLanes, place = 4 * place_of_quad(quad);
    const std::byte* const from = (const std::byte*)o.v[quad / 4] + offset;
    const std::byte* const later = (const std::byte*)o.v_ahead[quad / 4] + offset;
    Ints value[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      value[v] = bits(load((const float*)(from + v * 4 * kLanes)));
      __builtin_prefetch(later + v * 4 * kLanes, 0, 3);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Ints x = four_bytes(w[i].high + place), y = four_bytes(w[i].low + place);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) add_dots(high[i][v], x, value[v]), add_dots(low[i][v], y, value[v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    float* sum = p.sum + (std::int64_t)(r + i) * p.value_width + at * kLanes;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      store(sum + v * kLanes, fma(to_float(shift_left<8>(high[i][v]) + low[i][v]), broadcast(p.units[r + i]), load(sum + v * kLanes)));
  }
}

template <int N>
struct Count {
  static constexpr int value = N;
};

/// Calls f(rows, vectors, first row, first vector) for each tile; how many rows and vectors it has are constants (Count).
template <class F>
INGOT_INLINE void in_quad_tiles(int rows, int vectors, const F& f) {
  const auto across = [&](auto height, int row) {
    constexpr int kRows = decltype(height)::value, kMost = quad_vectors(kRows);
    for (int at = 0; at < vectors;) {
      const int left = vectors - at;
      if (kMost >= 4 && left >= 4)
        f(height, Count<kMost >= 4 ? 4 : 1>{}, row, at), at += 4;
      else if (kMost >= 2 && left >= 2)
        f(height, Count<kMost >= 2 ? 2 : 1>{}, row, at), at += 2;
      else
        f(height, Count<1>{}, row, at), at += 1;
    }
  };
  for (int row = 0; row < rows;) {
    const int height = rows - row < kQuadRows ? rows - row : kQuadRows;
    switch (height) {
      case 1: across(Count<1>{}, row); break;
      case 2: across(Count<2>{}, row); break;
      case 3: across(Count<3>{}, row); break;
      case 4: across(Count<kQuadRows >= 4 ? 4 : 1>{}, row); break;
      case 5: across(Count<kQuadRows >= 5 ? 5 : 1>{}, row); break;
      default: across(Count<kQuadRows >= 6 ? 6 : 1>{}, row); break;
    }
    row += height;
  }
}

void score_quads(const Parts& p, const Operands& o, int r, int rows, Seen any) {
  const int first = any.first / kTokenGroup, last = (any.last + kTokenGroup - 1) / kTokenGroup;
  in_quad_tiles(rows, last - first, [&](auto height, auto width, int row, int at) {
    const int group = first + at;
    score_quads_tile<height.value, width.value>(p, o, r + row, group, p.scores + row * kChunkTokens + group * kTokenGroup);
  });
}

void add_quads(const Parts& p, const Operands& o, int r, int rows, Seen any) {
  const int first = any.first / 4, last = (any.last + 3) / 4;
  for (int g = first / 4; 4 * g < last; ++g) __builtin_prefetch(scales_of(o.v_ahead[g], p.value_width), 0, 3);
  in_quad_tiles(rows, p.value_width / kLanes, [&](auto height, auto width, int row, int at) {
    add_quads_tile<height.value, width.value>(p, o, r + row, p.scores + row * kChunkTokens, first, last, at);
  });
}

#else

inline void score_quads(const Parts&, const Operands&, int, int, Seen) {}
inline void no_weights(float*) {}
inline void add_quads(const Parts&, const Operands&, int, int, Seen) {}

#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
