// Rows of int8 as the products for vector units take them: four values of k side by side (quads.h).
#pragma once

#include <utility>

#include "matmul_in_place.h"
#include "matmul_raised.h"
#include "matmul_register_tile.h"
#include "quads.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr int kAheadInPlace = 1024;  // bytes: weights beside rows that are read in place are fetched so long before

struct Quads {
  typedef std::int8_t Source;
  typedef std::int8_t Packed;
  static constexpr Blocking blocking = kRowSums ? kQuadBlocking : kPairBlocking;  // widened values take as much as bfloat16
  static constexpr int k_step = 4, w_depth = 4, w_bytes = kPanel * 4;
  static constexpr bool integers = true, sums_of_groups = false, starts = false, pads_rows = false, ends_rows = true, scales_sums = false;
  static constexpr int unpacks_rows = 0;
  static constexpr int panels_at_once(Packing packing, std::int64_t rows) { return panels_of(packing != Packing::same, rows); }
  INGOT_INLINE void finish_rows(std::byte* packed, std::int64_t rows, int depth) { finish_quads(packed, rows, depth, kRows); }
  INGOT_INLINE void multiply(const BlockProduct& p);
};

#if INGOT_UNSIGNED_QUADS
/// Adds to a tile's sums what `add` makes of the quads of R rows and of C vectors of weights.
template <int R, int C, class Add>
INGOT_INLINE void add_quads(Vec (&a)[R][C], const std::byte* x, const Ints (&b)[C], const Add& add) {
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    const Ints row = broadcast_int(*(const std::int32_t*)(x + r * kXStride));
    INGOT_UNROLL for (int c = 0; c < C; ++c) {
      Ints sum = bits(a[r][c]);
      add(sum, b[c], row);
      a[r][c] = from_bits(sum);
    }
  }
}

/// Rows without a negative value, or to which 128 was added.
struct UnsignedQuads : Quads {
  typedef Ints Values;
  static constexpr int x_bytes = 4;
  static constexpr bool starts = kRowSums;
  INGOT_INLINE Values values(const std::byte* w) { return bits(load((const float*)w)); }
  template <int R, int C>
  INGOT_INLINE void add(Vec (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    add_quads(a, x, b, [](Ints& sum, Ints weights, Ints row) __attribute__((always_inline)) { add_dot4(sum, weights, row); });
  }
};
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
/// Signed rows of one tile: 128 is added to the weights, in registers.
struct SignedQuads : Quads {
  typedef Ints Values;
  static constexpr int x_bytes = 4;
  INGOT_INLINE Ints row_start(const std::byte* row) { return broadcast_int(*(const std::int32_t*)(row + kRowSum)); }
  INGOT_INLINE Values values(const std::byte* w) { return load_quads(w); }
  template <int R, int C>
  INGOT_INLINE void add(Vec (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    add_quads(a, x, b, [](Ints& sum, Ints weights, Ints row) __attribute__((always_inline)) { add_dots(sum, weights, row); });
  }
};

inline void Quads::multiply(const BlockProduct& p) {
  if (p.rows <= kRows && are_signed(p.x))
    return multiply_rows<SignedQuads, AsRead<SignedQuads, false>>(p, std::make_integer_sequence<int, kRows>());
  BlockProduct product = p;
  product.starts = nullptr;
  alignas(64) std::int32_t starts[kPanel];
  if (are_signed(p.x)) {
    start_signed(p.w, p.k, starts);
    product.starts = starts;
  }
  multiply_rows<UnsignedQuads, AsRead<UnsignedQuads, false>>(product, std::make_integer_sequence<int, kRows>());
}
#else
/// Rows widened to 16 bits.
struct WideQuads : Quads {
  typedef Quads16 Values;
  static constexpr int x_bytes = 8;
  INGOT_INLINE Values values(const std::byte* w) { return load_quads(w); }
  template <int R, int C>
  INGOT_INLINE void add(Vec (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    Ints sums[R][C];
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) sums[r][c] = bits(a[r][c]);
    }
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Ints v = broadcast_int(*(const std::int32_t*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) add_dot2(sums[r][c], b[c].even, v);
    }
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Ints v = broadcast_int(*(const std::int32_t*)(x + r * kXStride + 4));
      INGOT_UNROLL for (int c = 0; c < C; ++c) add_dot2(sums[r][c], b[c].odd, v);
    }
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = from_bits(sums[r][c]);
    }
  }
};

inline void Quads::multiply(const BlockProduct& p) {
  constexpr auto rows = std::make_integer_sequence<int, kRows>();
#if INGOT_UNSIGNED_QUADS
  if (!are_signed(p.x)) return multiply_rows<UnsignedQuads, AsRead<UnsignedQuads, false>>(p, rows);
#endif
  multiply_rows<WideQuads, AsRead<WideQuads, false>>(p, rows);
}
#endif

#if INGOT_UNSIGNED_QUADS
/// Adds `count` quads of rows [First, Last) of a tile, whose first row begins at x.
template <int First, int Last, int R, int C>
INGOT_INLINE void add_quads(Vec (&a)[R][C], const std::byte* x, std::int64_t stride, const std::byte* w, int count) {
  if constexpr (First < Last) {
    constexpr int kGroup = 4, kGroups = (R + kGroup - 1) / kGroup;  // rows of a group lie at 0 to 3 strides from its pointer
    const std::byte* group[kGroups];
    for (int g = 0; g < kGroups; ++g) group[g] = x + g * kGroup * stride;
    const auto add = [&](int at) __attribute__((always_inline)) {
      Ints b[C];
      INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = bits(load((const float*)(w + at * 128 + c * 64)));
      __builtin_prefetch(w + at * 128 + kAheadInPlace);
      __builtin_prefetch(w + at * 128 + kAheadInPlace + 64);
      INGOT_UNROLL for (int r = First; r < Last; ++r) {
        const Ints v = broadcast_int(*(const std::int32_t*)(group[r / kGroup] + r % kGroup * stride + at * 4));
        INGOT_UNROLL for (int c = 0; c < C; ++c) {
          Ints sum = bits(a[r][c]);
          add_dot4(sum, b[c], v);
          a[r][c] = from_bits(sum);
        }
      }
    };
    const auto move = [&](int by) __attribute__((always_inline)) {
      // Opaque, so that the compiler does not make a pointer of every row.
      INGOT_UNROLL for (int g = 0; g < kGroups; ++g) {
        group[g] += by * 4;
        __asm__("" : "+r"(group[g]));
      }
      w += by * 128;
    };
    for (; count >= 2; count -= 2) add(0), add(1), move(2);
    if (count != 0) add(0);
  }
}

/// The sums of a tile of R rows, from where they lie, by C vectors of a panel from its `column` on.
template <int R, int C>
INGOT_INLINE void tile_in_place(const BlockProduct& p, int column, const Sums& sums) {
  const PlacedRows& placed = *p.placed;
  const PlacedTile& tile = *p.tile;
  const std::byte* w = p.w + column * 4;
  Vec a[R][C];
  INGOT_UNROLL for (int c = 0; c < C; ++c) {
    const Vec start = p.starts == nullptr ? zero() : load((const float*)(p.starts + column + c * kLanes));
    INGOT_UNROLL for (int r = 0; r < R; ++r) a[r][c] = start;
  }
  const std::int64_t of_tap = placed.quads * 128;
  w += tile.first_line * placed.taps * of_tap;
  for (int line = tile.first_line; line < tile.end_line; ++line) {
    const std::byte* x = placed.x + tile.at + line * placed.line_stride;
    const auto add_taps = [&]<int First, int Last>(std::integer_sequence<int, First, Last>, int taps) __attribute__((always_inline)) {
      const int runs = placed.together ? taps != 0 : taps, run = placed.together ? taps : 1;
      for (int i = 0; i < runs; ++i) {
        add_quads<First, Last>(a, x, placed.row_stride, w, run * placed.quads);
        x += run * placed.tap_stride;
        w += run * of_tap;
      }
    };
    if (tile.left != 0) add_taps(std::integer_sequence<int, 1, R>(), tile.left);
    add_taps(std::integer_sequence<int, 0, R>(), placed.taps - tile.left - tile.right);
    if (tile.right != 0) add_taps(std::integer_sequence<int, 0, R - 1>(), tile.right);
  }
  end_sums<UnsignedQuads>(p, a, sums);
}

template <int R>
void tile_of_rows(const BlockProduct& p, int, const Sums& sums, const Ahead&) {
  if constexpr (R * 2 * kVecRegisters <= kAccumulatorRegisters) {
    tile_in_place<R, 2>(p, 0, sums);
  } else {
    tile_in_place<R, 1>(p, 0, sums);
    tile_in_place<R, 1>(p, kLanes, sums.moved(kLanes));
  }
}

/// All panels of a job for the tiles of a pass. `start`, for each tile: what its sums begin with, or null.
template <class Start, int... R>
INGOT_INLINE void multiply_placed(const MatmulJob& job, const PlacedRows& placed, std::int64_t first_row, RowsEnd& end, const Start& start,
                                  std::integer_sequence<int, R...>) {
  static constexpr RowsProduct by_rows[] = {tile_of_rows<R + 1>...};
  BlockProduct product{};
  product.panels = 1;
  product.first = product.last = true;
  product.end = &end;
  product.placed = &placed;
  const std::int64_t panel_bytes = job.k / 4 * 128;
  end.first_row = first_row;
  for (std::int64_t unit = 0; unit < job.units; ++unit) {
    product.w = job.w + unit * panel_bytes;
    end.place(unit * kPanel, kPanel);
    end.look_at_panel();
    for (int i = 0; i < placed.count; ++i) {
      product.tile = &placed.tiles[i];
      product.starts = start(product.w, i);
      multiply_block(by_rows[product.tile->rows - 1], product, product.tile->row, product.tile->rows, {});
    }
  }
}
#endif

#if INGOT_UNSIGNED_QUADS
/// Rows of a job from the first one on that are read from where they lie, up to the pass that has a negative value; returns the row behind them.
inline std::int64_t run_in_place(const MatmulJob& job, RowsEnd& end) {
  PlacedRows placed;
  std::int64_t row = 0;
  if (!lies_in_place(job, kRows, placed)) return row;
  const std::int64_t most = rows_in_place(job, placed, job.units * (job.k / 4 * 128));
  while (row < job.rows) {
    const Placed pass = place_rows(job, row, most, kRows, placed);
    if (!pass.suits) break;
    multiply_placed(job, placed, row, end, [](const std::byte*, int) -> const std::int32_t* { return nullptr; }, std::make_integer_sequence<int, kRows>());
    row += pass.rows;
  }
  return row;
}
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
/// Rows of a job from that one on by raised lines, if they suit; returns the row behind them.
inline std::int64_t run_raised(const MatmulJob& job, RowsEnd& end, std::int64_t row) {
  RaisedLines plan;
  if (!reads_raised(job, kRows, plan)) return row;
  PlacedRows placed;
  place_lines(job, plan, placed);
  const std::int64_t of_line = placed.taps * placed.quads * 4;  // of k
  alignas(64) std::int32_t starts[kPanel];
  while (row < job.rows) {
    const std::int64_t behind = raise_lines(job, plan, row, kRows, placed);
    const auto start = [&](const std::byte* w, int i) -> const std::int32_t* {
      const PlacedTile &tile = placed.tiles[i], &before = placed.tiles[i == 0 ? 0 : i - 1];
      if (i == 0 || tile.first_line != before.first_line || tile.end_line != before.end_line)
        start_signed(w + tile.first_line * of_line * kPanel, (int)((tile.end_line - tile.first_line) * of_line), starts);
      return starts;
    };
    multiply_placed(job, placed, row, end, start, std::make_integer_sequence<int, kRows>());
    row = behind;
  }
  return row;
}
#endif

/// A job of rows of int8.
inline void run_quads(const MatmulJob& job) {
  RowsEnd end;
  const bool ended = ends_rows<Quads>(job, end);
  std::int64_t row = 0;
#if INGOT_UNSIGNED_QUADS
  if (ended) row = run_in_place(job, end);
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  if (ended) row = run_raised(job, end, row);
#endif
  if (row < job.rows) run_rows<Quads>(job, end, ended, row, job.rows);
}

/// What every level with code of its own for int8 has. The host half gives the memory that run_raised copies to.
constexpr PackedProduct kQuadsProduct = {
    .run = run_quads,
    .blocking = Quads::blocking,
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    .raises = true,
#endif
};

}  // namespace

}  // namespace ingot::INGOT_LEVEL
