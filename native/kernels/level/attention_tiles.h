// Attention of bfloat16 queries, keys and values by AMX tiles. The softmax stays in float32 vectors (attention_weights.h).
//
// Scores: rows of queries are A, 16 tokens of the cache's keys, in pairs along head_dim, are B as they lie there. Sums: weights are A, in
// two parts of bfloat16 each (16 bits together, so that they are nearly as exact as float32), values B, in pairs of tokens 16 apart; they
// are put into that order once for a chunk and all rows. The columns of sums come out in another order within 32, which finish() undoes.
//
// A row has the same bits in any company: every chunk's 64 tokens are added in one order, and those that the row does not see have weight
// 0. 0 times a value is 0 unless that is infinite or NaN: where a row does not see all of a chunk whose values are not all finite, its
// products are made alone, from values that it sees. Tiles take denormals for zeros, so sums never hold any; a zero has no sign in the end.
#pragma once

#include "attention_parts.h"

#if defined(__AMX_BF16__)
#include "tiles.h"
#endif

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AMX_BF16__)

constexpr int kBlockRows = 16;             // rows of a tile
static_assert(kScoreRows >= 5 * kBlockRows);
constexpr int kTokensOfStep = 32;          // of a product of weights and values
constexpr int kSteps = kChunkTokens / kTokensOfStep;
constexpr std::int64_t kTileBytes = 16 * 64;
constexpr std::int64_t kScoreStride = kChunkTokens * 4;  // bytes from row to row, of scores and of weights

/// What a block of up to 16 rows multiplies. Its products are cut into pieces, which run between the rows of another block's softmax.
struct TileBlock {
  int rows;                    // 0: nothing is seen
  const std::byte* q;          // of the first row
  std::int64_t q_bytes;        // from row to row
  int width, value_width;
  const void* const* k;        // of each group
  const void* const* k_ahead;  // or null: nothing is fetched
  int first_group, last_group;
  float* scores;               // then weights, in the same place
  float* lows;                 // of int8: the scores of low digits
  bool stacked;                // of int8: rows of low digits are rows of the same tiles
  const std::byte* values;
  float* sum;
  const float* units;          // of int8: of the rows' weights
};

/// Tiles of a block of the task's rows. A task's chunks find them set up: that takes as long as a fifth of a chunk of few rows.
void begin_tiles(const AttentionTask& task, bool stacked) {
  const int rows = task.rows < kBlockRows && !stacked ? task.rows : kBlockRows;
  configure(rows, rows);
}

/// Where a chunk's values come from: of each group of 16 tokens the first `count`, rows `stride` elements apart.
struct ValueRows {
  const bfloat16* from[kChunkGroups] = {};
  const bfloat16* ahead[kChunkGroups] = {};  // fetched on the way
  int count[kChunkGroups];                 // 0: there is none
  std::int64_t stride;
};

/// 16 pairs of tokens, of which the first x_count and y_count are there.
INGOT_INLINE void pack_value_step(const bfloat16* x, const bfloat16* y, const bfloat16* x_ahead, const bfloat16* y_ahead, std::int64_t stride, int columns,
                                  int x_count, int y_count, std::byte* to) {
  for (int i = 0; i < 16; ++i, to += 64) {
    const bool x_there = i < x_count, y_there = i < y_count;
    std::byte* tile = to;
    for (int d = 0; d < columns; d += 32, tile += 2 * kTileBytes) {
      const __m512i a = x_there ? _mm512_loadu_si512(x + d) : _mm512_setzero_si512();
      const __m512i b = y_there ? _mm512_loadu_si512(y + d) : _mm512_setzero_si512();
      if (x_there) __builtin_prefetch(x_ahead + d);
      if (y_there) __builtin_prefetch(y_ahead + d);
      _mm512_store_si512(tile, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(tile + kTileBytes, _mm512_unpackhi_epi16(a, b));
    }
    if (x_there) x += stride, x_ahead += stride;
    if (y_there) y += stride, y_ahead += stride;
  }
}

/// The values of a chunk as B tiles: [step][columns / 16][16][16][2], in p.v. Of every 32 columns the first tile has 0-3, 8-11, 16-19 and
/// 24-27, the second one the others. Pairs: tokens i and i + 16.
void pack_value_tiles(const AttentionTask& task, const Parts& p, const ValueRows& rows) {
  std::byte* to = (std::byte*)p.v;
  const int columns = task.value_dim;
  for (int step = 0; step < kSteps; ++step, to += columns / 16 * kTileBytes) {
    const int x = 2 * step, y = x + 1;
    if (rows.count[x] == 16 && rows.count[y] == 16 && columns == 64)
      pack_value_step(rows.from[x], rows.from[y], rows.ahead[x], rows.ahead[y], rows.stride, 64, 16, 16, to);
    else if (rows.count[x] == 16 && rows.count[y] == 16)
      pack_value_step(rows.from[x], rows.from[y], rows.ahead[x], rows.ahead[y], rows.stride, columns, 16, 16, to);
    else
      pack_value_step(rows.from[x], rows.from[y], rows.ahead[x], rows.ahead[y], rows.stride, columns, rows.count[x], rows.count[y], to);
  }
}

/// The tiles of values with zeros for tokens that are not seen.
void mask_value_tiles(const AttentionTask& task, const std::byte* from, Seen seen, std::byte* to) {
  const int tiles = task.value_dim / 16;
  for (int step = 0; step < kSteps; ++step)
    for (int tile = 0; tile < tiles; ++tile)
      for (int i = 0; i < 16; ++i, from += 64, to += 64) {
        const int low = step * kTokensOfStep + i, high = low + 16;
        const std::uint32_t mask = (low >= seen.first && low < seen.last ? 0xffffu : 0u) | (high >= seen.first && high < seen.last ? 0xffff0000u : 0u);
        _mm512_store_si512(to, _mm512_and_si512(_mm512_load_si512(from), _mm512_set1_epi32((int)mask)));
      }
}

/// Products of a block are cut into pieces. One is begun by the accumulators of its turn, 0 or 1, and ended, stored, once the next one is
/// begun: a tile that is stored at once would wait for its products, and the next ones for it.
struct PairTiles {
  static int score_pieces(const TileBlock& block) { return block.last_group - block.first_group; }
  static int value_pieces(const TileBlock& block) { return block.value_width / 16; }

#define INGOT_SCORE_PIECE(c, a, b)                                                \
  do {                                                                            \
    _tile_zero(c);                                                                \
    for (int s = 0; s < block.width / 32; ++s) {                                  \
      if (ahead != nullptr) prefetch(ahead + s * kTileBytes, (int)kTileBytes);    \
      INGOT_TILE_LOAD(a, block.q + s * 64, block.q_bytes);                        \
      INGOT_TILE_LOAD(b, keys + s * kTileBytes, 64);                              \
      _tile_dpbf16ps(c, a, b);                                                    \
    }                                                                             \
  } while (false)

#define INGOT_VALUE_PIECE(c, a, b)                                                          \
  do {                                                                                      \
    INGOT_TILE_LOAD(c, sum, bytes);                                                         \
    for (int s = 0; s < kSteps; ++s) {                                                      \
      INGOT_TILE_LOAD(b, values + s * (block.value_width / 16) * kTileBytes, 64);           \
      INGOT_TILE_LOAD(a, weights + s * 64, kScoreStride);                                   \
      _tile_dpbf16ps(c, a, b);                                                              \
      INGOT_TILE_LOAD(a, weights + kChunkTokens * 2 + s * 64, kScoreStride);                \
      _tile_dpbf16ps(c, a, b);                                                              \
    }                                                                                       \
  } while (false)

  /// The scores of 16 tokens.
  INGOT_INLINE void begin_score(const TileBlock& block, int piece, int turn) {
    const int group = block.first_group + piece;
    const std::byte* const keys = (const std::byte*)block.k[group];
    const std::byte* const ahead = block.k_ahead == nullptr ? nullptr : (const std::byte*)block.k_ahead[group];
    if (turn == 0) INGOT_SCORE_PIECE(0, 4, 6);
    else INGOT_SCORE_PIECE(1, 5, 7);
  }
  INGOT_INLINE void end_score(const TileBlock& block, int piece, int turn) {
    float* const to = block.scores + (block.first_group + piece) * kTokenGroup;
    if (turn == 0) INGOT_TILE_STORE(0, to, kScoreStride);
    else INGOT_TILE_STORE(1, to, kScoreStride);
  }

  /// Adds the weighted values to 16 columns.
  INGOT_INLINE void begin_value(const TileBlock& block, int piece, int turn) {
    const std::int64_t bytes = (std::int64_t)block.value_width * 4;
    const float* const sum = block.sum + piece * 16;
    const std::byte* const values = block.values + piece * kTileBytes;
    const std::byte* const weights = (const std::byte*)block.scores;
    if (turn == 0) INGOT_VALUE_PIECE(0, 4, 6);
    else INGOT_VALUE_PIECE(1, 5, 7);
  }
  INGOT_INLINE void end_value(const TileBlock& block, int piece, int turn) {
    float* const to = block.sum + piece * 16;
    if (turn == 0) INGOT_TILE_STORE(0, to, (std::int64_t)block.value_width * 4);
    else INGOT_TILE_STORE(1, to, (std::int64_t)block.value_width * 4);
  }

  INGOT_INLINE void no_weights(float* weights) {
    for (int g = 0; g < kChunkGroups; ++g) store(weights + g * kTokenGroup, zero());
  }

  /// In the place of a row's scores: the upper halves of its weights, then the upper halves of what is left of them. Pairs: tokens i
  /// and i + 16.
  INGOT_INLINE void put_weights(float* place, const Vec (&weights)[kChunkGroups]) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    std::byte* const to = (std::byte*)place;
    INGOT_UNROLL for (int s = 0; s < kSteps; ++s) {
      const Vec x = weights[2 * s], y = weights[2 * s + 1];
      const __m512i x_high = _mm512_and_si512(bits(x).v, upper), y_high = _mm512_and_si512(bits(y).v, upper);
      const Ints x_low = bits(x - from_bits({x_high})), y_low = bits(y - from_bits({y_high}));
      _mm512_store_si512(to + s * 64, _mm512_or_si512(_mm512_srli_epi32(bits(x).v, 16), y_high));
      _mm512_store_si512(to + kChunkTokens * 2 + s * 64, _mm512_or_si512(_mm512_srli_epi32(x_low.v, 16), _mm512_and_si512(y_low.v, upper)));
    }
  }
  INGOT_INLINE void finish_weights(float* weights, Seen seen) {
    Vec all[kChunkGroups];
    INGOT_UNROLL for (int g = 0; g < kChunkGroups; ++g)
      all[g] = (g + 1) * kTokenGroup <= seen.first || g * kTokenGroup >= seen.last ? zero() : load(weights + g * kTokenGroup);
    put_weights(weights, all);
  }

  static bool finite_values(const AttentionTask& task, const Parts& p) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 faults = 0;
    const std::int64_t bytes = kSteps * (task.value_dim / 16) * kTileBytes;
    for (std::int64_t i = 0; i < bytes; i += 64)
      faults |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_load_si512((const std::byte*)p.v + i), exponent), exponent);
    return faults == 0;
  }
};

#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
