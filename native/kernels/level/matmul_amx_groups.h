// Blocks of weights of 4 bits by tiles, for many rows: the sums of each group leave the tiles, and are added times the group's scale.
//
// That takes as long as the products do, so it lies between them: while a tile multiplies a group, that of two groups before is stored, and vectors
// add the sums of four before. (What is read soon after its tile was stored waits until the store is past, and so does all that follows.) The 16
// rows by 16 outputs of a tile are summed up in registers for a whole block of k.
#pragma once

#include "matmul_amx_tiles.h"
#include "matmul_blocks.h"
#include "tiles.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr int kTileSums = 16 * kLanes;

/// Adds the stored sums of a group of R rows times its scales.
template <class T, int R>
INGOT_INLINE void add_group_sums(const float* sums, const std::byte* scales, int scales_step, Vec (&to)[R]) {
  Vec scale[1];
  load_scales(scales, scales_step, 0, scale);
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    const Vec sum = load(sums + r * kLanes);
    to[r] = fma(__is_same(T, bfloat16) ? sum : to_float(bits(sum)), scale[0], to[r]);
  }
}

/// A tile of rows of x by half a panel: 16 outputs.
struct GroupTile {
  const std::byte *x, *w, *scales;
  float* to;
};

template <int R>
INGOT_INLINE void load_tile(const BlockProduct& p, const GroupTile& tile, Vec (&sums)[R]) {
  INGOT_UNROLL for (int r = 0; r < R; ++r) sums[r] = p.first ? zero() : load(tile.to + r * p.stride);
}

template <int R>
INGOT_INLINE void store_tile(const BlockProduct& p, const GroupTile& tile, const Vec (&sums)[R]) {
  INGOT_UNROLL for (int r = 0; r < R; ++r) store(tile.to + r * p.stride, sums[r]);
}

/// Products of a step of `Bytes` of a row, by the tiles c += a b.
#define INGOT_GROUP_STEP(c, a, b)                       \
  do {                                                  \
    INGOT_TILE_LOAD(a, tile.x + at * Bytes, kXStride);  \
    INGOT_TILE_LOAD(b, tile.w + at * Bytes * 32, 128);  \
    INGOT_ADD_PRODUCT(c, a, b);                         \
    ++at;                                               \
  } while (false)

/// Begins a group by the tile c, stores the one two before, which is in the tile `before`, and adds the one four before.
#define INGOT_NEXT_GROUP(c, before, a, b)                                    \
  do {                                                                       \
    _tile_zero(c);                                                           \
    INGOT_UNROLL for (int s = 0; s < Steps; ++s) INGOT_GROUP_STEP(c, a, b);  \
    INGOT_TILE_STORE(before, stored[before], 64);                            \
    written(stored);                                                         \
    add_group_sums<T>(stored[c], scales, p.scales_step, sums);               \
    scales += p.scales_step;                                                 \
  } while (false)

/// Whether a block's groups are whole, and four or a multiple.
INGOT_INLINE bool suits_groups(const BlockProduct& p) { return p.k % (4 * p.group) == 0; }

/// All rows of such a block. A group is Steps steps of Bytes each. R: rows of a tile that may be more than zeros.
template <class T, int Bytes, int Steps, int R>
__attribute__((noinline)) void sum_groups(const BlockProduct& p) {
  const int groups = p.k / p.group;
  alignas(64) float stored[4][kTileSums] = {};
  const int tiles = (p.rows + 15) / 16, half = p.scales_step / 2;
  const std::byte *ahead = p.ahead, *const end = p.ahead + p.k / 8 * kPackedBytes;
  const std::int64_t share = round_up((end - ahead) / (tiles * groups / 2), 64);  // of four groups
  GroupTile tile{p.x, p.w, p.scales, p.accumulators}, last{};
  const std::byte* scales = p.scales;  // of what the first tile adds: nothing
  Vec sums[R];
  INGOT_UNROLL for (int r = 0; r < R; ++r) sums[r] = zero();
  _tile_zero(2);
  _tile_zero(3);
  for (int t = 0; t < 2 * tiles; ++t) {
    for (int g = 0, at = 0; g < groups; g += 4) {
      INGOT_NEXT_GROUP(0, 2, 4, 6);
      INGOT_NEXT_GROUP(1, 3, 5, 7);
      INGOT_NEXT_GROUP(2, 0, 4, 6);
      INGOT_NEXT_GROUP(3, 1, 5, 7);
      if (g == 0) {
        if (t != 0) store_tile(p, last, sums);
        load_tile(p, tile, sums);
        scales = tile.scales;
      }
      for (std::int64_t i = 0; i < share && ahead < end; i += 64, ahead += 64) __builtin_prefetch(ahead);
    }
    last = tile;
    if (t % 2 == 0) tile.w += 64, tile.scales += half, tile.to += kLanes;
    else tile = {tile.x + 16 * kXStride, p.w, p.scales, tile.to + 16 * p.stride - kLanes};
  }
  INGOT_TILE_STORE(2, stored[2], 64);
  INGOT_TILE_STORE(3, stored[3], 64);
  written(stored);
  INGOT_UNROLL for (int i = 0; i < 4; ++i) add_group_sums<T>(stored[i], scales + i * p.scales_step, p.scales_step, sums);
  store_tile(p, last, sums);
}

template <class T, int Bytes, int Steps>
void multiply_groups(const BlockProduct& p) {
  p.rows > 8 ? sum_groups<T, Bytes, Steps, 16>(p) : sum_groups<T, Bytes, Steps, 8>(p);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
