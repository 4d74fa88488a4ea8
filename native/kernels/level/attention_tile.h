// The register tile of both products of attention: c[r][v] (+)= sum over k of a[r][k] * b[k][v], one multiply-add chain
// per output in the order of k. So a row gets the same bits in a tile of any height and from any width of B.
#pragma once

#include "attention.h"
#include "typed.h"

namespace ingot::INGOT_LEVEL {

/// Two bfloat16 side by side, which are moved as a float is. What B holds decides how it is multiplied:
struct Pair {  // two values of k, multiplied at once
  float bits;
};
struct KeyPair {  // two values of k, one after the other
  float bits;
};
struct ValuePair {  // two columns: every 32 columns of C are the first ones of all pairs, then the second ones
  float bits;
};
struct RowPair {  // of rows of values: two columns; a step is the pairs of two rows, which are half a stride apart
  float bits;
};
struct First {  // the first ones of such columns
  float bits;
};
struct Second {
  float bits;
};
INGOT_INLINE Vec load(const Pair* p) { return load((const float*)p); }
INGOT_INLINE Vec load(const First* p) { return from_bits(shift_left<16>(bits(load((const float*)p)))); }
INGOT_INLINE Vec load(const Second* p) { return from_bits(bits(load((const float*)p)) & broadcast_int(-65536)); }

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

static_assert(kTileRows <= kScoreRows, "AttentionScratch keeps room for the scores of so many rows");

/// One k of a chain, two where they are multiplied at once.
template <class T>
INGOT_INLINE Vec step(Vec row, Vec column, Vec sum) {
#if defined(__AVX512BF16__)
  if constexpr (__is_same(T, Pair) || __is_same(T, RowPair)) return {_mm512_dpbf16_ps(sum.v, (__m512bh)row.v, (__m512bh)column.v)};
#endif
  return fma(row, column, sum);
}

/// How many of the vectors that are left a tile of `rows` rows takes at once: 4, 2 or 1.
int vectors_at_once(int rows, int left) {
  const int most = tile_vectors(rows);
  return left >= 4 && most == 4 ? 4 : left >= 2 && most >= 2 ? 2 : 1;
}

/// k runs through segments, each a piece of B of its own. B is keys, [k][16] for each vector, or values, rows of vectors.
struct Product {
  const float* a;
  std::int64_t a_stride;
  int segments;
  struct {
    const void* b[kChunkGroups];  // where each vector of keys begins; of values: the first
    const void* ahead;            // fetched on the way, as many bytes as are read
    std::int64_t count;           // values of k
  } segment[kChunkGroups];
  std::int64_t b_stride;          // between values of k, of values
  float* c;
  std::int64_t c_stride;
  bool accumulate;
};

#if defined(__AVX512BF16__)

/// The elements of x and y side by side, of the first 16 and of the last 16.
INGOT_INLINE __m512i pair_first(__m512i x, __m512i y) {
  alignas(64) static const std::uint16_t kOrder[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                       8,  40, 9,  41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  return _mm512_permutex2var_epi16(x, _mm512_load_si512(kOrder), y);
}
INGOT_INLINE __m512i pair_last(__m512i x, __m512i y) {
  alignas(64) static const std::uint16_t kOrder[32] = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                                       24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  return _mm512_permutex2var_epi16(x, _mm512_load_si512(kOrder), y);
}

#endif

/// Vector v of a row of B.
template <class T>
INGOT_INLINE Vec column_of(const T* p, [[maybe_unused]] int v, [[maybe_unused]] std::int64_t stride) {
#if defined(__AVX512BF16__)
  if constexpr (__is_same(T, RowPair)) {
    const __m512i x = _mm512_loadu_si512(p), y = _mm512_loadu_si512(p + stride / 2);
    return from_bits({v % 2 == 0 ? pair_first(x, y) : pair_last(x, y)});
  } else
#endif
  if constexpr (__is_same(T, ValuePair))
    return v % 2 == 0 ? load((const First*)p) : load((const Second*)p);
  else if constexpr (__is_same(T, KeyPair))
    return load((const Second*)p);
  else
    return load(p);
}

template <int R, int V, class T, bool kKeys>
void multiply(const Product& p) {
  constexpr int kStep = __is_same(T, KeyPair) ? 2 : 1, kColumns = __is_same(T, ValuePair) || __is_same(T, RowPair) ? 2 : 1;
  constexpr int kFetched = __is_same(T, float) && R >= 4 ? 2 : kColumns;  // every other line: the hardware finds those between
  Vec sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[r][v] = p.accumulate ? load(p.c + r * p.c_stride + v * kLanes) : zero();
  const float* a = p.a;
  const std::int64_t a_stride = kKeys ? p.a_stride : kChunkTokens, b_stride = kKeys ? kTokenGroup : p.b_stride;
  for (int s = 0; s < p.segments; ++s) {
    const T *b[V], *ahead = (const T*)p.segment[s].ahead;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) b[v] = kKeys ? (const T*)p.segment[s].b[v] : (const T*)p.segment[s].b[0] + v / kColumns * kLanes;
    const std::int64_t count = p.segment[s].count, ahead_stride = kKeys ? V * kTokenGroup : b_stride;
    for (std::int64_t k = 0; k < count; ++k, a += kStep, ahead += ahead_stride) {
      if constexpr (kStep == 2) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v)
            sum[r][v] = fma(broadcast(a[r * a_stride]), load((const First*)(b[v] + k * b_stride)), sum[r][v]);
      }
      Vec column[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        column[v] = column_of(b[v] + k * b_stride, v, b_stride);
        if (__is_same(T, RowPair) && v % 2 == 1) __builtin_prefetch(ahead + v / 2 * kLanes + b_stride / 2, 0, 3);
        if (v % kFetched == 0) __builtin_prefetch(ahead + v / kColumns * kLanes, 0, 3);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec row = broadcast(a[r * a_stride + kStep - 1]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[r][v] = step<T>(row, column[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(p.c + r * p.c_stride + v * kLanes, sum[r][v]);
}

template <int R, class T, bool kKeys>
void multiply_rows(const Product& p, int vectors) {
  if constexpr (tile_vectors(R) == 4) {
    if (vectors == 4) return multiply<R, 4, T, kKeys>(p);
  }
  if constexpr (tile_vectors(R) >= 2) {
    if (vectors == 2) return multiply<R, 2, T, kKeys>(p);
  }
  multiply<R, 1, T, kKeys>(p);
}

/// vectors: what vectors_at_once gave.
template <class T, bool kKeys>
void multiply_tile(const Product& p, int rows, int vectors) {
  if constexpr (kTileRows == 6) {
    switch (rows) {
      case 6: return multiply_rows<6, T, kKeys>(p, vectors);
      case 5: return multiply_rows<5, T, kKeys>(p, vectors);
      case 4: return multiply_rows<4, T, kKeys>(p, vectors);
      case 3: return multiply_rows<3, T, kKeys>(p, vectors);
      default: break;
    }
  }
  rows == 2 ? multiply_rows<2, T, kKeys>(p, vectors) : multiply_rows<1, T, kKeys>(p, vectors);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
