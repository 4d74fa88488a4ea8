// Matrix products of bfloat16 and int8 with packed weights on AMX tiles (a few rows by vectors, matmul_amx_rows.h; rows
// of int8 by weights of 4 bits, matmul_amx_nibbles.h; groups of 32 and 64 of these, matmul_amx_groups.h), and of rows that are read where they
// lie (matmul_amx_tiles.h, matmul_amx_image.h); and small ones of computed bfloat16.
//
// A panel's 32 outputs are two B tiles (row stride 128 bytes), rows of x are A tiles of 16 rows (fewer when the whole
// product has fewer), k goes in steps of 32 (int8: 64). With two tiles of rows: 2 x 2 accumulator tiles. The last step of a k that is no
// multiple of that works on a zero padded copy, since tiles would read past the panel.
#include "matmul_amx_groups.h"
#include "matmul_amx_image.h"
#include "matmul_amx_nibbles.h"
#include "matmul_amx_rows.h"
#include "matmul_blocks.h"
#include "tiles.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// One tile of rows against one panel. The weights are read once: fetched 4 KiB ahead of their use.
template <class T>
INGOT_INLINE void one_tile(const std::byte* x, const std::byte* w, const std::byte* tail, int steps, float* to, std::int64_t stride,
                           bool first) {
  const std::int64_t bytes = stride * 4;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    INGOT_TILE_LOAD(0, to, bytes);
    INGOT_TILE_LOAD(1, to + 16, bytes);
  }
  for (int s = 0; s < steps; ++s) {
    const std::byte* b = tail != nullptr && s + 1 == steps ? tail : w + s * kStepBytes;
    prefetch(w + s * kStepBytes + 4096, kStepBytes);
    INGOT_TILE_LOAD(4, x + s * 64, kXStride);
    INGOT_TILE_LOAD(6, b, 128);
    INGOT_ADD_PRODUCT(0, 4, 6);
    INGOT_TILE_LOAD(7, b + 64, 128);
    INGOT_ADD_PRODUCT(1, 4, 7);
  }
  INGOT_TILE_STORE(0, to, bytes);
  INGOT_TILE_STORE(1, to + 16, bytes);
}

/// Two tiles of rows against one panel that stays in L1; x streams past it.
template <class T>
INGOT_INLINE void two_tiles(const std::byte* x, const std::byte* w, const std::byte* tail, int steps, float* to,
                            std::int64_t stride, bool first, const std::byte* ahead, int advance) {
  const std::int64_t bytes = stride * 4;
  float* below = to + 16 * stride;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    INGOT_TILE_LOAD(0, to, bytes);
    INGOT_TILE_LOAD(1, to + 16, bytes);
    INGOT_TILE_LOAD(2, below, bytes);
    INGOT_TILE_LOAD(3, below + 16, bytes);
  }
  for (int s = 0; s < steps; ++s) {
    const std::byte* b = tail != nullptr && s + 1 == steps ? tail : w + s * kStepBytes;
    prefetch(ahead + s * advance, advance);
    INGOT_TILE_STREAM(4, x + s * 64, kXStride);
    INGOT_TILE_LOAD(6, b, 128);
    INGOT_TILE_LOAD(7, b + 64, 128);
    INGOT_ADD_PRODUCT(0, 4, 6);
    INGOT_TILE_STREAM(5, x + 16 * kXStride + s * 64, kXStride);
    INGOT_ADD_PRODUCT(1, 4, 7);
    INGOT_ADD_PRODUCT(2, 5, 6);
    INGOT_ADD_PRODUCT(3, 5, 7);
  }
  INGOT_TILE_STORE(0, to, bytes);
  INGOT_TILE_STORE(1, to + 16, bytes);
  INGOT_TILE_STORE(2, below, bytes);
  INGOT_TILE_STORE(3, below + 16, bytes);
}

/// Up to Count tiles of rows against one panel of whole numbers: each group's sums are exact but for x, and are added times its
/// scale.
template <int Count>
INGOT_INLINE void tiles_of_groups(const BlockProduct& p, const std::byte* x, const std::byte* tail, int steps, int rows, float* to) {
  constexpr int kBytes = kPanel * 4;
  alignas(64) float sums[2][Count * 16 * kPanel];  // in turn, so that a group's need not wait until those before are read
  const std::byte* scales = p.scales;
  bool first = p.first;
  for (int s = 0, turn = 0; s < steps; scales += p.scales_step, turn ^= 1, first = false) {
    float* const own = sums[turn];
    const int end = s + p.group / 32 < steps ? s + p.group / 32 : steps;
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (Count == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (; s < end; ++s) {
      const std::byte* b = tail != nullptr && s + 1 == steps ? tail : p.w + s * kStepBytes;
      INGOT_TILE_LOAD(4, x + s * 64, kXStride);
      INGOT_TILE_LOAD(6, b, 128);
      _tile_dpbf16ps(0, 4, 6);
      INGOT_TILE_LOAD(7, b + 64, 128);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (Count == 2) {
        INGOT_TILE_LOAD(5, x + 16 * kXStride + s * 64, kXStride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    INGOT_TILE_STORE(0, own, kBytes);
    INGOT_TILE_STORE(1, own + 16, kBytes);
    if constexpr (Count == 2) {
      INGOT_TILE_STORE(2, own + 16 * kPanel, kBytes);
      INGOT_TILE_STORE(3, own + 16 * kPanel + 16, kBytes);
    }
    written(own);
    Vec scale[2];
    take_scales(p, scales, scale);
    for (int r = 0; r < rows; ++r) {
      float* const sum = to + r * p.stride;
      const float* const of_group = own + r * kPanel;
      store(sum, fma(load(of_group), scale[0], first ? zero() : load(sum)));
      store(sum + kLanes, fma(load(of_group + kLanes), scale[1], first ? zero() : load(sum + kLanes)));
    }
  }
}

/// A block of words as a panel of pairs. It is read here first: what follows is fetched 4 KiB ahead. (Pairs of 4 bits: round_row.)
template <Packing How>
void unpack_words(const std::byte* from, int k, std::byte* panel) {
  constexpr int kPair = kPanel * 4;  // bytes of a pair of all outputs
  for (int row = 0; row < k; row += packed_depth(How), from += kPackedBytes, panel += packed_depth(How) / 2 * kPair) {
    prefetch(from + 4096, kPackedBytes);
    for (int column = 0; column < kPanel; column += kLanes) {
      const Ints words = words_at(from, column);
      const auto put = [&](int pair, Ints values) { store((float*)(panel + pair * kPair + column * 4), from_bits(values)); };
      if constexpr (How == Packing::int4) {
        put(0, pair_of<How, 0>(words));
        put(1, pair_of<How, 1>(words));
        put(2, pair_of<How, 2>(words));
        put(3, pair_of<How, 3>(words));
      } else {
        put(0, pair_of<How, 0>(words));
        put(1, pair_of<How, 1>(words));
      }
    }
  }
}

template <class T>
struct Tiles {
  typedef T Source;
  typedef T Packed;
  static constexpr bool integers = sizeof(T) == 1;
  static constexpr Blocking blocking = integers ? kTileQuadBlocking : kTileBlocking;
  static constexpr int k_step = 64 / sizeof(T), w_depth = 4 / sizeof(T), w_bytes = kPanel * 4;
  static constexpr bool pads_rows = true, ends_rows = false, scales_sums = !integers;
  static constexpr int unpacks_rows = kVectorRows;
  static constexpr int panels_at_once(Packing packing, std::int64_t rows) { return integers ? quad_panels(rows) : rows == 1 ? word_panels(packing) : 1; }

  INGOT_INLINE void unpack(const MatmulJob& job, std::int64_t, const std::byte* from, std::int64_t, int k, std::byte* panel) {
    if (job.packing == Packing::int8) return unpack_words<Packing::int8>(from, k, panel);
    if (job.packing == Packing::float8) return unpack_words<Packing::float8>(from, k, panel);
    unpack_words<Packing::int4>(from, k, panel);
  }
  INGOT_INLINE void finish_row(const MatmulJob& job, std::byte* row, int depth) {
    if constexpr (integers) {
      if (job.rows <= kQuadVectorRows) store_row_sum(row, depth);
    } else if (job.packing == Packing::int4) {
      job.rows <= kVectorRows ? make_digits(row, depth) : round_row(row, depth);
    }
  }
  static void multiply(const BlockProduct& p) {
    if constexpr (integers) {
      if (p.rows <= kQuadVectorRows) return multiply_quads(p, std::make_integer_sequence<int, kQuadVectorRows>());
    } else {
      if (p.packing != Packing::same || p.rows <= kPairVectorRows) return multiply_words(p);
    }
    const int steps = (p.k + k_step - 1) / k_step, over = p.k % k_step;
    alignas(64) std::byte padded[kStepBytes];
    const std::byte* tail = nullptr;
    if (over != 0) {
      const int bytes = (over + w_depth - 1) / w_depth * 128;
      __builtin_memcpy(padded, p.w + (std::int64_t)(steps - 1) * kStepBytes, bytes);
      __builtin_memset(padded + bytes, 0, kStepBytes - bytes);
      tail = padded;
    }
    written(padded);
    const int tiles = (p.rows + 15) / 16, pairs = (tiles + 1) / 2;
    if constexpr (!integers) if (p.scales != nullptr) {
      if (p.group < 128 && suits_groups(p)) return p.group == 32 ? multiply_groups<T, 64, 1>(p) : multiply_groups<T, 64, 2>(p);
      for (int t = 0; t < tiles; t += 2) {
        const std::byte* const x = p.x + t * 16 * kXStride;
        float* const to = p.accumulators + t * 16 * p.stride;
        const int rows = p.rows - t * 16 < 32 ? p.rows - t * 16 : 32;
        if (t + 2 <= tiles) tiles_of_groups<2>(p, x, tail, steps, rows, to);
        else tiles_of_groups<1>(p, x, tail, steps, rows, to);
      }
      return;
    }
    const int share = kStepBytes / pairs & -64;
    int t = 0;
    for (; t + 2 <= tiles; t += 2)
      two_tiles<T>(p.x + t * 16 * kXStride, p.w, tail, steps, p.accumulators + t * 16 * p.stride, p.stride, p.first,
                p.ahead + t / 2 * steps * share, share);
    if (t < tiles)
      one_tile<T>(p.x + t * 16 * kXStride, p.w, tail, steps, p.accumulators + t * 16 * p.stride, p.stride, p.first);
    if (!integers || !p.last) return;
    written(p.accumulators);
    for (int r = 0; r < p.rows; ++r) {
      float* const sums = p.accumulators + r * p.stride;
      for (int column = 0; column < kPanel; column += kLanes) store(sums + column, to_float(bits(load(sums + column))));
    }
  }
};

/// Rows of a small matrix as A tiles, zero padded to whole steps of k.
void pack_small_rows(const SmallProducts& job, const std::byte* a, std::byte* packed) {
  const int bytes = (int)job.k * 2, padded = (int)round_up(job.k, 32) * 2;
  for (std::int64_t r = 0; r < job.m; ++r) {
    std::byte* to = packed + r * kXStride;
    __builtin_memset(to + padded - 64, 0, 64);
    copy_values((const bfloat16*)(a + r * job.a_row), (bfloat16*)to, bytes / 2);
  }
}

/// 32 columns of b as a panel of pairs, zero padded to whole steps of k.
void pack_small_panel(const std::byte* b, std::int64_t stride, std::int64_t k, std::byte* panel) {
  alignas(64) static constexpr auto kOrder = [] {
    struct {
      std::uint16_t low[32], high[32];
    } order = {};
    for (int i = 0; i < 32; ++i) {
      order.low[i] = (std::uint16_t)(i / 2 + i % 2 * 32);
      order.high[i] = (std::uint16_t)(16 + i / 2 + i % 2 * 32);
    }
    return order;
  }();
  const __m512i low = _mm512_load_si512(kOrder.low), high = _mm512_load_si512(kOrder.high);
  const std::int64_t padded = round_up(k, 32);
  for (std::int64_t row = 0; row < padded; row += 2, b += 2 * stride, panel += 128) {
    const __m512i even = row < k ? _mm512_loadu_si512(b) : _mm512_setzero_si512();
    const __m512i odd = row + 1 < k ? _mm512_loadu_si512(b + stride) : _mm512_setzero_si512();
    _mm512_store_si512(panel, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_store_si512(panel + 64, _mm512_permutex2var_epi16(even, high, odd));
  }
}

/// Up to 32 rows against one panel: accumulators in scratch, 32 to the row.
INGOT_INLINE void small_product(const std::byte* x, const std::byte* w, int steps, bool below, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int s = 0; s < steps; ++s) {
    INGOT_TILE_LOAD(4, x + s * 64, kXStride);
    INGOT_TILE_LOAD(6, w + s * kStepBytes, 128);
    INGOT_TILE_LOAD(7, w + s * kStepBytes + 64, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!below) continue;
    INGOT_TILE_LOAD(5, x + 16 * kXStride + s * 64, kXStride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  INGOT_TILE_STORE(0, sums, kPanel * 4);
  INGOT_TILE_STORE(1, sums + 16, kPanel * 4);
  if (!below) return;
  INGOT_TILE_STORE(2, sums + 16 * kPanel, kPanel * 4);
  INGOT_TILE_STORE(3, sums + 16 * kPanel + 16, kPanel * 4);
}

template <class T>
INGOT_INLINE void store_small(const float* sums, std::int64_t rows, std::byte* y, std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r, y += stride, sums += kPanel) {
    store((T*)y, load(sums));
    store((T*)y + kLanes, load(sums + kLanes));
  }
}

void run_small(const SmallProducts& job) {
  const bool below = job.m > 16;
  const int steps = (int)(job.k + 31) / 32;
  std::byte* const panel = job.memory.panel;
  float* const sums = job.memory.sums;
  configure(below ? 16 : (int)job.m, below ? (int)job.m - 16 : 16);
  for (std::int64_t i = 0; i < job.count; ++i) {
    if (i == 0 || job.a_step != 0) pack_small_rows(job, job.a + i * job.a_step, job.memory.rows);
    for (std::int64_t column = 0; column < job.n; column += kPanel) {
      pack_small_panel(job.b + i * job.b_step + column * 2, job.b_row, job.k, panel);
      written(panel);
      small_product(job.memory.rows, panel, steps, below, sums);
      written(sums);
      std::byte* y = job.y + i * job.y_step + column * bytes_of(job.out);
      if (job.out == DType::bfloat16)
        store_small<bfloat16>(sums, job.m, y, job.y_row);
      else
        store_small<float>(sums, job.m, y, job.y_row);
    }
  }
  _tile_release();
}

template <class T>
void run(const MatmulJob& job) {
  const int rows = job.rows < 16 && job.image == nullptr ? (int)job.rows : 16;
  configure(rows, rows);
  if (job.image != nullptr) multiply_image<T>(job);
  else if (is_dense<T>(job)) multiply_dense<T>(job);
  else run_job<Tiles<T>>(job);
  _tile_release();
}

}  // namespace

const MatmulTable matmul_table = {
    .bfloat16 = {.run = run<bfloat16>,
                 .blocking = Tiles<bfloat16>::blocking,
                 .speed = 16,
                 .pack = pack_panel<std::uint16_t, 2>,
                 .small = run_small,
                 .tiles = true,
                 .in_place = is_dense<bfloat16>},
    .int8 = {.run = run<std::int8_t>, .blocking = Tiles<std::int8_t>::blocking, .tiles = true, .in_place = is_dense<std::int8_t>},
    .int8_int4 = {.run = run_nibbles, .blocking = NibbleTiles::blocking}};

}  // namespace ingot::INGOT_LEVEL
