// What ends a register tile of R rows by a panel of 32 outputs in its registers: biases, a residual, limits, and for sums of int8 scales and
// the step of a result of bytes. The same steps in the same order as RowsEnd::run.
#pragma once

#include "matmul_blocks.h"

namespace ingot::INGOT_LEVEL {

namespace {

template <class T, int R, int C>
[[maybe_unused]] __attribute__((noinline)) void store_each(T* y, std::int64_t stride, const Vec (&a)[R][C]) {
  for (int r = 0; r < R; ++r, y += stride)
    for (int c = 0; c < C; ++c) store(y + c * kLanes, a[r][c]);
}

/// Stores a register tile, `stride` values from row to row. normal: no value is a denormal.
template <class T, int R, int C>
INGOT_INLINE void store_tile(T* y, std::int64_t stride, const Vec (&a)[R][C], [[maybe_unused]] bool normal = false) {
#if defined(__AVX512BF16__)
  if constexpr (__is_same(T, bfloat16)) {
    if (store_rounded(y, stride, a, false, normal)) return;
    Vec kept[R][C];  // a copy, so that the sums themselves stay in registers
    __builtin_memcpy(kept, a, sizeof kept);
    return store_each(y, stride, kept);
  }
#endif
  INGOT_UNROLL for (int r = 0; r < R; ++r, y += stride) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(y + c * kLanes, a[r][c]);
  }
}

/// The epilogue of a register tile, in its registers, from that column of the panel on: the same steps in the same order as RowsEnd::run.
template <class T, int R, int C>
INGOT_INLINE void end_tile(const RowsEnd& end, Vec (&a)[R][C], int row, int column) {
  const std::int64_t from_column = end.column + column;
  const auto at = [&](const TileOperand& o) { return (T*)o.data + (end.first_row + row) * o.row_stride + from_column; };
  if (end.bias.data != nullptr) {
    const bool wide = end.bias.dtype == DType::float32;
    const float* exact = (const float*)end.bias.data + from_column;
    const T* bias = (const T*)end.bias.data + from_column;
    INGOT_UNROLL for (int c = 0; c < C; ++c) {
      const Vec b = wide ? load(exact + c * kLanes) : load(bias + c * kLanes);
      INGOT_UNROLL for (int r = 0; r < R; ++r) a[r][c] = a[r][c] + b;
    }
  }
  if (end.residual.data != nullptr) {
    const T* from = at(end.residual);
    INGOT_UNROLL for (int r = 0; r < R; ++r, from += end.residual.row_stride) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = a[r][c] + load(from + c * kLanes);
    }
  }
  if (end.low != nullptr) {
    const Vec low = load(end.low);
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = max_nan(a[r][c], low);
    }
  }
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
INGOT_INLINE void add_shifts(const RowsEnd& end, Vec (&a)[R][2]) {
  for (int shift : end.chain.shifts) each_shared(end, shift, a, [](Vec v, Vec w) __attribute__((always_inline)) { return v + w; });
}

/// Adds a residual of int8.
template <int R>
INGOT_INLINE void add_byte_residual(const RowsEnd& end, Vec (&a)[R][2], int row) {
  const TileOperand& residual = *end.extra(end.chain.residual);
  const std::int8_t* from = (const std::int8_t*)residual.data + (end.first_row + row) * residual.row_stride + end.column;
  dequantise(end.chain.links[end.chain.residual], [&](const auto& value_of) __attribute__((always_inline)) {
    INGOT_UNROLL for (int r = 0; r < R; ++r, from += residual.row_stride) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = a[r][c] + value_of(load(from + c * kLanes));
    }
  });
}

/// The same for sums of int8, as scaled_rows ends them: scales, biases, a residual, and bytes in the bounds of the panel.
template <int R>
INGOT_INLINE void end_bytes(const RowsEnd& end, Vec (&a)[R][2], int row) {
  const Chain& chain = end.chain;
  each_shared(end, 0, a, [](Vec v, Vec w) __attribute__((always_inline)) { return v * w; });
  add_shifts(end, a);
  if (chain.residual >= 0) add_byte_residual(end, a, row);
  const std::int64_t stride = end.job->epilogue.out.row_stride;
  std::int8_t* y = (std::int8_t*)end.job->epilogue.out.data + (end.first_row + row) * stride + end.column;
  const auto store_all = [&]<bool Rectified>(Flag<Rectified>) __attribute__((always_inline)) {
    INGOT_UNROLL for (int r = 0; r < R; r += 2, y += 2 * stride) {
      const bool one = r + 1 == R;  // the last of an odd number twice
      const Vec two[2][2] = {{a[r][0], a[r][1]}, {a[one ? r : r + 1][0], a[one ? r : r + 1][1]}};
      store_ended<std::int8_t, Rectified, true>(y, one ? 0 : stride, chain.ending, two);
    }
  };
  if (chain.ending.low == 0) store_all(Flag<true>());
  else store_all(Flag<false>());
}

/// The same where they become T, float32 or bfloat16: scales, a number of each row, biases, a residual of T or int8, and a lower limit.
template <class T, int R>
INGOT_INLINE void end_floats(const RowsEnd& end, Vec (&a)[R][2], int row) {
  const Chain& chain = end.chain;
  const std::int64_t first = end.first_row + row;
  each_shared(end, 0, a, [](Vec v, Vec w) __attribute__((always_inline)) { return v * w; });
  if (chain.factor >= 0) {
    const TileOperand& factors = *end.extra(chain.factor);
    const float* from = (const float*)factors.data + first * factors.row_stride;
    INGOT_UNROLL for (int r = 0; r < R; ++r, from += factors.row_stride) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = a[r][c] * broadcast(*from);
    }
  }
  add_shifts(end, a);
  if (chain.residual >= 0 && end.extra(chain.residual)->dtype == DType::int8) {
    add_byte_residual(end, a, row);
  } else if (chain.residual >= 0) {
    const TileOperand& residual = *end.extra(chain.residual);
    const T* from = (const T*)residual.data + first * residual.row_stride + end.column;
    INGOT_UNROLL for (int r = 0; r < R; ++r, from += residual.row_stride) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = a[r][c] + load(from + c * kLanes);
    }
  }
  if (chain.links[chain.count - 1].step == Step::max) {
    const Vec low = load(chain.links[chain.count - 1].constant);
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = max_nan(a[r][c], low);
    }
  }
  const TileOperand& out = end.job->epilogue.out;
  T* y = (T*)out.data + first * out.row_stride + end.column;
  store_tile(y, out.row_stride, a, end.normal);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
