// The register tile of both products of attention: c[r][v] (+)= sum over k of a[r][k] * b[k][v], one multiply-add chain per
// output in the order of k, so that a row gets the same bits in a tile of any height and from any width of B.
#pragma once

#include "attention.h"
#include "typed.h"

namespace ingot::INGOT_LEVEL {

/// Two bfloat16 side by side, which are moved as a float is.
struct Pair {
  float bits;
};
INGOT_INLINE Vec load(const Pair* p) { return load((const float*)p); }

namespace {

#if defined(__AVX512F__)
constexpr int kTileRows = 6;  // 6 rows x 4 vectors: 24 of 32 registers
constexpr int tile_vectors(int) { return 4; }
#elif defined(__AVX2__)
constexpr int kTileRows = 6;  // 6 rows x 1 vector of two registers: 12 of 16
constexpr int tile_vectors(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
#else
constexpr int kTileRows = 2;
constexpr int tile_vectors(int) { return 1; }
#endif

static_assert(kTileRows <= kTileRowsMost, "attention_scratch keeps room for the scores of so many rows");

/// One k of a chain, two where B holds pairs.
template <class T>
INGOT_INLINE Vec step(Vec row, Vec column, Vec sum) {
#if defined(__AVX512BF16__)
  if constexpr (__is_same(T, Pair)) return {_mm512_dpbf16_ps(sum.v, (__m512bh)row.v, (__m512bh)column.v)};
#endif
  return fma(row, column, sum);
}

/// How many of the vectors that are left a tile of `rows` rows takes at once: 4, 2 or 1.
int vectors_at_once(int rows, int left) {
  const int most = tile_vectors(rows);
  return left >= 4 && most == 4 ? 4 : left >= 2 && most >= 2 ? 2 : 1;
}

/// k runs through segments, each a piece of B of its own.
struct Product {
  const float* a;
  std::int64_t a_stride;
  int segments;
  struct {
    const void* b[kChunkGroups];  // where each vector's column begins
    std::int64_t count;           // values of k
  } segment[kChunkGroups];
  std::int64_t b_stride;          // between values of k
  float* c;
  std::int64_t c_stride;
  bool accumulate;
};

template <int R, int V, class T>
void multiply(const Product& p) {
  Vec sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[r][v] = p.accumulate ? load(p.c + r * p.c_stride + v * kLanes) : zero();
  const float* a = p.a;
  for (int s = 0; s < p.segments; ++s) {
    const T* b[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) b[v] = (const T*)p.segment[s].b[v];
    const std::int64_t count = p.segment[s].count;
    for (std::int64_t k = 0; k < count; ++k) {
      Vec column[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) column[v] = load(b[v] + k * p.b_stride);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec row = broadcast(a[r * p.a_stride + k]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[r][v] = step<T>(row, column[v], sum[r][v]);
      }
    }
    a += count;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(p.c + r * p.c_stride + v * kLanes, sum[r][v]);
}

template <int R, class T>
void multiply_rows(const Product& p, int vectors) {
  if constexpr (tile_vectors(R) == 4) {
    if (vectors == 4) return multiply<R, 4, T>(p);
  }
  if constexpr (tile_vectors(R) >= 2) {
    if (vectors == 2) return multiply<R, 2, T>(p);
  }
  multiply<R, 1, T>(p);
}

/// vectors: what vectors_at_once gave.
template <class T>
void multiply_tile(const Product& p, int rows, int vectors) {
  if constexpr (kTileRows == 6) {
    switch (rows) {
      case 6: return multiply_rows<6, T>(p, vectors);
      case 5: return multiply_rows<5, T>(p, vectors);
      case 4: return multiply_rows<4, T>(p, vectors);
      case 3: return multiply_rows<3, T>(p, vectors);
      default: break;
    }
  }
  rows == 2 ? multiply_rows<2, T>(p, vectors) : multiply_rows<1, T>(p, vectors);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
