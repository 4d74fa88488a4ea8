// bfloat16 matrix products with packed weights on AMX tiles, for every number of rows; and small ones of computed operands.
//
// A panel's 32 outputs are two B tiles (row stride 128 bytes), rows of x are A tiles of 16 rows (fewer when the whole
// product has fewer), k goes in steps of 32. With two tiles of rows: 2 x 2 accumulator tiles. The last step of a k that is no
// multiple of 32 works on a zero padded copy, since tiles would read past the panel.
#include "matmul_blocks.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr int kStepBytes = 16 * 128;  // a panel's bytes for 32 values of k

/// The tile intrinsics do not tell the compiler that they read memory: everything must be written before them.
INGOT_INLINE void written(const void* memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

struct alignas(64) TileConfig {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};

/// Tiles 0-3: accumulators, 4 and 5: A (rows of x), 6 and 7: B (weights). The second row of tiles (2, 3, 5) may have fewer rows.
void configure(int rows, int below) {
  TileConfig config = {};
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = (std::uint8_t)(i >= 6 ? 16 : i == 2 || i == 3 || i == 5 ? below : rows);
  }
  written(&config);
  _tile_loadconfig(&config);
}

INGOT_INLINE void prefetch(const std::byte* from, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

/// One tile of rows against one panel. The weights are read once: fetched 4 KiB ahead of their use.
INGOT_INLINE void one_tile(const std::byte* x, const std::byte* w, const std::byte* tail, int steps, float* to, std::int64_t stride,
                           bool first) {
  const std::int64_t bytes = stride * 4;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    _tile_loadd(0, to, bytes);
    _tile_loadd(1, to + 16, bytes);
  }
  for (int s = 0; s < steps; ++s) {
    const std::byte* b = tail != nullptr && s + 1 == steps ? tail : w + s * kStepBytes;
    prefetch(w + s * kStepBytes + 4096, kStepBytes);
    _tile_loadd(4, x + s * 64, kXStride);
    _tile_loadd(6, b, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 64, 128);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, to, bytes);
  _tile_stored(1, to + 16, bytes);
}

/// Two tiles of rows against one panel that stays in L1; x streams past it.
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
    _tile_loadd(0, to, bytes);
    _tile_loadd(1, to + 16, bytes);
    _tile_loadd(2, below, bytes);
    _tile_loadd(3, below + 16, bytes);
  }
  for (int s = 0; s < steps; ++s) {
    const std::byte* b = tail != nullptr && s + 1 == steps ? tail : w + s * kStepBytes;
    prefetch(ahead + s * advance, advance);
    _tile_stream_loadd(4, x + s * 64, kXStride);
    _tile_loadd(6, b, 128);
    _tile_loadd(7, b + 64, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stream_loadd(5, x + 16 * kXStride + s * 64, kXStride);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, to, bytes);
  _tile_stored(1, to + 16, bytes);
  _tile_stored(2, below, bytes);
  _tile_stored(3, below + 16, bytes);
}

struct Tiles {
  typedef bfloat16 Source;
  typedef bfloat16 Packed;
  static constexpr Blocking blocking = kTileBlocking;
  static constexpr int k_step = 32, w_depth = 2, w_bytes = kPanel * 4;
  static constexpr bool pads_rows = true, ends_rows = false;
  static constexpr int two_panels_rows = 0;

  INGOT_INLINE void multiply(const BlockProduct& p) {
    const int steps = (p.k + 31) / 32, over = p.k % 32;
    alignas(64) std::byte padded[kStepBytes];
    const std::byte* tail = nullptr;
    if (over != 0) {
      const int bytes = (over + 1) / 2 * 128;
      __builtin_memcpy(padded, p.w + (std::int64_t)(steps - 1) * kStepBytes, bytes);
      __builtin_memset(padded + bytes, 0, kStepBytes - bytes);
      tail = padded;
    }
    written(padded);
    const int tiles = (p.rows + 15) / 16, pairs = (tiles + 1) / 2;
    const int share = kStepBytes / pairs & -64;
    int t = 0;
    for (; t + 2 <= tiles; t += 2)
      two_tiles(p.x + t * 16 * kXStride, p.w, tail, steps, p.accumulators + t * 16 * p.stride, p.stride, p.first,
                p.ahead + t / 2 * steps * share, share);
    if (t < tiles)
      one_tile(p.x + t * 16 * kXStride, p.w, tail, steps, p.accumulators + t * 16 * p.stride, p.stride, p.first);
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
    _tile_loadd(4, x + s * 64, kXStride);
    _tile_loadd(6, w + s * kStepBytes, 128);
    _tile_loadd(7, w + s * kStepBytes + 64, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!below) continue;
    _tile_loadd(5, x + 16 * kXStride + s * 64, kXStride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kPanel * 4);
  _tile_stored(1, sums + 16, kPanel * 4);
  if (!below) return;
  _tile_stored(2, sums + 16 * kPanel, kPanel * 4);
  _tile_stored(3, sums + 16 * kPanel + 16, kPanel * 4);
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

void run(const MatmulJob& job) {
  const int rows = job.rows < 16 ? (int)job.rows : 16;
  configure(rows, rows);
  run_job<Tiles>(job);
  _tile_release();
}

}  // namespace

const MatmulTable matmul_table = {.float32 = {}, .float16 = {}, .bfloat16 = {run, Tiles::blocking, pack_panel<std::uint16_t, 2>, run_small}};

}  // namespace ingot::INGOT_LEVEL
