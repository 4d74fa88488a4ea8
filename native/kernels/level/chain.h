// Expressions that are a chain, value = step(value, operand) from operand 0 on (bias, residual, relu, silu, rounding): computed
// in registers instead of a pass over the tile for each step. The same steps in the same order, so the same bits as run_tile.
// Operands may be int8 or uint8 that are dequantised, (q - zero) * scale; the result may be quantised to either.
// Include after simd.h.
#pragma once

#include "chain_scaled.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// Whether the expression is a chain from operand 0, which is dense. The rows of its other operands are dense or repeat one
/// value: what load_rows reads.
inline bool chain_of(const TileCode& code, const TileOperand* in, const TileOperand& out, Chain& chain) {
  constexpr int kRegisters = 64;
  ChainOperand held[kRegisters];
  int value = -1;
  chain.count = 0;
  chain.streams = false;
  chain.ending.present = false;
  if (code.output_count != 1 || code.output_classes[0] != Class::float32 || code.register_count > kRegisters) return false;
  if (!(is_chain_float(out.dtype) || is_chain_byte(out.dtype)) || out.spacing() != Spacing::dense) return false;
  for (int i = 0; i < code.register_count; ++i) held[i] = {-1, false, 0, 1, false};
  const auto constant = [&](int place) { return (const float*)(code.places[place].constant ? code.constants + code.places[place].offset : nullptr); };
  for (int i = 0; i < code.step_count; ++i) {
    const Instruction& s = code.steps[i];
    Link link{s.step, -1, nullptr, false, 0, 1, false};
    switch (s.step) {
      case Step::load:
        if (s.cls != Class::float32) return false;
        if (s.a == 0) {
          if (value != -1) return false;
          value = s.to;
          continue;
        }
        if (in[s.a].spacing() == Spacing::strided) return false;
        held[s.to] = {s.a, is_chain_byte(in[s.a].dtype), 0, 1, false};
        continue;
      case Step::round_bfloat16:
        if (s.a != value && held[s.a].whole) {
          held[s.to] = held[s.a];
          held[s.to].rounded = true;
          continue;
        }
        [[fallthrough]];
      case Step::silu: case Step::mish: case Step::gelu: case Step::sigmoid: case Step::tanh: case Step::round: case Step::round_float16:
        if (s.a != value) return false;
        break;
      case Step::sub: case Step::mul:
        if (s.a != value && s.b != value) {  // the zero point and the scale of an operand
          const bool turned = s.step == Step::mul && held[s.b].whole;
          const ChainOperand operand = held[turned ? s.b : s.a];
          const float* const number = constant(turned ? s.a : s.b);
          if (!operand.whole || operand.rounded || number == nullptr || operand.scale != 1 || (s.step == Step::sub && operand.zero != 0)) return false;
          held[s.to] = operand;
          (s.step == Step::mul ? held[s.to].scale : held[s.to].zero) = *number;
          continue;
        }
        [[fallthrough]];
      case Step::add: case Step::div: case Step::max: case Step::min: case Step::replace_nan: {
        const bool turned = s.b == value && s.a != value && (s.step == Step::add || s.step == Step::mul);
        const int other = turned ? s.a : s.b;
        if ((turned ? s.b : s.a) != value || other == value) return false;
        link.operand = held[other].operand;
        link.whole = held[other].whole;
        link.zero = held[other].zero;
        link.scale = held[other].scale;
        link.rounded = held[other].rounded;
        link.constant = constant(other);
        if (link.operand == -1 && link.constant == nullptr) return false;
        break;
      }
      default: return false;
    }
    if (chain.count == Chain::kMost || value == -1) return false;
    chain.links[chain.count++] = link;
    value = s.to;
  }
  if (value != code.outputs[0]) return false;
  if (is_chain_byte(out.dtype)) end_chain(chain);
  chain.scaled = takes_row(chain, in, 0, Step::mul) && takes_row(chain, in, 1, Step::add);
  if (!takes_row(chain, in, 0, Step::mul)) chain.rows = gelu_rows_of(chain, in, out);
  else if (in[0].dtype == DType::float32) chain.rows = scaled_rows_of<float>(chain, in, out);
  else chain.rows = in[0].dtype == DType::bfloat16 ? scaled_rows_of<bfloat16>(chain, in, out) : nullptr;
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
        const Vec zero = broadcast(link.zero), scale = broadcast(link.scale);
        _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
          _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) w[r][c] = (w[r][c] - zero) * scale;
        }
        if (link.rounded) round_rows<bfloat16>(w);
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
      default: {  // by a copy, so that v itself stays in registers
        Vec slow[R][C];
        __builtin_memcpy(slow, v, sizeof slow);
        slow_step(link.step, slow);
        __builtin_memcpy(v, slow, sizeof slow);
      }
    }
  }
  if (chain.ending.present) {
    const Ending& ending = chain.ending;
    const Vec factor = broadcast(ending.factor), low = broadcast(ending.low), high = broadcast(ending.high), zero_point = broadcast(ending.zero);
    _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
      _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) {
        const Vec scaled = v[r][c] * factor;
        v[r][c] = round_even(min(high, max(low, select(is_nan(scaled), zero(), scaled)))) + zero_point;
      }
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
