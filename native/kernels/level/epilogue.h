// A kernel's epilogue, a scalar expression: rows of float32 values become rows of the output. Plain data for both
// halves, and the loop over tiles for the level halves. Level code includes it after simd.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"
#include "tile.h"

namespace ingot {

struct EpilogueJob {
  TileCode code;               // operands: the values, then the extras
  RunTile run_tile;
  const TileOperand* extras;   // of row 0 and column 0
  int extra_count;
  TileOperand out;             // likewise; column_stride is 1
  std::byte* memory;           // of run_tile
  std::int64_t apart = 1;      // of run_epilogue's rows: how many rows of out and the extras from each to the next
};

/// Rows of a tile that are `columns` wide, and the most columns of one.
static constexpr std::int64_t tile_rows(std::int64_t columns) { return columns < kTile ? kTile / columns : 1; }

}  // namespace ingot

#if defined(INGOT_LEVEL)
#include "chain.h"
#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// The operands as an expression takes them, the values still missing.
struct EpilogueTile {
  TileOperand in[1 + kMaxInputs];
  bool chained;
  Chain chain;
};

inline void begin_epilogue(const EpilogueJob& epilogue, EpilogueTile& tile) {
  tile.in[0] = {nullptr, DType::float32, 0, 1};
  for (int i = 0; i < epilogue.extra_count; ++i) tile.in[1 + i] = epilogue.extras[i];
  tile.chained = chain_of(epilogue.code, tile.in, epilogue.out, tile.chain);
}

/// What most layers end with, done in registers: value + bias, at least `low`, at most `high`.
struct Clamp {
  float low, high;
  alignas(64) float bias[kTile];
};

INGOT_INLINE Vec limited(const Clamp& clamp, Vec v) {
  return min(broadcast(clamp.high), max(broadcast(clamp.low), v));  // a NaN, as second operand, passes
}

/// The clamp that changes nothing, not even a -0.
inline void no_clamp(Clamp& clamp, std::int64_t columns) {
  clamp.low = -__builtin_inff();
  clamp.high = __builtin_inff();
  for (std::int64_t c = 0; c < columns; c += kLanes) store(clamp.bias + c, broadcast(-0.0f));
}

/// Whether the expression is a clamp, and which; its bias for that many columns (at most kTile; 0: it must have none).
inline bool clamp_of(const EpilogueJob& epilogue, const EpilogueTile& tile, std::int64_t columns, Clamp& clamp) {
  const Link* link = tile.chain.links;
  const Link* const end = link + tile.chain.count;
  no_clamp(clamp, columns);
  if (!tile.chained) return false;
  if (link < end && link->step == Step::add && link->operand > 0) {
    const TileOperand& bias = epilogue.extras[link->operand - 1];
    if (columns == 0 || link->whole || bias.row_stride != 0 || bias.spacing() != Spacing::dense) return false;
    with_floats(bias.dtype, (const void*)bias.data, [&](const auto* p) { convert_row(p, clamp.bias, columns); });
    ++link;
  }
  if (link < end && link->step == Step::max && link->constant != nullptr) clamp.low = (link++)->constant[0];
  if (link < end && link->step == Step::min && link->constant != nullptr) clamp.high = (link++)->constant[0];
  if (link == end && clamp.low == clamp.low && clamp.high == clamp.high) return true;
  no_clamp(clamp, columns);
  return false;
}

INGOT_INLINE TileOperand moved(const TileOperand& o, std::int64_t row, std::int64_t apart, std::int64_t column) {
  return {o.data + (row * o.row_stride + column * o.column_stride) * bytes_of(o.dtype), o.dtype, o.row_stride * apart, o.column_stride};
}

/// The epilogue of rows x columns values (at most kTile columns), `stride` floats from row to row, of `row` and `column` on.
inline void run_epilogue(const EpilogueJob& epilogue, EpilogueTile& tile, const float* values, std::int64_t stride, std::int64_t row,
                         std::int64_t rows, std::int64_t column, std::int64_t columns) {
  const std::int64_t step = tile.chained ? rows : tile_rows(columns);
  for (std::int64_t r = 0; r < rows; r += step) {
    const std::int64_t taken = rows - r < step ? rows - r : step;
    tile.in[0] = {(std::byte*)(values + r * stride), DType::float32, stride, 1};
    const std::int64_t first = row + r * epilogue.apart;
    for (int i = 0; i < epilogue.extra_count; ++i) tile.in[1 + i] = moved(epilogue.extras[i], first, epilogue.apart, column);
    const TileOperand out = moved(epilogue.out, first, epilogue.apart, column);
    if (tile.chained)
      run_chain(tile.chain, tile.in, out, taken, columns);
    else
      epilogue.run_tile(epilogue.code, tile.in, &out, (int)taken, (int)columns, epilogue.memory);
  }
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
#endif
