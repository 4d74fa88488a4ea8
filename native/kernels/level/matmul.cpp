// Matrix products with packed weights for vector units: portable, avx2, avx512, bfloat16 at avx512_bf16, int8 at avx_vnni and
// avx512_vnni.
//
// A register tile of up to kRows rows by one or two vectors of 16 outputs; a row of x is broadcast value by value (bfloat16
// dot products: pair by pair; int8: four by four, also with weights of 4 bits). Limits: none beyond matmul.h; any k, any number of rows.
#include <utility>

#include "matmul_blocks.h"
#include "matmul_grouped.h"
#include "nibbles.h"
#include "quads.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512F__)
constexpr int kRows = 14, kVecRegisters = 1, kAccumulatorRegisters = 28, kTwoPanelsRows = 6, kFewRows = 6;
#elif defined(__AVX2__)
constexpr int kRows = 6, kVecRegisters = 2, kAccumulatorRegisters = 12, kTwoPanelsRows = 1, kFewRows = 2;
#else
constexpr int kRows = 2, kVecRegisters = 4, kAccumulatorRegisters = 8, kTwoPanelsRows = 0, kFewRows = 0;
#endif
constexpr int kAhead = 4096;  // bytes: weights that are read once are fetched so long before

/// Where the weights go on after this block, fetched while it is computed.
struct Ahead {
  const std::byte* from;
  std::int64_t advance;      // bytes per step
  const std::byte* then;     // from here on at the step `turn`
  int turn;
};

/// Where sums go: row r at r * stride, a second panel's `apart` further. Null: to the output, from that row of the pass on.
struct Sums {
  float* to;
  std::int64_t stride, apart;
  int row;
};

template <class T, int R>
[[maybe_unused]] __attribute__((noinline)) void store_each(T* y, std::int64_t stride, const Vec (&a)[R][2]) {
  for (int r = 0; r < R; ++r, y += stride) store(y, a[r][0]), store(y + kLanes, a[r][1]);
}

/// The epilogue of a register tile, in its registers: the same steps in the same order as RowsEnd::run.
template <class T, int R>
INGOT_INLINE void end_tile(const RowsEnd& end, Vec (&a)[R][2], int row) {
  const auto at = [&](const TileOperand& o) { return (T*)o.data + (end.first_row + row) * o.row_stride + end.column; };
  if (end.bias.data != nullptr) {
    const bool wide = end.bias.dtype == DType::float32;
    const float* exact = (const float*)end.bias.data + end.column;
    const T* bias = (const T*)end.bias.data + end.column;
    const Vec b[2] = {wide ? load(exact) : load(bias), wide ? load(exact + kLanes) : load(bias + kLanes)};
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = a[r][c] + b[c];
    }
  }
  if (end.residual.data != nullptr) {
    const T* from = at(end.residual);
    INGOT_UNROLL for (int r = 0; r < R; ++r, from += end.residual.row_stride) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = a[r][c] + load(from + c * kLanes);
    }
  }
  if (end.low != nullptr) {
    const Vec low = load(end.low);
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = max_nan(a[r][c], low);
    }
  }
  T* y = at(end.out);
#if defined(__AVX512F__)
  if (end.width < kPanel) {
    const int first = end.width < kLanes ? (int)end.width : kLanes, second = (int)end.width - first;
    INGOT_UNROLL for (int r = 0; r < R; ++r, y += end.out.row_stride) {
      store_partial(y, a[r][0], first);
      store_partial(y + kLanes, a[r][1], second);
    }
    return;
  }
#endif
#if defined(__AVX512BF16__)
  if (store_rounded(y, end.out.row_stride, a)) return;
  Vec kept[R][2];  // a copy, so that the sums themselves stay in registers
  __builtin_memcpy(kept, a, sizeof kept);
  store_each(y, end.out.row_stride, kept);
#else
  INGOT_UNROLL for (int r = 0; r < R; ++r, y += end.out.row_stride) {
    INGOT_UNROLL for (int c = 0; c < 2; ++c) store(y + c * kLanes, a[r][c]);
  }
#endif
}

/// The same for sums of int8, as scaled_rows ends them: scales, biases, a residual, and bytes in the bounds of the panel.
template <int R>
INGOT_INLINE void end_bytes(const RowsEnd& end, Vec (&a)[R][2], int row) {
  const Chain& chain = end.chain;
  const auto each = [&](const TileOperand& o, auto step) __attribute__((always_inline)) {
    const float* const from = (const float*)o.data + end.column;
    const Vec shared[2] = {load(from), load(from + kLanes)};
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = step(a[r][c], shared[c]);
    }
  };
  const auto added = [](Vec v, Vec w) __attribute__((always_inline)) { return v + w; };
  each(*end.extra(0), [](Vec v, Vec w) __attribute__((always_inline)) { return v * w; });
  if (chain.shifts[0] >= 0) each(*end.extra(chain.shifts[0]), added);
  if (chain.shifts[1] >= 0) each(*end.extra(chain.shifts[1]), added);
  if (chain.residual >= 0) {
    const TileOperand& residual = *end.extra(chain.residual);
    const Link& link = chain.links[chain.residual];
    const Vec zero_point = broadcast(link.zero), scale = broadcast(link.scale);
    const std::int8_t* from = (const std::int8_t*)residual.data + (end.first_row + row) * residual.row_stride + end.column;
    INGOT_UNROLL for (int r = 0; r < R; ++r, from += residual.row_stride) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = a[r][c] + (load(from + c * kLanes) - zero_point) * scale;
    }
  }
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

/// The same where they become bfloat16: scales, a number of each row, biases, a residual, and a lower limit.
template <int R>
INGOT_INLINE void end_halves(const RowsEnd& end, Vec (&a)[R][2], int row) {
  const Chain& chain = end.chain;
  const std::int64_t first = end.first_row + row;
  const auto each = [&](int link, auto step) __attribute__((always_inline)) {
    if (link < 0) return;
    Vec shared[2];
    load_shared(end.extra(link), end.column, shared);
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = step(a[r][c], shared[c]);
    }
  };
  const auto added = [](Vec v, Vec w) __attribute__((always_inline)) { return v + w; };
  each(0, [](Vec v, Vec w) __attribute__((always_inline)) { return v * w; });
  if (chain.factor >= 0) {
    const TileOperand& factors = *end.extra(chain.factor);
    const float* from = (const float*)factors.data + first * factors.row_stride;
    INGOT_UNROLL for (int r = 0; r < R; ++r, from += factors.row_stride) {
      INGOT_UNROLL for (int c = 0; c < 2; ++c) a[r][c] = a[r][c] * broadcast(*from);
    }
  }
  each(chain.shifts[0], added);
  each(chain.shifts[1], added);
  if (chain.residual >= 0) {
    const TileOperand& residual = *end.extra(chain.residual);
    const bfloat16* from = (const bfloat16*)residual.data + first * residual.row_stride + end.column;
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
  bfloat16* y = (bfloat16*)out.data + first * out.row_stride + end.column;
  INGOT_UNROLL for (int r = 0; r < R; ++r, y += out.row_stride) {
    INGOT_UNROLL for (int c = 0; c < 2; ++c) store(y + c * kLanes, a[r][c]);
  }
}

/// How weights lie: as the kind reads them, or as 4 or 8 numbers to a word, which become what it reads in registers.
template <class Kind, bool Groups>
struct AsRead {
  static constexpr int depth = Kind::w_depth, bytes = Kind::w_bytes;
  static constexpr bool groups = Groups;
  template <int>
  INGOT_INLINE auto values(const std::byte* w) { return Kind::values(w); }
};
template <class Kind, Packing How>
struct InWords {
  static constexpr int depth = packed_depth(How), bytes = kPackedBytes;
  static constexpr bool groups = How == Packing::int4;
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

/// The sums of each group as int32, from what the packed row says on; times their scale they are added to the float32 sums, in memory.
template <class Kind, class Way, int R, int C>
INGOT_INLINE void tile_of_groups(const BlockProduct& p, const std::byte* x, const std::byte* w, const float* from, Sums sums, int column,
                                 Ahead ahead) {
  constexpr int kSteps = Way::depth / Kind::w_depth;
  const int steps = (p.k + Way::depth - 1) / Way::depth, of_group = p.group / Way::depth;
  const std::byte *scales = p.scales + column * (p.scales_step / kPanel), *starts = x + kRowSum;
  std::int64_t stride = p.stride, apart = p.apart;  // of `from`
  bool first = p.first;
  for (int s = 0; s < steps; scales += p.scales_step, starts += 4) {
    Ints sum[R][C];
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Ints start = broadcast_int(*(const std::int32_t*)(starts + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) sum[r][c] = start;
    }
    for (const int end = s + of_group < steps ? s + of_group : steps; s < end; ++s) {
      if (s == ahead.turn) ahead.from = ahead.then;
      INGOT_UNROLL for (int panel = 0; panel < (C + 1) / 2; ++panel) {
        __builtin_prefetch(ahead.from + panel * p.w_apart);
        __builtin_prefetch(ahead.from + panel * p.w_apart + 64);
      }
      ahead.from += ahead.advance;
      add_step<Kind, Way, R, C>(sum, x, w, p.w_apart, std::make_integer_sequence<int, kSteps>());
      x += Kind::x_bytes * kSteps;
      w += Way::bytes;
    }
    Vec scale[C];
    take_scales(p, scales, scale);
    INGOT_UNROLL for (int c = 0; c < C; ++c) {
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        const Vec before = first ? zero() : load(from + r * stride + c / 2 * apart + c % 2 * kLanes);
        store(sums.to + r * sums.stride + c / 2 * sums.apart + c % 2 * kLanes, fma(to_float(sum[r][c]), scale[c], before));
      }
    }
    first = false, from = sums.to, stride = sums.stride, apart = sums.apart;
  }
}

/// A block's sums for R rows and C vectors of outputs: of one panel (1 or 2 vectors), or of two (4), `w_apart` bytes and `apart` sums
/// apart. `Way` says how values lie in w, and whether those of a group are summed from zero and scaled then.
template <class Kind, class Way, int R, int C>
INGOT_INLINE void tile_product(const BlockProduct& p, const std::byte* x, const std::byte* w, const float* from, Sums sums, int column,
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
      a[r][c] = p.first ? start[c] : load(from + r * p.stride + c / 2 * p.apart + c % 2 * kLanes);
  }
  if constexpr (Kind::starts) {
    if (p.starts != nullptr && !p.first) {
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = from_bits(bits(a[r][c]) + bits(start[c]));
      }
    }
  }
  int s = 0;
  const auto add_steps = [&](Vec (&to)[R][C], int end) __attribute__((always_inline)) {
    for (; s < end; ++s) {
      if (s == ahead.turn) ahead.from = ahead.then;
      INGOT_UNROLL for (int panel = 0; panel < (C + 1) / 2; ++panel) {
        __builtin_prefetch(ahead.from + panel * p.w_apart);
        __builtin_prefetch(ahead.from + panel * p.w_apart + 64);
      }
      ahead.from += ahead.advance;
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
      INGOT_UNROLL for (int c = 0; c < C; ++c) {
        INGOT_UNROLL for (int r = 0; r < R; ++r) a[r][c] = fma(of_group[r][c], scale[c], a[r][c]);
      }
    }
  } else {
    add_steps(a, steps);
  }
  if constexpr (Kind::integers) {
    if (p.last) {
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = to_float(bits(a[r][c]));
      }
    }
    if constexpr (C == 2 && kEndsBounded) {
      if (sums.to == nullptr) return p.end->halves ? end_halves(*p.end, a, sums.row) : end_bytes(*p.end, a, sums.row);
    }
  } else if constexpr (C == 2) {
    if (sums.to == nullptr) return end_tile<typename Kind::Source>(*p.end, a, sums.row);
  }
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(sums.to + r * sums.stride + c / 2 * sums.apart + c % 2 * kLanes, a[r][c]);
  }
}

template <class Kind, class Way, int R, int C>
INGOT_INLINE void any_tile(const BlockProduct& p, const std::byte* x, const std::byte* w, const float* from, const Sums& sums, int column,
                           const Ahead& ahead) {
  if constexpr (Kind::sums_of_groups) tile_of_groups<Kind, Way, R, C>(p, x, w, from, sums, column, ahead);
  else tile_product<Kind, Way, R, C>(p, x, w, from, sums, column, ahead);
}

template <class Kind, class Way, int R>
void rows_product(const BlockProduct& p, int first_row, const Sums& sums, const Ahead& ahead) {
  const std::byte* x = p.x + first_row * kXStride;
  const float* from = p.accumulators + first_row * p.stride;
  if constexpr (R <= kTwoPanelsRows) {  // few sums to a panel: two panels hide the latency of one another's
    if (p.panels == 2) return any_tile<Kind, Way, R, 4>(p, x, p.w, from, sums, 0, ahead);
  }
  if constexpr (R * 2 * kVecRegisters <= kAccumulatorRegisters) {
    any_tile<Kind, Way, R, 2>(p, x, p.w, from, sums, 0, ahead);
  } else {
    any_tile<Kind, Way, R, 1>(p, x, p.w, from, sums, 0, ahead);
    any_tile<Kind, Way, R, 1>(p, x, p.w + Way::bytes / 2, from + kLanes, {sums.to + kLanes, sums.stride, sums.apart, 0}, kLanes,
                                  {p.w, Way::bytes, p.w, -1});
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

/// A row block, and its epilogue if this is the last block of k.
INGOT_INLINE void multiply_block(RowsProduct product, const BlockProduct& p, int first_row, int rows, const Ahead& ahead) {
  if (p.end == nullptr) return product(p, first_row, {p.accumulators + first_row * p.stride, p.stride, p.apart, 0}, ahead);
  p.end->fetch(first_row, rows);
  constexpr int kWhole = kAccumulatorRegisters / (2 * kVecRegisters);  // rows whose sums of a panel all are in registers
  if (p.end->direct && p.panels == 1 && (p.end->width == kPanel || narrow_ends(*p.end)) && rows <= kWhole)
    return product(p, first_row, {nullptr, 0, 0, first_row}, ahead);
  alignas(64) float sums[kRows * 2 * kPanel];
  const std::int64_t stride = p.panels * kPanel;
  product(p, first_row, {sums, stride, kPanel, 0}, ahead);
  p.end->run(sums, stride, first_row, rows);
}

/// Row blocks of nearly equal height; each fetches its share of the block that comes next. `most`: rows of the highest one.
template <class Kind, class Way, int... R>
INGOT_INLINE void multiply_rows(const BlockProduct& p, std::integer_sequence<int, R...>) {
  static constexpr RowsProduct by_rows[] = {rows_product<Kind, Way, R + 1>...};
  constexpr int most = sizeof...(R);
  const int blocks = (p.rows + most - 1) / most;
  const int steps = (p.k + Way::depth - 1) / Way::depth;
  if (blocks == 1) {  // the weights are read once: run ahead of them
    const int distance = kAhead / p.panels;
    multiply_block(by_rows[p.rows - 1], p, 0, p.rows, {p.w + distance, Way::bytes, p.ahead, steps - distance / Way::bytes});
    return;
  }
  const std::int64_t share = Way::bytes * steps / blocks;
  for (int b = 0; b < blocks; ++b) {
    const int begin = p.rows * b / blocks, rows = p.rows * (b + 1) / blocks - begin;
    multiply_block(by_rows[rows - 1], p, begin, rows, {p.ahead + b * share, Way::bytes / blocks, nullptr, -1});
  }
}

/// By the way in which the block's weights lie.
template <class Kind>
INGOT_INLINE void multiply_any(const BlockProduct& p) {
  constexpr auto rows = std::make_integer_sequence<int, kRows>();
  [[maybe_unused]] constexpr auto few = std::make_integer_sequence<int, kFewRows>();
  if constexpr (kFewRows > 0) {
    if (p.packing == Packing::int8) return multiply_rows<Kind, InWords<Kind, Packing::int8>>(p, few);
    if (p.packing == Packing::float8) return multiply_rows<Kind, InWords<Kind, Packing::float8>>(p, few);
    if (p.packing == Packing::int4) return multiply_rows<Kind, InWords<Kind, Packing::int4>>(p, few);
  }
  if (p.scales != nullptr) return multiply_rows<Kind, AsRead<Kind, true>>(p, rows);
  multiply_rows<Kind, AsRead<Kind, false>>(p, rows);
}

template <class T>
struct OneByOne {
  typedef T Source;
  typedef float Packed;
  typedef Vec Values;
  static constexpr Blocking blocking = kVectorBlocking;
  static constexpr int k_step = 1, w_depth = 1, w_bytes = kPanel * sizeof(T), x_bytes = 4;
  static constexpr bool integers = false, sums_of_groups = false, starts = false, pads_rows = false, ends_rows = true, scales_sums = true;
  static constexpr int two_panels_rows = kTwoPanelsRows, unpacks_rows = kFewRows;
  INGOT_INLINE Values values(const std::byte* w) { return load((const T*)w); }
  template <Packing How, int N>
  INGOT_INLINE Values values_of(Ints words) { return narrow_of<How, N>(words); }
  INGOT_INLINE void store_values(std::byte* to, Values values) { store((T*)to, values); }
  template <int R, int C>
  INGOT_INLINE void add(Vec (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec v = broadcast(*(const float*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(v, b[c], a[r][c]);
    }
  }
  INGOT_INLINE void unpack(const MatmulJob& job, std::int64_t, const std::byte* from, std::int64_t, int k, std::byte* panel) {
    unpack_any<OneByOne>(job, from, k, panel);
  }
  INGOT_INLINE void multiply(const BlockProduct& p) { multiply_any<OneByOne>(p); }
};

#if defined(__AVX512BF16__)
struct Pairs {
  typedef bfloat16 Source;
  typedef bfloat16 Packed;
  typedef __m512bh Values;
  static constexpr Blocking blocking = kPairBlocking;
  static constexpr int k_step = 2, w_depth = 2, w_bytes = kPanel * 4, x_bytes = 4;
  static constexpr bool integers = false, sums_of_groups = false, starts = false, pads_rows = false, ends_rows = true, scales_sums = true;
  static constexpr int two_panels_rows = kTwoPanelsRows, unpacks_rows = kFewRows;
  INGOT_INLINE Values values(const std::byte* w) { return (__m512bh)_mm512_loadu_si512(w); }
  template <Packing How, int N>
  INGOT_INLINE Values values_of(Ints words) { return (__m512bh)pair_of<How, N>(words).v; }
  INGOT_INLINE void store_values(std::byte* to, Values values) { _mm512_storeu_si512(to, (__m512i)values); }
  template <int R, int C>
  INGOT_INLINE void add(Vec (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const __m512bh v = (__m512bh)_mm512_set1_epi32(*(const std::int32_t*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c].v = _mm512_dpbf16_ps(a[r][c].v, v, b[c]);
    }
  }
  INGOT_INLINE void unpack(const MatmulJob& job, std::int64_t, const std::byte* from, std::int64_t, int k, std::byte* panel) {
    unpack_any<Pairs>(job, from, k, panel);
  }
  INGOT_INLINE void multiply(const BlockProduct& p) { multiply_any<Pairs>(p); }
};
#else
struct Pairs {  // without the instruction: the even value of each pair, then the odd one, in float32
  typedef bfloat16 Source;
  typedef float Packed;
  struct Values {
    Vec even, odd;
  };
  static constexpr Blocking blocking = kVectorBlocking;
  static constexpr int k_step = 2, w_depth = 2, w_bytes = kPanel * 4, x_bytes = 8;
  static constexpr bool integers = false, sums_of_groups = false, starts = false, pads_rows = false, ends_rows = true, scales_sums = true;
  static constexpr int two_panels_rows = kTwoPanelsRows, unpacks_rows = kFewRows;
  INGOT_INLINE Values values(const std::byte* w) {
    const Ints pair = bits(load((const float*)w));
    return {from_bits(shift_left<16>(pair)), from_bits(pair & broadcast_int((std::int32_t)0xffff0000))};
  }
  template <Packing How, int N>
  INGOT_INLINE Values values_of(Ints words) { return {narrow_of<How, 2 * N>(words), narrow_of<How, 2 * N + 1>(words)}; }
  INGOT_INLINE void store_values(std::byte* to, Values values) {
    const Ints even = shift_right<16>(bits(values.even)) & broadcast_int(0xffff);
    store((float*)to, from_bits(even | (bits(values.odd) & broadcast_int((std::int32_t)0xffff0000))));
  }
  template <int R, int C>
  INGOT_INLINE void add(Vec (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec v = broadcast(*(const float*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(v, b[c].even, a[r][c]);
    }
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec v = broadcast(*(const float*)(x + r * kXStride + 4));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(v, b[c].odd, a[r][c]);
    }
  }
  INGOT_INLINE void unpack(const MatmulJob& job, std::int64_t, const std::byte* from, std::int64_t, int k, std::byte* panel) {
    unpack_any<Pairs>(job, from, k, panel);
  }
  INGOT_INLINE void multiply(const BlockProduct& p) { multiply_any<Pairs>(p); }
};
#endif

struct Quads {
  typedef std::int8_t Source;
  typedef std::int8_t Packed;
  static constexpr Blocking blocking = kRowSums ? kQuadBlocking : kPairBlocking;  // widened values take as much as bfloat16
  static constexpr int k_step = 4, w_depth = 4, w_bytes = kPanel * 4;
  static constexpr bool integers = true, sums_of_groups = false, starts = false, pads_rows = false, ends_rows = true, scales_sums = false;
  static constexpr int two_panels_rows = kTwoPanelsRows, unpacks_rows = 0;
  INGOT_INLINE void finish_rows(std::byte* packed, std::int64_t rows, int depth) { finish_quads(packed, rows, depth); }
  INGOT_INLINE void multiply(const BlockProduct& p);
};

#if INGOT_UNSIGNED_QUADS
/// Rows without a negative value, or to which 128 was added.
struct UnsignedQuads : Quads {
  typedef Ints Values;
  static constexpr int x_bytes = 4;
  static constexpr bool starts = kRowSums;
  INGOT_INLINE Values values(const std::byte* w) { return bits(load((const float*)w)); }
  template <int R, int C>
  INGOT_INLINE void add(Vec (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Ints v = broadcast_int(*(const std::int32_t*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) {
        Ints sum = bits(a[r][c]);
        add_dot4(sum, b[c], v);
        a[r][c] = from_bits(sum);
      }
    }
  }
};
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
inline void Quads::multiply(const BlockProduct& p) {
  BlockProduct product = p;
  product.starts = nullptr;
  alignas(64) std::int32_t starts[2 * kPanel];
  if (are_signed(p.x)) {
    for (int panel = 0; panel < p.panels; ++panel) start_signed(p.w + panel * p.w_apart, p.k, starts + panel * kPanel);
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

/// Rows of int8 with weights of 4 bits.
struct Nibbles {
  typedef std::int8_t Source;
  typedef std::int8_t Packed;
  typedef Ints Values;
  static constexpr Blocking blocking = kNibbleBlocking;
  static constexpr int k_step = 8, w_depth = 4, w_bytes = kPanel * 4, x_bytes = 4;
  static constexpr bool integers = false, sums_of_groups = true, pads_rows = false, ends_rows = true, scales_sums = true;
  static constexpr int two_panels_rows = kTwoPanelsRows, unpacks_rows = kFewRows;
  INGOT_INLINE void finish_row(const MatmulJob& job, std::byte* row, int depth) {
    pack_for_nibbles(row, (int)round_up(depth, k_step), job.group);
  }
  INGOT_INLINE Values values(const std::byte* w) { return words_at(w, 0); }
  template <Packing, int N>
  INGOT_INLINE Values values_of(Ints words) { return bytes_of_nibbles<N>(words); }
  INGOT_INLINE void store_values(std::byte* to, Values values) { store((float*)to, from_bits(values)); }
  template <int R, int C>
  INGOT_INLINE void add(Ints (&a)[R][C], const std::byte* x, const Values (&b)[C]) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Ints v = broadcast_int(*(const std::int32_t*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) add_bytes(a[r][c], b[c], v);
    }
  }
  INGOT_INLINE void unpack(const MatmulJob&, std::int64_t, const std::byte* from, std::int64_t, int k, std::byte* panel) {
    unpack_words<Nibbles, Packing::int4>(from, k, panel, std::make_integer_sequence<int, 2>());
  }
  INGOT_INLINE void multiply(const BlockProduct& p) {
    if constexpr (kFewRows > 0) {
      if (p.packing == Packing::int4) return multiply_rows<Nibbles, InWords<Nibbles, Packing::int4>>(p, std::make_integer_sequence<int, kFewRows>());
    }
    multiply_rows<Nibbles, AsRead<Nibbles, true>>(p, std::make_integer_sequence<int, kRows>());
  }
};

}  // namespace

// A level has what its instructions make faster than at the level that it extends.
const MatmulTable matmul_table = {
#if defined(__AVX512BF16__)
    .bfloat16 = {run_job<Pairs>, Pairs::blocking, 2, pack_panel<std::uint16_t, 2>},
    .grouped_bfloat16 = run_grouped<PairWords>,
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    .int8 = {run_job<Quads>, Quads::blocking},
    .int8_int4 = {run_job<Nibbles>, Nibbles::blocking},
#if defined(__AVX512VNNI__)
    .grouped_int8 = run_grouped<QuadWords>,
#endif
#else
    .float32 = {run_job<OneByOne<float>>, OneByOne<float>::blocking, 1, pack_panel<std::uint32_t, 1>},
    .float16 = {run_job<OneByOne<float16>>, OneByOne<float16>::blocking, 1, pack_panel<std::uint16_t, 1>},
    .bfloat16 = {run_job<Pairs>, Pairs::blocking, 1, pack_panel<std::uint16_t, 2>},
    .int8 = {run_job<Quads>, Quads::blocking},
    .int8_int4 = {run_job<Nibbles>, Nibbles::blocking},
#if defined(__AVX512F__)
    .grouped_float32 = run_grouped<FloatWords>,
#endif
#endif
};

}  // namespace ingot::INGOT_LEVEL
