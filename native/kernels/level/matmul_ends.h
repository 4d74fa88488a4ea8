// What ends a register tile of R rows by a panel of 32 outputs in its registers: biases, a residual, limits, and for sums of int8 scales and
// the step of a result of bytes. The same steps in the same order as RowsEnd::run.
#pragma once

#include "matmul_blocks.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// Limits the values of a register tile from below.
template <int R, int C>
INGOT_INLINE void limit_below(const float* least, Vec (&a)[R][C]) {
  const Vec low = load(least);
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = max_nan(a[r][c], low);
  }
}

/// The epilogue of a register tile, in its registers, from that column of the panel on: the same steps in the same order as RowsEnd::run.
template <class T, int R, int C>
INGOT_INLINE void end_tile(const RowsEnd& end, Vec (&a)[R][C], int row, int column) {
  const std::int64_t from_column = end.column + column;
  const auto at = [&](const TileOperand& o) { return (T*)o.data + (end.first_row + row) * o.row_stride + from_column; };
  if (end.bias.data != nullptr) {
    Vec bias[C];
    load_shared(&end.bias, from_column, bias);
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = a[r][c] + bias[c];
    }
  }
  if (end.residual.data != nullptr) add_residual(at(end.residual), end.residual.row_stride, kNoOperand, a);
  if (end.low != nullptr) limit_below(end.low, a);
  T* y = at(end.out);
#if defined(__AVX512F__)
  if (end.width < kPanel) {
    static_assert(C == 2);
    const int first = end.width < kLanes ? (int)end.width : kLanes, second = (int)end.width - first;
    INGOT_UNROLL for (int r = 0; r < R; ++r, y += end.out.row_stride) {
      store_partial(y, a[r][0], first);
      store_partial(y + kLanes, a[r][1], second);
    }
    return;
  }
#endif
  store_tile(y, end.out.row_stride, a);
}

/// Takes a row that all rows share along, if the chain has that link.
template <int R, class TakeStep>
INGOT_INLINE void each_shared(const RowsEnd& end, int link, Vec (&a)[R][2], const TakeStep& step) {
  if (link < 0) return;
  Vec shared[2];
  load_shared(end.extra(link), end.column, shared);
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = step(a[r][c], shared[c]);
  }
}
template <int R>
INGOT_INLINE void scale_sums(const RowsEnd& end, Vec (&a)[R][2]) {
  each_shared(end, 0, a, [](Vec v, Vec w) __attribute__((always_inline)) { return v * w; });
}
template <int R>
INGOT_INLINE void add_shifts(const RowsEnd& end, Vec (&a)[R][2]) {
  for (int shift : end.chain.shifts) each_shared(end, shift, a, [](Vec v, Vec w) __attribute__((always_inline)) { return v + w; });
}

/// Adds the chain's residual, which is of T.
template <class T, int R>
INGOT_INLINE void add_chain_residual(const RowsEnd& end, Vec (&a)[R][2], int row) {
  const TileOperand& residual = *end.extra(end.chain.residual);
  const T* const from = (const T*)residual.data + (end.first_row + row) * residual.row_stride + end.column;
  add_residual(from, residual.row_stride, end.chain.links[end.chain.residual], a);
}

/// Ends a register tile of sums of int8 as scaled_rows does: scales, biases, a residual, and bytes in the bounds of the panel.
template <int R>
INGOT_INLINE void end_bytes(const RowsEnd& end, Vec (&a)[R][2], int row) {
  const Chain& chain = end.chain;
  scale_sums(end, a);
  add_shifts(end, a);
  if (chain.residual >= 0) add_chain_residual<std::int8_t>(end, a, row);
  const std::int64_t stride = end.job->epilogue.out.row_stride;
  std::int8_t* const y = (std::int8_t*)end.job->epilogue.out.data + (end.first_row + row) * stride + end.column;
  if (chain.ending.low == 0) store_ended_rows<std::int8_t, true, true>(y, stride, chain.ending, a);
  else store_ended_rows<std::int8_t, false, true>(y, stride, chain.ending, a);
}

/// The same where they become T, float32 or bfloat16: scales, a number of each row, biases, a residual of T or int8, and a lower limit.
template <class T, int R>
INGOT_INLINE void end_floats(const RowsEnd& end, Vec (&a)[R][2], int row) {
  const Chain& chain = end.chain;
  const std::int64_t first = end.first_row + row;
  scale_sums(end, a);
  if (chain.factor >= 0) {
    const TileOperand& factors = *end.extra(chain.factor);
    const float* from = (const float*)factors.data + first * factors.row_stride;
    INGOT_UNROLL for (int r = 0; r < R; ++r, from += factors.row_stride) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = a[r][c] * broadcast(*from);
    }
  }
  add_shifts(end, a);
  if (chain.residual >= 0 && end.extra(chain.residual)->dtype == DType::int8) add_chain_residual<std::int8_t>(end, a, row);
  else if (chain.residual >= 0) add_chain_residual<T>(end, a, row);
  const Link& last = chain.links[chain.count - 1];
  if (last.step == Step::max) limit_below(last.constant, a);
  const TileOperand& out = end.job->epilogue.out;
  store_tile((T*)out.data + first * out.row_stride + end.column, out.row_stride, a, false, end.normal);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
