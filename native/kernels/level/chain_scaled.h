// Chains (chain.h) that most products end with, in one loop each: sums times scales with biases and a residual, and a bias with GELU.
#pragma once

#include "chain_registers.h"

namespace ingot::INGOT_LEVEL {

namespace {

struct NoResidual {};

/// Two vectors of each row that all rows share: what the first link multiplies by, and up to two that are added. (In a struct the compiler would
/// leave them in memory.) operand_of(link): its operand; of link -1 null.
template <class OperandOf>
INGOT_INLINE void load_shared_rows(const Chain& chain, std::int64_t column, const OperandOf& operand_of, Vec (&scale)[2], Vec (&bias)[2],
                                   Vec (&shift)[2]) {
  const float* const scales = (const float*)operand_of(0)->data + column;  // takes_row has seen to that
  scale[0] = load(scales);
  scale[1] = load(scales + kLanes);
  load_shared(operand_of(chain.shifts[0]), column, bias);
  load_shared(operand_of(chain.shifts[1]), column, shift);
}

/// The link of the residual, if there is one; else one that is no sum with whole numbers.
INGOT_INLINE const Link& residual_of(const Chain& chain) { return chain.links[chain.residual < 0 ? 0 : chain.residual]; }

/// Whether what becomes of any int32 is far below 2^31 in steps of the result, or NaN.
INGOT_INLINE bool is_bounded(const Chain& chain, const Vec (&scale)[2], const Vec (&bias)[2], const Vec (&shift)[2]) {
  const Link& residual = residual_of(chain);
  const Vec factor = abs(broadcast(chain.ending.factor)), limit = broadcast(0x1p30f), largest = broadcast(256) + abs(broadcast(residual.zero));
  const Vec added = residual.whole ? largest * abs(broadcast(residual.scale)) : zero();
  bool bounded = true;
  each<2>([&](int c) {
    const Vec most = (abs(scale[c]) * broadcast(0x1p31f) + abs(bias[c]) + abs(shift[c]) + added) * factor;
    bounded = bounded && !any(is_nan(most)) && !any(limit <= most);
  });
  return bounded;
}

/// Whether whole numbers times the scale, sums of these and of biases, and a lower limit are never denormals: each is 0 or at least 2^-100 in size, so that it, and
/// whatever is added up of such, is a multiple of 2^-123.
INGOT_INLINE bool is_normal(const Vec (&scale)[2], const Vec (&bias)[2], const Vec (&shift)[2], Vec low) {
  const auto is_far = [](Vec v) { return !any(abs(v) < select(v == zero(), zero(), broadcast(0x1p-100f))) && !any(is_nan(v)); };
  const auto are_far = [&](const Vec (&v)[2]) { return is_far(v[0]) && is_far(v[1]); };
  return are_far(scale) && are_far(bias) && are_far(shift) && is_far(low);
}

/// Two vectors of all rows: sum * scale, then a factor of the row, biases, a residual, and GELU or a lower limit, if there are such; the
/// result may be quantised. Sum: what the first operand holds. Rectified: the ending's lower limit is 0.
template <class Residual, class Out, class Sum, bool Rectified>
__attribute__((noinline)) void scaled_rows(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t rows,
                                           std::int64_t column) {
  // Copies of what the loop reads: a store of bytes could be one to anything behind a pointer.
  const Sum* const sums = (const Sum*)in[0].data + column;
  const std::int64_t sums_stride = in[0].row_stride, out_stride = out.row_stride;
  const bool gelu = chain.gelu, streams = chain.streams, twice = chain.shifts[1] >= 0;
  const Ending ending = chain.ending;
  const auto operand_of = [&](int link) { return link < 0 ? nullptr : &in[chain.links[link].operand]; };
  Vec scale[2], bias[2], shift[2];
  load_shared_rows(chain, column, operand_of, scale, bias, shift);
  const TileOperand factors = chain.factor < 0 ? TileOperand{} : *operand_of(chain.factor);
  const Link added = residual_of(chain);
  const TileOperand residual = chain.residual < 0 ? TileOperand{} : *operand_of(chain.residual);
  const Link& last = chain.links[chain.count - 1];
  const Vec low = last.step == Step::max ? load(last.constant) : broadcast(-__builtin_inff());
  Out* const to = (Out*)out.data + column;
  const auto sum = [&](std::int64_t row, int c) __attribute__((always_inline)) {
    const Sum* const from = sums + row * sums_stride + c * kLanes;
    if constexpr (__is_same(Sum, std::int32_t)) return to_float(bits(load((const float*)from)));
    else return load(from);
  };
  const auto take = [&]<bool Bounded>(Flag<Bounded>, std::int64_t row) __attribute__((always_inline)) {
    const std::int64_t next = row + 1 == rows ? 0 : 1;  // the last of an odd number twice
    Vec v[2][2];
    each<2, 2>([&](int r, int c) { v[r][c] = sum(row + r * next, c) * scale[c]; });
    if (factors.data != nullptr) {
      each<2>([&](int r) {
        const Vec factor = broadcast(((const float*)factors.data)[(row + r * next) * factors.row_stride]);
        each<2>([&](int c) { v[r][c] = v[r][c] * factor; });
      });
    }
    each<2, 2>([&](int r, int c) { v[r][c] = v[r][c] + bias[c]; });
    if (twice) each<2, 2>([&](int r, int c) { v[r][c] = v[r][c] + shift[c]; });
    if constexpr (!__is_same(Residual, NoResidual))
      add_residual((const Residual*)residual.data + column + row * residual.row_stride, next * residual.row_stride, added, v);
    if (gelu) slow_step(Step::gelu, v);
    if constexpr (is_byte<Out>) {
      store_ended<Out, Rectified, Bounded>(to + row * out_stride, next * out_stride, ending, v);
    } else {
      each<2, 2>([&](int r, int c) { v[r][c] = max_nan(v[r][c], low); });
      store_tile(to + row * out_stride, next * out_stride, v, streams);
    }
  };
  if constexpr (kEndsBounded && is_byte<Out> && Rectified && __is_same(Sum, std::int32_t) && (is_byte<Residual> || __is_same(Residual, NoResidual))) {
    if (factors.data == nullptr && !gelu && ending.high + ending.zero == most_of<Out> && is_bounded(chain, scale, bias, shift)) {
      for (std::int64_t row = 0; row < rows; row += 2) take(Flag<true>(), row);
      return;
    }
  }
  for (std::int64_t row = 0; row < rows; row += 2) take(Flag<false>(), row);
}

template <class Residual, class Out, class Sum>
INGOT_INLINE ChainRows scaled_bytes_to(const Ending& ending) {
  return ending.low == 0 ? scaled_rows<Residual, Out, Sum, true> : scaled_rows<Residual, Out, Sum, false>;
}

template <class Residual, class Sum>
INGOT_INLINE ChainRows scaled_rows_to(const Chain& chain, const TileOperand& out) {
  if constexpr (!__is_same(Sum, bfloat16)) {
    if (out.dtype == DType::float32) return scaled_rows<Residual, float, Sum, false>;
    if (out.dtype == DType::bfloat16) return scaled_rows<Residual, bfloat16, Sum, false>;
  }
  if (out.dtype == DType::int8 && ends_in<std::int8_t>(chain.ending)) return scaled_bytes_to<Residual, std::int8_t, Sum>(chain.ending);
  if (out.dtype == DType::uint8 && ends_in<std::uint8_t>(chain.ending)) return scaled_bytes_to<Residual, std::uint8_t, Sum>(chain.ending);
  return nullptr;
}

/// What runs a chain whose first link is a product with a row of float32; null where others follow than those that scaled_rows has. Of bfloat16
/// that is what a norm that became numbers for each channel leaves to be quantised.
template <class Sum>
ChainRows scaled_rows_of(Chain& chain, const TileOperand* in, const TileOperand& out) {
  int at = 1;
  const TileOperand* const number = taken_at(chain, in, at, Step::mul);
  chain.factor = number != nullptr && number->dtype == DType::float32 && number->spacing() == Spacing::repeated ? at++ : -1;
  for (int& shift : chain.shifts) shift = is_shared_row(taken_at(chain, in, at, Step::add)) ? at++ : -1;
  const TileOperand* const residual = taken_at(chain, in, at, Step::add);
  chain.residual = residual != nullptr ? at++ : -1;
  chain.gelu = at < chain.count && chain.links[at].step == Step::gelu;
  if (chain.gelu) ++at;
  else if (at < chain.count && chain.links[at].step == Step::max && chain.links[at].constant != nullptr && !chain.ending.present) ++at;
  if (at != chain.count || (residual != nullptr && residual->spacing() != Spacing::dense)) return nullptr;
  if (residual == nullptr) return scaled_rows_to<NoResidual, Sum>(chain, out);
  if constexpr (!__is_same(Sum, bfloat16)) {
    if (residual->dtype == DType::float32) return scaled_rows_to<float, Sum>(chain, out);
    if (residual->dtype == DType::bfloat16) return scaled_rows_to<bfloat16, Sum>(chain, out);
    if (residual->dtype == DType::int8) return scaled_rows_to<std::int8_t, Sum>(chain, out);
    if (residual->dtype == DType::uint8) return scaled_rows_to<std::uint8_t, Sum>(chain, out);
  }
  return nullptr;
}

#if defined(__AVX512F__)
constexpr int kGeluRows = 4;  // two vectors of each at once: what registers hold
#else
constexpr int kGeluRows = 1;
#endif

/// Two vectors of R rows: sum + bias, and GELU.
template <class Out, int R>
INGOT_INLINE void take_gelu_rows(const float* sums, std::int64_t stride, const Vec (&bias)[2], Out* to, std::int64_t out_stride) {
  Vec v[R][2];
  each<R, 2>([&](int r, int c) { v[r][c] = load(sums + r * stride + c * kLanes) + bias[c]; });
  gelu_each<2 * R>(&v[0][0]);
  store_tile(to, out_stride, v);
}

/// The same of all rows.
template <class Out>
__attribute__((noinline)) void gelu_rows(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t rows,
                                         std::int64_t column) {
  Vec bias[2];
  load_shared(&in[chain.links[0].operand], column, bias);
  const float* sums = (const float*)in[0].data + column;
  Out* to = (Out*)out.data + column;
  const auto take = [&]<int R>() __attribute__((always_inline)) {
    take_gelu_rows<Out, R>(sums, in[0].row_stride, bias, to, out.row_stride);
    rows -= R, sums += R * in[0].row_stride, to += R * out.row_stride;
  };
  while (rows >= kGeluRows) take.template operator()<kGeluRows>();
  while (rows > 0) take.template operator()<1>();
}

/// What runs a chain of a bias that all rows share and GELU; null for others.
inline ChainRows gelu_rows_of(Chain& chain, const TileOperand* in, const TileOperand& out) {
  chain.factor = chain.residual = chain.shifts[0] = chain.shifts[1] = -1;
  chain.gelu = chain.count == 2 && chain.links[1].step == Step::gelu;
  if (!chain.gelu || chain.ending.present || in[0].dtype != DType::float32 || !is_shared_row(taken_at(chain, in, 0, Step::add))) return nullptr;
  return out.dtype == DType::float32 ? gelu_rows<float> : out.dtype == DType::bfloat16 ? gelu_rows<bfloat16> : nullptr;
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
