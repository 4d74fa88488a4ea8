// Attention over a cache of int8 by AMX tiles: the sums of whole numbers that attention_int8.h makes by VNNI, so the same bits.
//
// Rows of queries are A twice, their high and their low digits, 16 tokens of the cache's keys are B as they lie there. Digits of weights
// are A over all 64 tokens of a chunk; the values, in fours of tokens, are gathered from the groups once for a chunk and all rows.
#pragma once

#include "attention_int8.h"
#include "attention_tiles.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AMX_BF16__)

/// The values of a chunk as rows of fours, in the order of the weights' digits: [16][value_width][4 tokens], in p.v.
[[maybe_unused]] void gather_value_quads(const Parts& p, const AttentionChunk& chunk) {
  const std::int64_t bytes = (std::int64_t)4 * p.value_width;
  for (int g = 0; g < kChunkGroups; ++g) {
    const bool there = g >= chunk.first_group && g < chunk.last_group;
    for (int quad = 0; quad < 4; ++quad) {
      std::byte* const to = (std::byte*)p.v + place_of_quad(4 * g + quad) * bytes;
      if (!there) {
        __builtin_memset(to, 0, bytes);
        continue;
      }
      const std::byte *const from = (const std::byte*)chunk.v[g] + quad * bytes, *const ahead = (const std::byte*)chunk.v_ahead[g] + quad * bytes;
      for (std::int64_t i = 0; i < bytes; i += 64) {
        _mm512_store_si512(to + i, _mm512_loadu_si512(from + i));
        __builtin_prefetch(ahead + i);
      }
    }
    if (there) __builtin_prefetch((const std::byte*)chunk.v_ahead[g] + 4 * bytes);
  }
}

/// As PairTiles.
struct QuadTiles {
  static int score_pieces(const TileBlock& block) { return block.last_group - block.first_group; }
  static int value_pieces(const TileBlock& block) { return block.value_width / 16; }

#define INGOT_SCORE_DIGITS(c, d)                                                                \
  do {                                                                                          \
    _tile_zero(c);                                                                              \
    if (!block.stacked) _tile_zero(d);                                                          \
    for (int s = 0; s < block.width / 64; ++s) {                                                \
      INGOT_TILE_LOAD(6, keys + s * kTileBytes, 64);                                            \
      INGOT_TILE_LOAD(4, block.q + s * 64, block.q_bytes);                                      \
      _tile_dpbssd(c, 4, 6);                                                                    \
      if (block.stacked) continue;                                                              \
      INGOT_TILE_LOAD(5, block.q + block.width + s * 64, block.q_bytes);                        \
      _tile_dpbssd(d, 5, 6);                                                                    \
    }                                                                                           \
  } while (false)

#define INGOT_VALUE_DIGITS(c, d)                                                                \
  do {                                                                                          \
    _tile_zero(c);                                                                              \
    INGOT_TILE_LOAD(7, block.values + piece * 64, (std::int64_t)block.value_width * 4);         \
    INGOT_TILE_LOAD(4, weights, kScoreStride);                                                  \
    _tile_dpbusd(c, 4, 7);                                                                      \
    if (block.stacked) break;                                                                   \
    _tile_zero(d);                                                                              \
    INGOT_TILE_LOAD(5, weights + kChunkTokens, kScoreStride);                                   \
    _tile_dpbusd(d, 5, 7);                                                                      \
  } while (false)

#define INGOT_STORE_DIGITS(c, d, high, low, stride)   \
  do {                                                \
    INGOT_TILE_STORE(c, high, stride);                \
    if (!block.stacked) INGOT_TILE_STORE(d, low, stride); \
  } while (false)

  /// The sums of the digits of 16 tokens' scores.
  INGOT_INLINE void begin_score(const TileBlock& block, int piece, int turn) {
    const int group = block.first_group + piece;
    const std::byte* const keys = (const std::byte*)block.k[group];
    if (block.k_ahead != nullptr) prefetch((const std::byte*)block.k_ahead[group], kTokenGroup * (block.width + 4));
    if (turn == 0) INGOT_SCORE_DIGITS(0, 1);
    else INGOT_SCORE_DIGITS(2, 3);
  }
  INGOT_INLINE void end_score(const TileBlock& block, int piece, int turn) {
    const int at = (block.first_group + piece) * kTokenGroup;
    if (turn == 0) INGOT_STORE_DIGITS(0, 1, block.scores + at, block.lows + at, kScoreStride);
    else INGOT_STORE_DIGITS(2, 3, block.scores + at, block.lows + at, kScoreStride);
  }

  /// Adds the weighted values to 16 columns.
  INGOT_INLINE void begin_value(const TileBlock& block, int piece, int turn) {
    const std::byte* const weights = (const std::byte*)block.scores;
    if (turn == 0) INGOT_VALUE_DIGITS(0, 1);
    else INGOT_VALUE_DIGITS(2, 3);
  }
  INGOT_INLINE void end_value(const TileBlock& block, int piece, int turn) {
    alignas(64) float high[kBlockRows * kLanes], other[kBlockRows * kLanes];
    float* const low = block.stacked ? high + kStackedRows * kLanes : other;
    if (turn == 0) INGOT_STORE_DIGITS(0, 1, high, low, 64);
    else INGOT_STORE_DIGITS(2, 3, high, low, 64);
    float* sum = block.sum + piece * kLanes;
    for (int r = 0; r < block.rows; ++r, sum += block.value_width) {
      const Ints digits = shift_left<8>(bits(load(high + r * kLanes))) + bits(load(low + r * kLanes));
      store(sum, fma(to_float(digits), broadcast(block.units[r]), load(sum)));
    }
  }

  /// A row's scores for a group.
  INGOT_INLINE Vec score(const TileBlock& block, int row, int group) {
    const int at = row * kChunkTokens + group * kTokenGroup;
    return to_float(shift_left<8>(bits(load(block.scores + at))) + bits(load(block.lows + at)));
  }

  static bool finite_values(const AttentionTask&, const Parts&) { return true; }  // those that a row does not see have weight 0
};

#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
