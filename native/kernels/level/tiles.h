// AMX tiles, for the families that have a half at the level amx.
#pragma once

#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr int kStepBytes = 16 * 128;  // a panel's bytes for a step of k: two B tiles beside each other

/// The tile intrinsics do not tell the compiler that they read memory: everything must be written before them.
INGOT_INLINE void written(const void* memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

struct alignas(64) TileConfig {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};

#ifdef __SANITIZE_THREAD__
thread_local TileConfig configured;
#endif

/// Tiles 0-3: accumulators, 4 and 5: A (rows of x), 6 and 7: B (weights). The second row of tiles (2, 3, 5) may have fewer rows,
/// and a step may take less than 64 bytes of a row of A.
[[maybe_unused]] void configure(int rows, int below, int step = 64) {
  TileConfig config = {};
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = (std::uint16_t)(i == 4 || i == 5 ? step : 64);
    config.rows[i] = (std::uint8_t)(i >= 6 ? step / 4 : i == 2 || i == 3 || i == 5 ? below : rows);
  }
  written(&config);
  _tile_loadconfig(&config);
#ifdef __SANITIZE_THREAD__
  configured = config;
#endif
}

/// The thread sanitizer is told of the rows of a tile that is loaded or stored.
template <class Use>
INGOT_INLINE void each_row([[maybe_unused]] int tile, [[maybe_unused]] std::int64_t stride, [[maybe_unused]] Use use) {
#ifdef __SANITIZE_THREAD__
  for (int r = 0; r < configured.rows[tile]; ++r) use(r * stride, configured.row_bytes[tile]);
#endif
}

#define INGOT_TILE_LOAD(tile, from, stride)                                                        \
  do {                                                                                             \
    each_row(tile, stride, [&](std::int64_t row_at, int bytes) { reads((const std::byte*)(from) + row_at, bytes); });  \
    _tile_loadd(tile, from, stride);                                                               \
  } while (false)
#define INGOT_TILE_STREAM(tile, from, stride)                                                      \
  do {                                                                                             \
    each_row(tile, stride, [&](std::int64_t row_at, int bytes) { reads((const std::byte*)(from) + row_at, bytes); });  \
    _tile_stream_loadd(tile, from, stride);                                                        \
  } while (false)
#define INGOT_TILE_STORE(tile, to, stride)                                                         \
  do {                                                                                             \
    each_row(tile, stride, [&](std::int64_t row_at, int bytes) { writes((std::byte*)(to) + row_at, bytes); });        \
    _tile_stored(tile, to, stride);                                                                \
  } while (false)

INGOT_INLINE void prefetch(const std::byte* from, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
