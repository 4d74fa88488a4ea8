// Rows that become floats as they are packed, as the products for vector units take them: value by value. Weights of 16 bits become floats tile by
// tile for few rows, and once a block for many.
#pragma once

#include <utility>

#include "matmul_register_tile.h"

namespace ingot::INGOT_LEVEL {

namespace {

template <class Kind>
INGOT_INLINE void multiply_narrow(const BlockProduct& p);

/// T: of x, and of weights that are stored as x is.
template <class T>
struct OneByOne {
  typedef T Source;
  typedef float Packed;
  typedef Vec Values;
  static constexpr Blocking blocking = kVectorBlocking;
  static constexpr int k_step = 1, w_depth = 1, w_bytes = kPanel * sizeof(T), x_bytes = 4;
  static constexpr bool integers = false, sums_of_groups = false, starts = false, pads_rows = false, ends_rows = true, scales_sums = true;
  static constexpr int unpacks_rows = kInWordsRows, widens_rows = 2 * kRows;  // of more rows weights become floats once
  static constexpr int panels_at_once(Packing packing, std::int64_t rows) { return panels_of(packing != Packing::same, rows); }
  INGOT_INLINE Values values(const std::byte* w) { return load((const T*)w); }
  template <Packing How, int N>
  INGOT_INLINE Values values_of(Ints words) { return narrow_of<How, N>(words); }
  INGOT_INLINE void store_values(std::byte* to, Values values) { store((float*)to, values); }  // what is unpacked are floats
  template <int R, int C>
  INGOT_INLINE void add(Vec (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec v = broadcast(*(const float*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(v, b[c], a[r][c]);
    }
  }
  INGOT_INLINE void unpack(const MatmulJob& job, std::int64_t, const std::byte* from, std::int64_t, int k, std::byte* panel) {
    static_assert(blocking.depth * kPanel * 4 <= kUnpackedPanel);
    unpack_any<OneByOne<float>>(job, from, k, panel);
  }
  INGOT_INLINE void multiply(const BlockProduct& p) {
    if constexpr (__is_same(T, float)) multiply_any<OneByOne>(p);
    else multiply_narrow<OneByOne>(p);
  }
};

/// Weights that became floats.
template <class Kind, bool Groups>
struct Widened {
  static constexpr int depth = 1, bytes = kPanel * 4, fetched = Kind::w_bytes;
  static constexpr bool groups = Groups, narrow = false;
  template <int>
  INGOT_INLINE auto values(const std::byte* w) { return load((const float*)w); }
};

/// A block of 16 bits for many rows: its values become floats once, and not for each tile of rows, whose multiply-adds would wait for that.
template <class Kind>
__attribute__((noinline)) void multiply_widened(const BlockProduct& p) {
  typedef OneByOne<typename Kind::Source> Rows;
  alignas(64) std::byte panel[Kind::blocking.depth * kPanel * 4];
  const std::byte* from = p.w;
  int k = 0;
  for (; k < p.k; k += Kind::w_depth, from += Kind::w_bytes)
    for (int column = 0; column < kPanel; column += kLanes)
      Kind::store_values(panel + (k * kPanel + column) * 4, Kind::values(from + column * (Kind::w_bytes / kPanel)));
  BlockProduct product = p;
  product.w = panel;
  product.k = k;  // a pair whose second weight is padding has a value of x beside it that is, too
  product.unpacked = true;
  multiply_rows<Rows, Widened<Rows, false>>(product, std::make_integer_sequence<int, kRows>());
}

/// By weights of 16 bits, or narrower ones: those that are unpacked are floats.
template <class Kind>
INGOT_INLINE void multiply_narrow(const BlockProduct& p) {
  typedef OneByOne<typename Kind::Source> Rows;
  static_assert(Kind::unpacks_rows <= Kind::widens_rows);
  if (p.unpacked && p.scales != nullptr) return multiply_rows<Rows, Widened<Rows, true>>(p, std::make_integer_sequence<int, kGroupRows>());
  if (p.unpacked) return multiply_rows<Rows, Widened<Rows, false>>(p, std::make_integer_sequence<int, kRows>());
  if (p.rows > Kind::widens_rows) return multiply_widened<Kind>(p);
  multiply_any<Kind, false>(p);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
