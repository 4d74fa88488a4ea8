// Expressions that are a chain, value = step(value, operand) from operand 0 on (bias, residual, relu, silu, rounding): computed
// in registers instead of a pass over the tile for each step. The same steps in the same order, so the same bits as run_tile.
// Operands may be int8 or uint8 that are dequantised, (q - zero) * scale; the result may be quantised to either.
// Include after simd.h.
#pragma once

#include "chain_reader.h"
#include "chain_scaled.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// What runs all rows of most chains, two vectors at a time; or null.
inline ChainRows rows_of(Chain& chain, const TileOperand* in, const TileOperand& out) {
  if (!takes_row(chain, in, 0, Step::mul)) return gelu_rows_of(chain, in, out);
  if (in[0].dtype == DType::float32) return scaled_rows_of<float>(chain, in, out);
  return in[0].dtype == DType::bfloat16 ? scaled_rows_of<bfloat16>(chain, in, out) : nullptr;
}

/// Whether the expression is a chain from operand 0, which is dense. The rows of its other operands are dense or repeat one
/// value: what load_rows reads.
inline bool chain_of(const TileCode& code, const TileOperand* in, const TileOperand& out, Chain& chain) {
  chain.count = 0;
  chain.streams = false;
  chain.ending.present = false;
  if (code.output_count != 1 || code.output_classes[0] != Class::float32 || code.register_count > ChainReader::kRegisters) return false;
  if (!(is_chain_float(out.dtype) || is_chain_byte(out.dtype)) || out.spacing() != Spacing::dense) return false;
  ChainReader reader(code, in, chain);
  for (int i = 0; i < code.step_count; ++i)
    if (!reader.take(code.steps[i])) return false;
  if (reader.value() != code.outputs[0]) return false;
  if (is_chain_byte(out.dtype)) end_chain(chain);
  chain.scaled = takes_row(chain, in, 0, Step::mul) && takes_row(chain, in, 1, Step::add);
  chain.rows = rows_of(chain, in, out);
  return true;
}

/// R rows by C vectors; C is 1 when there are fewer than 16 lanes.
template <int R, int C>
INGOT_INLINE void chain_rows(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t row, std::int64_t column,
                             int lanes) {
  Vec v[R][C];
  load_rows(in[0], row, column, lanes, v);
  if (chain.scaled) {
    const float* const scales = (const float*)in[chain.links[0].operand].data + column;
    const float* const biases = (const float*)in[chain.links[1].operand].data + column;
    _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) {
      const bool whole = lanes == kLanes * C;
      const Vec scale = whole ? load(scales + c * kLanes) : load_partial(scales, lanes);
      const Vec bias = whole ? load(biases + c * kLanes) : load_partial(biases, lanes);
      _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) v[r][c] = v[r][c] * scale + bias;
    }
  }
  for (int i = chain.scaled ? 2 : 0; i < chain.count; ++i) {
    const Link& link = chain.links[i];
    Vec w[R][C];
    if (link.operand >= 0) {
      load_rows(in[link.operand], row, column, lanes, w);
      if (link.whole) {
        dequantise(link, [&](const auto& value_of) __attribute__((always_inline)) {
          _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
            _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) w[r][c] = value_of(w[r][c]);
          }
        });
      }
    } else if (link.constant != nullptr) {
      const Vec value = load(link.constant);
      _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
        _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) w[r][c] = value;
      }
    }
    const auto each = [&](auto step) {
      _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
        _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) v[r][c] = step(v[r][c], w[r][c]);
      }
    };
    switch (link.step) {
      case Step::add: each([](Vec a, Vec b) { return a + b; }); break;
      case Step::mul: each([](Vec a, Vec b) { return a * b; }); break;
      case Step::sub: each([](Vec a, Vec b) { return a - b; }); break;
      case Step::div: each([](Vec a, Vec b) { return a / b; }); break;
      case Step::round: each([](Vec a, Vec) { return round_even(a); }); break;
      case Step::replace_nan: each([](Vec a, Vec b) { return select(is_nan(a), b, a); }); break;
      case Step::max: each([](Vec a, Vec b) { return max_nan(a, b); }); break;
      case Step::min: each([](Vec a, Vec b) { return min_nan(a, b); }); break;
      default: slow_step(link.step, v);
    }
  }
  if (chain.ending.present) {
    _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
      _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) v[r][c] = ended(chain.ending, v[r][c]);
    }
  }
  store_rows(out, row, column, lanes, v);
}

/// The columns of R rows from that one on.
template <int R>
INGOT_INLINE void chain_band(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t row, std::int64_t column,
                             std::int64_t width) {
  for (; column + 2 * kLanes <= width; column += 2 * kLanes) chain_rows<R, 2>(chain, in, out, row, column, 2 * kLanes);
  for (; column < width; column += kLanes)
    chain_rows<R, 1>(chain, in, out, row, column, width - column < kLanes ? (int)(width - column) : kLanes);
}

/// What run_tile does, for any number of rows and columns.
inline void run_chain(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t rows, std::int64_t width) {
  std::int64_t row = 0, column = 0;
  if (chain.rows != nullptr)
    for (; column + 2 * kLanes <= width; column += 2 * kLanes) chain.rows(chain, in, out, rows, column);
  if (column == width) return;
  for (; row + 4 <= rows; row += 4) chain_band<4>(chain, in, out, row, column, width);
  if (row + 2 <= rows) chain_band<2>(chain, in, out, row, column, width), row += 2;
  if (row < rows) chain_band<1>(chain, in, out, row, column, width);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
