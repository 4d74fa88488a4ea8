// bfloat16 matrix products with packed weights on AMX tiles, for every number of rows.
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

/// Tiles 0-3: accumulators, 4 and 5: A (rows of x), 6 and 7: B (weights).
void configure(int rows) {
  TileConfig config = {};
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = (std::uint8_t)(i < 6 ? rows : 16);
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
  static constexpr bool pads_rows = true;
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

}  // namespace

void matmul_bfloat16(const MatmulJob& job) {
  configure(job.rows < 16 ? (int)job.rows : 16);
  run_job<Tiles>(job);
  _tile_release();
}

}  // namespace ingot::INGOT_LEVEL
