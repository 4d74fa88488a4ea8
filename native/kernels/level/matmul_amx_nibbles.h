// Rows of int8 against weights of 4 bits at the level amx: the sums of each group are whole numbers, exact by tiles as by VNNI, and are
// added times the group's scale in float32, group after group. So the bits are those of every other level (nibbles.h).
//
// From kNibbleRows rows on a block of weights is unpacked once for all rows, into tiles of int8. The sums of two groups lie in L1
// when they are scaled, which vectors do while the tiles multiply the next ones. Fewer rows go by VNNI.
#pragma once

#include "matmul_amx_groups.h"
#include "matmul_blocks.h"
#include "nibbles.h"
#include "tiles.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr int kNibbleRows = 4;

/// The sums of R rows and C vectors of outputs, two a panel, over a block of words.
template <int R, int C>
__attribute__((noinline)) void sum_nibbles(const BlockProduct& p) {
  constexpr int kAhead = 8192 / C;
  const std::byte *w = p.w, *x = p.x, *starts = p.x + kRowSum, *scales = p.scales;
  bool first = p.first;
  for (int k = 0; k < p.k; scales += p.scales_step, starts += 4, first = false) {
    Ints sums[R][C];
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Ints start = broadcast_int(*(const std::int32_t*)(starts + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) sums[r][c] = start;
    }
    for (const int end = k + p.group < p.k ? k + p.group : p.k; k < end; k += 8, w += kPackedBytes, x += 8) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) __builtin_prefetch(w + kAhead + c / 2 * p.w_apart + c % 2 * 64);
      INGOT_UNROLL for (int c = 0; c < C; ++c) {
        const Ints words = words_at(w + c / 2 * p.w_apart, c % 2 * kLanes), even = bytes_of_nibbles<0>(words), odd = bytes_of_nibbles<1>(words);
        INGOT_UNROLL for (int r = 0; r < R; ++r) {
          add_bytes(sums[r][c], even, broadcast_int(*(const std::int32_t*)(x + r * kXStride)));
          add_bytes(sums[r][c], odd, broadcast_int(*(const std::int32_t*)(x + r * kXStride + 4)));
        }
      }
    }
    Vec scale[C];
    take_scales(p, scales, scale);
    INGOT_UNROLL for (int c = 0; c < C; ++c) {
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        float* const sum = sum_at(p, r, c);
        store(sum, fma(to_float(sums[r][c]), scale[c], first ? zero() : load(sum)));
      }
    }
  }
}

constexpr int kGroupSums = 16 * kPanel;  // whole numbers of a group and a tile of rows, [16][kPanel]

/// A tile of rows whose sums of Groups groups lie in memory: what their scaled sum is added to, and where that goes.
struct ScaledSums {
  const std::int32_t* sums;
  const std::byte* scales;
  int scales_step;
  const float* from;
  float* to;
  std::int64_t from_stride, to_stride;
};

/// `count` rows from `first` on.
template <int Groups>
INGOT_INLINE void add_groups(const ScaledSums& g, int first, int count) {
  const std::int32_t* sums = g.sums + first * kPanel;
  const float* from = g.from + first * g.from_stride;
  float* to = g.to + first * g.to_stride;
  const std::int64_t from_stride = g.from_stride, to_stride = g.to_stride;
  Vec scale[Groups][2];
  INGOT_UNROLL for (int i = 0; i < Groups; ++i) load_scales(g.scales + i * g.scales_step, g.scales_step, 0, scale[i]);
#pragma GCC unroll 2
  for (; count > 0; --count, sums += kPanel, from += from_stride, to += to_stride) {
    INGOT_UNROLL for (int c = 0; c < 2; ++c) {
      Vec sum = load(from + c * kLanes);
      INGOT_UNROLL for (int i = 0; i < Groups; ++i) sum = fma(to_float(bits(load((const float*)sums + i * kGroupSums + c * kLanes))), scale[i][c], sum);
      store(to + c * kLanes, sum);
    }
  }
}

/// A step of a group: Step values of k of a tile of rows and a panel, by the accumulators c and d.
#define INGOT_NIBBLE_STEP(c, d, a)            \
  do {                                        \
    INGOT_TILE_LOAD(6, w, kPackedBytes);      \
    INGOT_TILE_LOAD(7, w + 64, kPackedBytes); \
    INGOT_TILE_STREAM(a, x, kXStride);        \
    _tile_dpbssd(c, a, 6);                    \
    _tile_dpbssd(d, a, 7);                    \
    x += Step, w += Step / 4 * kPackedBytes;  \
  } while (false)

#define INGOT_STORE_GROUP(c, d, to)                 \
  do {                                              \
    INGOT_TILE_STORE(c, to, kPackedBytes);          \
    INGOT_TILE_STORE(d, (to) + 16, kPackedBytes);   \
    written(to);                                    \
  } while (false)

/// A block by tiles, all rows: a tile of rows after the other, its groups two by two. Two accumulators multiply one group while two hold
/// the group before, which is stored then: a tile that is stored at once would wait for its products, and the next ones for it. Meanwhile
/// vectors add the pair of groups before. Step: values of k that a tile holds; Steps of them are a group.
template <int Step, int Steps>
void multiply_nibbles(const BlockProduct& p) {
  alignas(64) std::int32_t sums[2][2 * kGroupSums];  // of pairs of groups, in turn
  alignas(64) float kept[2][16 * kPanel];            // of a tile of rows, between its pairs
  alignas(64) static constexpr float kZeros[kPanel] = {};
  const int tiles = (p.rows + 15) / 16, groups = (p.k + p.group - 1) / p.group, all = (int)round_up(p.k, 64) / Step;
  const int pairs = all % Steps == 0 ? groups / 2 : (groups - 1) / 2;  // whole ones
  const std::byte *ahead = p.ahead, *const end = p.ahead + p.k / 8 * kPackedBytes;
  const std::int64_t share = round_up((end - ahead) / (tiles * (pairs + 1)), 64);
  ScaledSums waiting{};
  bool waits = false;
  int turn = 0;
  for (int t = 0; t < tiles; ++t) {
    const std::byte *x = p.x + t * 16 * kXStride, *w = p.w;
    float *const own = kept[t % 2], *const to = p.accumulators + t * 16 * p.stride;
    const float* from = p.first ? kZeros : to;
    std::int64_t from_stride = p.first ? 0 : p.stride;
    for (int pair = 0; pair < pairs; ++pair, turn ^= 1) {
      for (std::int64_t i = 0; i < share && ahead < end; i += 64, ahead += 64) __builtin_prefetch(ahead);
      _tile_zero(0);
      _tile_zero(1);
      INGOT_UNROLL for (int s = 0; s < Steps; ++s) INGOT_NIBBLE_STEP(0, 1, 4);
      if (waits) {
        INGOT_STORE_GROUP(2, 3, sums[turn ^ 1] + kGroupSums);
        add_groups<2>(waiting, 0, 8);
      }
      _tile_zero(2);
      _tile_zero(3);
      INGOT_UNROLL for (int s = 0; s < Steps; ++s) INGOT_NIBBLE_STEP(2, 3, 5);
      INGOT_STORE_GROUP(0, 1, sums[turn]);
      if (waits) add_groups<2>(waiting, 8, 8);
      const bool last = 2 * pair + 2 == groups;
      waiting = {sums[turn], p.scales + 2 * pair * p.scales_step, p.scales_step, from, last ? to : own, from_stride, last ? p.stride : kPanel};
      waits = true, from = own, from_stride = kPanel;
    }
    for (int g = 2 * pairs; g < groups; ++g) {  // what is no whole pair
      if (waits) {
        INGOT_STORE_GROUP(2, 3, sums[turn ^ 1] + kGroupSums);
        add_groups<2>(waiting, 0, 16);
        waits = false;
      }
      _tile_zero(0);
      _tile_zero(1);
      for (int s = g * Steps; s < all && s < (g + 1) * Steps; ++s) INGOT_NIBBLE_STEP(0, 1, 4);
      INGOT_STORE_GROUP(0, 1, sums[turn]);
      const bool last = g + 1 == groups;
      add_groups<1>({sums[turn], p.scales + g * p.scales_step, p.scales_step, from, last ? to : own, from_stride, last ? p.stride : kPanel}, 0, 16);
      from = own, from_stride = kPanel;
    }
  }
  if (!waits) return;
  INGOT_STORE_GROUP(2, 3, sums[turn ^ 1] + kGroupSums);
  add_groups<2>(waiting, 0, 16);
}

struct NibbleTiles {
  typedef std::int8_t Source;
  typedef std::int8_t Packed;
  static constexpr Blocking blocking = kTileQuadBlocking;
  static constexpr int k_step = 64, w_depth = 4, w_bytes = kPanel * 4;
  static constexpr bool integers = false, pads_rows = true, ends_rows = false, scales_sums = true;
  static constexpr int unpacks_rows = kNibbleRows;
  static constexpr int panels_at_once(Packing, std::int64_t rows) { return rows == 1 ? 4 : rows <= kNibbleRows ? 2 : 1; }

  /// Each eight values in the order of bytes_of_nibbles.
  INGOT_INLINE void finish_row(const MatmulJob& job, std::byte* row, int depth) {
    if (job.rows <= kNibbleRows) return pack_for_nibbles(row, (int)round_up(depth, 8), job.group);
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    for (int k = 0; k < depth; k += k_step) _mm512_storeu_si512(row + k, _mm512_shuffle_epi8(_mm512_loadu_si512(row + k), order));
  }
  INGOT_INLINE void unpack(const MatmulJob&, std::int64_t, const std::byte* from, std::int64_t, int k, std::byte* panel) {
    const __m512i eight = _mm512_set1_epi8(8);
    for (int row = 0; row < k; row += 8, from += kPackedBytes, panel += 2 * w_bytes)
      for (int column = 0; column < kPanel; column += kLanes) {
        const Ints words = words_at(from, column);
        _mm512_store_si512(panel + column * 4, _mm512_sub_epi8(bytes_of_nibbles<0>(words).v, eight));
        _mm512_store_si512(panel + w_bytes + column * 4, _mm512_sub_epi8(bytes_of_nibbles<1>(words).v, eight));
      }
    __builtin_memset(panel, 0, (round_up(k, k_step) - k) / 4 * w_bytes);
  }
  static void multiply_few(const BlockProduct& p) {
    switch (p.rows) {
      case 1: return by_panels<4>(p, []<int C>(const BlockProduct& part) { sum_nibbles<1, C>(part); });
      case 2: return by_panels<2>(p, []<int C>(const BlockProduct& part) { sum_nibbles<2, C>(part); });
      case 3: return by_panels<2>(p, []<int C>(const BlockProduct& part) { sum_nibbles<3, C>(part); });
      default: return by_panels<2>(p, []<int C>(const BlockProduct& part) { sum_nibbles<4, C>(part); });
    }
  }
  static void multiply(const BlockProduct& p) {
    if (p.packing == Packing::same) {
      written(p.w);
      if (p.group == 128) return multiply_nibbles<64, 2>(p);
      if (suits_groups(p)) return p.group == 32 ? multiply_groups<std::int8_t, 32, 1>(p) : multiply_groups<std::int8_t, 64, 1>(p);
      return p.group == 32 ? multiply_nibbles<32, 1>(p) : multiply_nibbles<64, 1>(p);
    }
    multiply_few(p);
  }
};

void run_nibbles(const MatmulJob& job) {
  const int rows = job.rows < 16 ? (int)job.rows : 16;
  configure(rows, rows, job.group < 64 ? job.group : 64);
  run_job<NibbleTiles>(job);
  _tile_release();
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
