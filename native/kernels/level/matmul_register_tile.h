// Register tiles of the products for vector units: up to kRows rows of packed x by one or two vectors of 16 outputs, a row of x broadcast value
// by value, and the loop over such tiles for all rows of a block.
#pragma once

#include <utility>

#include "matmul_blocks.h"
#include "matmul_ends.h"

namespace ingot::INGOT_LEVEL {

namespace {

// kFourPanelsRows, kTwoPanelsRows: rows that take so many panels at once. More than kFetchedPanels are as many streams from memory, which
// hardware fetches best by itself if values are multiplied as they lie there. kFewRows: of a tile that widens narrow weights in registers.
// kInWordsRows: of a block that does so, tile by tile; of more, weights become a panel of wide ones first, which costs more than to widen them
// twice. kGroupRows: of a tile that has the sums of a group beside those of all groups; kIntGroupRows: whole numbers beside floats. AVX-512 has
// registers for both kinds, AVX2 for kIntGroupRows. Its kGroupRows need 12 + 12 of 16, and 4 rows, whose sums would stay there, run 0.90 times as fast.
#if defined(__AVX512F__)
constexpr int kRows = 14, kVecRegisters = 1, kAccumulatorRegisters = 28, kFourPanelsRows = 1, kTwoPanelsRows = 6, kFewRows = 6, kInWordsRows = 12;
constexpr int kFetchedPanels = 1, kGroupRows = 8, kIntGroupRows = 8;
#elif defined(__AVX2__)
constexpr int kRows = 6, kVecRegisters = 2, kAccumulatorRegisters = 12, kFourPanelsRows = 0, kTwoPanelsRows = 1, kFewRows = 2, kInWordsRows = 2;
constexpr int kFetchedPanels = 2, kGroupRows = 6, kIntGroupRows = 4;
#else
constexpr int kRows = 2, kVecRegisters = 4, kAccumulatorRegisters = 8, kFourPanelsRows = 0, kTwoPanelsRows = 0, kFewRows = 0, kInWordsRows = 0;
constexpr int kFetchedPanels = 1, kGroupRows = 2, kIntGroupRows = 2;
#endif

/// Panels that so many rows take at once. What has to become wider first takes its time, and registers.
constexpr int panels_of(bool narrow, std::int64_t rows) { return !narrow && rows <= kFourPanelsRows ? 4 : rows <= kTwoPanelsRows ? 2 : 1; }
constexpr int kAhead = 4096, kNarrowAhead = 8192;  // bytes: weights that are read once are fetched so long before

/// Where the weights go on after this block, fetched while it is computed.
struct Ahead {
  const std::byte* from;
  std::int64_t advance;      // bytes per step
  const std::byte* then;     // from here on at the step `turn`
  int turn;
  bool once;                 // whether no other rows read this block's
};

/// Where sums go: row r at r * stride, a second panel's `apart` further, a third one's `pairs_apart`. Null: to the output, from that row of the
/// pass on.
struct Sums {
  float* to;
  std::int64_t stride, apart, pairs_apart;
  int row;

  Sums moved(std::int64_t by) const { return {to == nullptr ? nullptr : to + by, stride, apart, pairs_apart, row}; }
  float* at(int r, int c) const { return to + r * stride + c / 4 * pairs_apart + c / 2 % 2 * apart + c % 2 * kLanes; }
};

/// How weights lie: as the kind reads them, or as 4 or 8 numbers to a word, which become what it reads in registers. `fetched`: bytes of a
/// step in memory.
template <class Kind, bool Groups>
struct AsRead {
  static constexpr int depth = Kind::w_depth, bytes = Kind::w_bytes, fetched = bytes;
  static constexpr bool groups = Groups, narrow = false;
  template <int>
  INGOT_INLINE auto values(const std::byte* w) { return Kind::values(w); }
};
template <class Kind, Packing How>
struct InWords {
  static constexpr int depth = packed_depth(How), bytes = kPackedBytes, fetched = bytes;
  static constexpr bool groups = How == Packing::int4, narrow = true;
  template <int N>
  INGOT_INLINE auto values(const std::byte* w) { return Kind::template values_of<How, N>(words_at(w, 0)); }
};

/// One step of `Way`, which is one or several of the kind's.
template <class Kind, class Way, int R, int C, class Sum, int... N>
INGOT_INLINE void add_step(Sum (&a)[R][C], const std::byte* x, const std::byte* w, std::int64_t w_apart, std::integer_sequence<int, N...>) {
  const auto add = [&]<int I>(std::integral_constant<int, I>) __attribute__((always_inline)) {
    typename Kind::Values b[C];
    INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = Way::template values<I>(w + c / 2 * w_apart + c % 2 * (Way::bytes / 2));
    Kind::template add<R, C>(a, x + I * Kind::x_bytes, b);
  };
  (add(std::integral_constant<int, N>()), ...);
}

/// A block of words as the panel that the kind reads, by the same conversion.
template <class Kind, Packing How, int... N>
INGOT_INLINE void unpack_words(const std::byte* from, int k, std::byte* panel, std::integer_sequence<int, N...>) {
  for (int row = 0; row < k; row += packed_depth(How), from += kPackedBytes, panel += sizeof...(N) * Kind::w_bytes)
    for (int column = 0; column < kPanel; column += kLanes) {
      const Ints words = words_at(from, column);
      std::byte* const to = panel + column * Kind::w_bytes / kPanel;
      (Kind::store_values(to + N * Kind::w_bytes, Kind::template values_of<How, N>(words)), ...);
    }
}

template <class Kind>
__attribute__((noinline)) void unpack_any(const MatmulJob& job, const std::byte* from, int k, std::byte* panel) {
  constexpr auto four = std::make_integer_sequence<int, 4 / Kind::w_depth>();
  if (job.packing == Packing::int8) return unpack_words<Kind, Packing::int8>(from, k, panel, four);
  if (job.packing == Packing::float8) return unpack_words<Kind, Packing::float8>(from, k, panel, four);
  unpack_words<Kind, Packing::int4>(from, k, panel, std::make_integer_sequence<int, 8 / Kind::w_depth>());
}

/// Fetches what lies ahead at step s, unless hardware does so better.
template <class Way, int C>
INGOT_INLINE void fetch_step(const BlockProduct& p, Ahead& ahead, int s) {
  constexpr int kPanels = (C + 1) / 2;
  if constexpr (kPanels <= kFetchedPanels || Way::narrow) {
    if (s == ahead.turn) ahead.from = ahead.then;
    INGOT_UNROLL for (int panel = 0; panel < kPanels; ++panel) {
      __builtin_prefetch(ahead.from + panel * p.w_apart);
      __builtin_prefetch(ahead.from + panel * p.w_apart + 64);
    }
    ahead.from += ahead.advance;
  }
}

constexpr int kFoundAt = 2048;  // bytes

/// Whether tiles find pages ahead: where arithmetic leaves the time. Hardware fetches wide floats best by itself.
template <class Kind, class Way>
constexpr bool finds_pages = Way::narrow || Kind::integers;

/// Before the step s, at w: each 2 KiB of weights that are read once, it finds the pages in which the next panels are as far. To look up where a page lies
/// takes as long as memory does, and what is fetched a few KiB ahead would wait for that. (Once a block, as it begins, has no effect in pairs of panels;
/// more often costs.)
template <class Kind, class Way, int C>
INGOT_INLINE void find_pages(const BlockProduct& p, const Ahead& ahead, const std::byte* w, int s) {
  if constexpr (finds_pages<Kind, Way>) {
    if (!ahead.once || s * Way::bytes % kFoundAt != 0) return;
    INGOT_UNROLL for (int panel = 0; panel < C / 2; ++panel) __builtin_prefetch(w + (C / 2 + panel) * p.w_apart);
  }
}

/// The sums of each group as int32, from what the packed row says on; times their scale they are added to the float32 sums.
template <class Kind, class Way, int R, int C>
INGOT_INLINE void tile_of_groups(const BlockProduct& p, const std::byte* x, const std::byte* w, const Sums& from, const Sums& sums, int column,
                                 Ahead ahead) {
  constexpr int kSteps = Way::depth / Kind::w_depth;
  const int steps = (p.k + Way::depth - 1) / Way::depth, of_group = p.group / Way::depth;
  const std::byte *scales = p.scales + column * (p.scales_step / kPanel), *starts = x + kRowSum;
  Vec a[R][C];
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = p.first ? zero() : load(from.at(r, c));
  }
  for (int s = 0; s < steps; scales += p.scales_step, starts += 4) {
    Ints sum[R][C];
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Ints start = broadcast_int(*(const std::int32_t*)(starts + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) sum[r][c] = start;
    }
    for (const int end = s + of_group < steps ? s + of_group : steps; s < end; ++s) {
      fetch_step<Way, C>(p, ahead, s);
      add_step<Kind, Way, R, C>(sum, x, w, p.w_apart, std::make_integer_sequence<int, kSteps>());
      x += Kind::x_bytes * kSteps;
      w += Way::bytes;
    }
    Vec scale[C];
    take_scales(p, scales, scale);
    find_pages<Kind, Way, C>(p, ahead, w, s);
    INGOT_UNROLL for (int c = 0; c < C; ++c) {
      INGOT_UNROLL for (int r = 0; r < R; ++r) a[r][c] = fma(to_float(sum[r][c]), scale[c], a[r][c]);
    }
  }
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(sums.at(r, c), a[r][c]);
  }
}

/// What becomes of a tile's sums: they are stored, or end in their registers.
template <class Kind, int R, int C>
INGOT_INLINE void end_sums(const BlockProduct& p, Vec (&a)[R][C], const Sums& sums, int column = 0) {
  if constexpr (Kind::integers) {
    if (p.last) {
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = to_float(bits(a[r][c]));
      }
    }
    if constexpr (C == 2 && kEndsBounded) {
      if (sums.to == nullptr) {
        if (!p.end->floats) return end_bytes(*p.end, a, sums.row);
        return p.end->job->epilogue.out.dtype == DType::float32 ? end_floats<float>(*p.end, a, sums.row) : end_floats<bfloat16>(*p.end, a, sums.row);
      }
    }
  } else if constexpr (C <= 2) {
    if (sums.to == nullptr) return end_tile<typename Kind::Source>(*p.end, a, sums.row, column);
  }
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(sums.at(r, c), a[r][c]);
  }
}

/// A block's sums for R rows and C vectors of outputs: of one panel (1 or 2 vectors), of two (4) or of four (8), `w_apart` bytes apart. `Way`
/// says how values lie in w, and whether those of a group are summed from zero and scaled then.
template <class Kind, class Way, int R, int C>
INGOT_INLINE void tile_product(const BlockProduct& p, const std::byte* x, const std::byte* w, Sums from, Sums sums, int column,
                               Ahead ahead) {
  Vec a[R][C], start[C];
  INGOT_UNROLL for (int c = 0; c < C; ++c) start[c] = zero();
  if constexpr (Kind::starts) {
    if (p.starts != nullptr) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) start[c] = load((const float*)(p.starts + column + c * kLanes));
    }
  }
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c)
      a[r][c] = p.first ? start[c] : load(from.at(r, c));
  }
  if constexpr (Kind::starts) {
    if (p.starts != nullptr && !p.first) {
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = from_bits(bits(a[r][c]) + bits(start[c]));
      }
    }
  }
  if constexpr (requires { &Kind::row_start; }) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Ints of_row = Kind::row_start(x + r * kXStride);
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = from_bits(bits(a[r][c]) + of_row);
    }
  }
  int s = 0;
  const auto add_steps = [&](Vec (&to)[R][C], int end) __attribute__((always_inline)) {
    for (; s < end; ++s) {
      fetch_step<Way, C>(p, ahead, s);
      add_step<Kind, Way, R, C>(to, x, w, p.w_apart, std::make_integer_sequence<int, Way::depth / Kind::w_depth>());
      x += Kind::x_bytes * (Way::depth / Kind::w_depth);
      w += Way::bytes;
    }
  };
  const int steps = (p.k + Way::depth - 1) / Way::depth;
  if constexpr (Way::groups) {
    const std::byte* scales = p.scales + column * (p.scales_step / kPanel);
    for (int end = 0; end < steps; scales += p.scales_step) {
      end = end + p.group / Way::depth < steps ? end + p.group / Way::depth : steps;
      Vec of_group[R][C];
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        INGOT_UNROLL for (int c = 0; c < C; ++c) of_group[r][c] = zero();
      }
      add_steps(of_group, end);
      Vec scale[C];
      take_scales(p, scales, scale);
      find_pages<Kind, Way, C>(p, ahead, w, s);
      INGOT_UNROLL for (int c = 0; c < C; ++c) {
        INGOT_UNROLL for (int r = 0; r < R; ++r) a[r][c] = fma(of_group[r][c], scale[c], a[r][c]);
      }
    }
  } else if constexpr (finds_pages<Kind, Way>) {
    for (int end = 0; end < steps;) {
      add_steps(a, end = end + kFoundAt / Way::bytes < steps ? end + kFoundAt / Way::bytes : steps);
      find_pages<Kind, Way, C>(p, ahead, w, s);
    }
  } else {
    add_steps(a, steps);
  }
  end_sums<Kind>(p, a, sums, column);
}

template <class Kind, class Way, int R, int C>
INGOT_INLINE void any_tile(const BlockProduct& p, const std::byte* x, const std::byte* w, const Sums& from, const Sums& sums, int column,
                           const Ahead& ahead) {
  if constexpr (Kind::sums_of_groups) tile_of_groups<Kind, Way, R, C>(p, x, w, from, sums, column, ahead);
  else tile_product<Kind, Way, R, C>(p, x, w, from, sums, column, ahead);
}

template <class Kind, class Way, int R>
void rows_product(const BlockProduct& p, int first_row, const Sums& sums, const Ahead& ahead) {
  const std::byte* x = p.x + first_row * kXStride;
  const Sums from{p.accumulators + first_row * p.stride, p.stride, p.apart, p.pairs_apart, 0};
  if constexpr (R <= kTwoPanelsRows) {  // few sums to a panel: several panels hide the latency of one another's
    if (p.panels > 1) {
      return by_panels<panels_of(Way::narrow, R)>(p, [&]<int C>(const BlockProduct& part) __attribute__((always_inline)) {
        const std::int64_t further = part.accumulators - p.accumulators;
        any_tile<Kind, Way, R, C>(part, x, part.w, from.moved(further), sums.moved(further), 0, ahead);
      });
    }
  }
  if constexpr (R * 2 * kVecRegisters <= kAccumulatorRegisters) {
    any_tile<Kind, Way, R, 2>(p, x, p.w, from, sums, 0, ahead);
  } else {
    any_tile<Kind, Way, R, 1>(p, x, p.w, from, sums, 0, ahead);
    any_tile<Kind, Way, R, 1>(p, x, p.w + Way::bytes / 2, from.moved(kLanes), sums.moved(kLanes), kLanes, {p.w, Way::bytes, p.w, -1, false});
  }
}

typedef void (*RowsProduct)(const BlockProduct& p, int first_row, const Sums& sums, const Ahead& ahead);

/// Whether a tile can end a panel of fewer than 32 outputs: it stores by masks, and loads nothing.
INGOT_INLINE bool narrow_ends([[maybe_unused]] const RowsEnd& end) {
#if defined(__AVX512F__)
  return end.bias.data == nullptr && end.residual.data == nullptr;
#else
  return false;
#endif
}

/// Ends a row block whose sums multiply(sums) makes, `stride` values from row to row: with null it has to end them in registers.
template <class Multiply>
INGOT_INLINE void end_rows(const RowsEnd& end, int first_row, int rows, std::int64_t stride, const Multiply& multiply) {
  end.fetch(first_row, rows);
  if (end.direct && stride == kPanel && (end.width == kPanel || narrow_ends(end))) return multiply(nullptr);
  alignas(64) float sums[kRows * 2 * kPanel];
  multiply(sums);
  end.run(sums, stride, first_row, rows);
}

/// A row block, and its epilogue if this is the last block of k.
INGOT_INLINE void multiply_block(RowsProduct product, const BlockProduct& p, int first_row, int rows, const Ahead& ahead) {
  if (p.end == nullptr) return product(p, first_row, {p.accumulators + first_row * p.stride, p.stride, p.apart, p.pairs_apart, 0}, ahead);
  const std::int64_t stride = p.panels * kPanel;
  end_rows(*p.end, first_row, rows, stride, [&](float* sums) { product(p, first_row, {sums, stride, kPanel, 2 * kPanel, first_row}, ahead); });
}

/// Row blocks of nearly equal height; each fetches its share of the block that comes next. `most`: rows of the highest one.
template <class Kind, class Way, int... R>
INGOT_INLINE void multiply_rows(const BlockProduct& p, std::integer_sequence<int, R...>) {
  static constexpr RowsProduct by_rows[] = {rows_product<Kind, Way, R + 1>...};
  constexpr int most = sizeof...(R);
  const int blocks = (p.rows + most - 1) / most;
  const int steps = (p.k + Way::depth - 1) / Way::depth;
  if (blocks == 1 && (Way::narrow || !p.unpacked)) {  // the weights are read once: run ahead of them
    const int distance = (Way::narrow ? kNarrowAhead : kAhead) / p.panels;
    multiply_block(by_rows[p.rows - 1], p, 0, p.rows, {p.w + distance, Way::bytes, p.ahead, steps - distance / Way::bytes, true});
    return;
  }
  const std::int64_t share = Way::fetched * steps / blocks;
  for (int b = 0; b < blocks; ++b) {
    const int begin = p.rows * b / blocks, rows = p.rows * (b + 1) / blocks - begin;
    multiply_block(by_rows[rows - 1], p, begin, rows, {p.ahead + b * share, Way::fetched / blocks, nullptr, -1, false});
  }
}

/// By the way in which the block's weights lie. `Groups`: whether panels that the kind reads may have scales of groups.
template <class Kind, bool Groups = true>
INGOT_INLINE void multiply_any(const BlockProduct& p) {
  constexpr auto rows = std::make_integer_sequence<int, kRows>();
  [[maybe_unused]] constexpr auto few = std::make_integer_sequence<int, kFewRows>();
  if constexpr (kFewRows > 0) {
    if (p.packing == Packing::int8) return multiply_rows<Kind, InWords<Kind, Packing::int8>>(p, few);
    if (p.packing == Packing::float8) return multiply_rows<Kind, InWords<Kind, Packing::float8>>(p, few);
    if (p.packing == Packing::int4) return multiply_rows<Kind, InWords<Kind, Packing::int4>>(p, few);
  }
  if constexpr (Groups) if (p.scales != nullptr) return multiply_rows<Kind, AsRead<Kind, true>>(p, std::make_integer_sequence<int, kGroupRows>());
  multiply_rows<Kind, AsRead<Kind, false>>(p, rows);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
