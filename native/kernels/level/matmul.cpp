// Matrix products with packed weights for vector units: portable, avx2, avx512, bfloat16 at avx512_bf16, int8 at avx_vnni and
// avx512_vnni.
//
// A register tile of up to kRows rows by one or two vectors of 16 outputs; a row of x is broadcast value by value (bfloat16
// dot products: pair by pair; int8: four by four). Limits: none beyond matmul.h; any k, any number of rows.
#include "matmul_blocks.h"
#include "quads.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512F__)
constexpr int kRows = 14, kVecRegisters = 1, kAccumulatorRegisters = 28, kTwoPanelsRows = 6;
#elif defined(__AVX2__)
constexpr int kRows = 6, kVecRegisters = 2, kAccumulatorRegisters = 12, kTwoPanelsRows = 1;
#else
constexpr int kRows = 2, kVecRegisters = 4, kAccumulatorRegisters = 8, kTwoPanelsRows = 0;
#endif

#define INGOT_UNROLL _Pragma("GCC unroll 16")

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

/// C vectors of accumulators of R rows: of one panel (1 or 2 vectors), or of two (4), `w_apart` bytes and `apart` sums apart.
template <class Kind, int R, int C>
INGOT_INLINE void tile_product(const BlockProduct& p, const std::byte* x, const std::byte* w, const float* from, Sums sums, int steps,
                               Ahead ahead) {
  Vec a[R][C];
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c)
      a[r][c] = p.first ? zero() : load(from + r * p.stride + c / 2 * p.apart + c % 2 * kLanes);
  }
  if constexpr (Kind::row_sums) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Ints sum = broadcast_int(*(const std::int32_t*)(x + r * kXStride + kRowSum));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = from_bits(bits(a[r][c]) + sum);
    }
  }
  for (int s = 0; s < steps; ++s) {
    if (s == ahead.turn) ahead.from = ahead.then;
    INGOT_UNROLL for (int panel = 0; panel < (C + 1) / 2; ++panel) {
      __builtin_prefetch(ahead.from + panel * p.w_apart);
      __builtin_prefetch(ahead.from + panel * p.w_apart + 64);
    }
    ahead.from += ahead.advance;
    Kind::template step<R, C>(a, x, w, p.w_apart);
    x += Kind::x_bytes;
    w += Kind::w_bytes;
  }
  if constexpr (Kind::integers) {
    if (p.last) {
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = to_float(bits(a[r][c]));
      }
    }
  } else if constexpr (C == 2) {
    if (sums.to == nullptr) return end_tile<typename Kind::Source>(*p.end, a, sums.row);
  }
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(sums.to + r * sums.stride + c / 2 * sums.apart + c % 2 * kLanes, a[r][c]);
  }
}

template <class Kind, int R>
void rows_product(const BlockProduct& p, int first_row, const Sums& sums, const Ahead& ahead) {
  const std::byte* x = p.x + first_row * kXStride;
  const float* from = p.accumulators + first_row * p.stride;
  const int steps = (p.k + Kind::w_depth - 1) / Kind::w_depth;
  if constexpr (R <= kTwoPanelsRows) {  // few sums to a panel: two panels hide the latency of one another's
    if (p.panels == 2) return tile_product<Kind, R, 4>(p, x, p.w, from, sums, steps, ahead);
  }
  if constexpr (R * 2 * kVecRegisters <= kAccumulatorRegisters) {
    tile_product<Kind, R, 2>(p, x, p.w, from, sums, steps, ahead);
  } else {
    tile_product<Kind, R, 1>(p, x, p.w, from, sums, steps, ahead);
    tile_product<Kind, R, 1>(p, x, p.w + Kind::w_bytes / 2, from + kLanes, {sums.to + kLanes, sums.stride, sums.apart, 0}, steps,
                             {p.w, Kind::w_bytes, p.w, -1});
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

/// Row blocks of nearly equal height; each fetches its share of the block that comes next.
template <class Kind>
INGOT_INLINE void multiply_rows(const BlockProduct& p) {
  static constexpr RowsProduct by_rows[] = {
      rows_product<Kind, 1>,  rows_product<Kind, 2>,
#if defined(__AVX2__)
      rows_product<Kind, 3>,  rows_product<Kind, 4>,  rows_product<Kind, 5>,  rows_product<Kind, 6>,
#endif
#if defined(__AVX512F__)
      rows_product<Kind, 7>,  rows_product<Kind, 8>,  rows_product<Kind, 9>,  rows_product<Kind, 10>,
      rows_product<Kind, 11>, rows_product<Kind, 12>, rows_product<Kind, 13>, rows_product<Kind, 14>,
#endif
  };
  const int blocks = (p.rows + kRows - 1) / kRows;
  const int steps = (p.k + Kind::w_depth - 1) / Kind::w_depth;
  if (blocks == 1) {  // the weights are read once: run 4 KiB ahead of them
    const int distance = 4096 / p.panels;
    multiply_block(by_rows[p.rows - 1], p, 0, p.rows, {p.w + distance, Kind::w_bytes, p.ahead, steps - distance / Kind::w_bytes});
    return;
  }
  const std::int64_t share = Kind::w_bytes * steps / blocks;
  for (int b = 0; b < blocks; ++b) {
    const int begin = p.rows * b / blocks, rows = p.rows * (b + 1) / blocks - begin;
    multiply_block(by_rows[rows - 1], p, begin, rows, {p.ahead + b * share, Kind::w_bytes / blocks, nullptr, -1});
  }
}

template <class T>
struct OneByOne {
  typedef T Source;
  typedef float Packed;
  static constexpr Blocking blocking = kVectorBlocking;
  static constexpr int k_step = 1, w_depth = 1, w_bytes = kPanel * sizeof(T), x_bytes = 4;
  static constexpr bool integers = false, row_sums = false, pads_rows = false, ends_rows = true;
  static constexpr int two_panels_rows = kTwoPanelsRows;
  template <int R, int C>
  INGOT_INLINE void step(Vec (&a)[R][C], const std::byte* x, const std::byte* w, std::int64_t w_apart) {
    Vec b[C];
    INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = load((const T*)(w + c / 2 * w_apart) + c % 2 * kLanes);
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec v = broadcast(*(const float*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(v, b[c], a[r][c]);
    }
  }
  INGOT_INLINE void multiply(const BlockProduct& p) { multiply_rows<OneByOne>(p); }
};

#if defined(__AVX512BF16__)
struct Pairs {
  typedef bfloat16 Source;
  typedef bfloat16 Packed;
  static constexpr Blocking blocking = kPairBlocking;
  static constexpr int k_step = 2, w_depth = 2, w_bytes = kPanel * 4, x_bytes = 4;
  static constexpr bool integers = false, row_sums = false, pads_rows = false, ends_rows = true;
  static constexpr int two_panels_rows = kTwoPanelsRows;
  template <int R, int C>
  INGOT_INLINE void step(Vec (&a)[R][C], const std::byte* x, const std::byte* w, std::int64_t w_apart) {
    __m512bh b[C];
    INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = (__m512bh)_mm512_loadu_si512(w + c / 2 * w_apart + c % 2 * 64);
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const __m512bh v = (__m512bh)_mm512_set1_epi32(*(const std::int32_t*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c].v = _mm512_dpbf16_ps(a[r][c].v, v, b[c]);
    }
  }
  INGOT_INLINE void multiply(const BlockProduct& p) { multiply_rows<Pairs>(p); }
};
#else
struct Pairs {  // without the instruction: the even value of each pair, then the odd one, in float32
  typedef bfloat16 Source;
  typedef float Packed;
  static constexpr Blocking blocking = kVectorBlocking;
  static constexpr int k_step = 2, w_depth = 2, w_bytes = kPanel * 4, x_bytes = 8;
  static constexpr bool integers = false, row_sums = false, pads_rows = false, ends_rows = true;
  static constexpr int two_panels_rows = kTwoPanelsRows;
  template <int R, int C>
  INGOT_INLINE void step(Vec (&a)[R][C], const std::byte* x, const std::byte* w, std::int64_t w_apart) {
    Vec even[C], odd[C];
    INGOT_UNROLL for (int c = 0; c < C; ++c) {
      const Ints pair = bits(load((const float*)(w + c / 2 * w_apart) + c % 2 * kLanes));
      even[c] = from_bits(shift_left<16>(pair));
      odd[c] = from_bits(pair & broadcast_int((std::int32_t)0xffff0000));
    }
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec v = broadcast(*(const float*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(v, even[c], a[r][c]);
    }
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec v = broadcast(*(const float*)(x + r * kXStride + 4));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(v, odd[c], a[r][c]);
    }
  }
  INGOT_INLINE void multiply(const BlockProduct& p) { multiply_rows<Pairs>(p); }
};
#endif

struct Quads {
  typedef std::int8_t Source;
  typedef std::int8_t Packed;
  static constexpr Blocking blocking = kQuadBlocking;
  static constexpr int k_step = 4, w_depth = 4, w_bytes = kPanel * 4, x_bytes = 4;
  static constexpr bool integers = true, row_sums = kRowSums, pads_rows = false, ends_rows = true;
  static constexpr int two_panels_rows = kTwoPanelsRows;
  INGOT_INLINE void sum_row(std::byte* row, int depth) { store_row_sum(row, depth); }
  template <int R, int C>
  INGOT_INLINE void step(Vec (&a)[R][C], const std::byte* x, const std::byte* w, std::int64_t w_apart) {
    Ints b[C];
    INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = load_quads(w + c / 2 * w_apart + c % 2 * 64);
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Ints v = broadcast_int(*(const std::int32_t*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = from_bits(dot4(bits(a[r][c]), b[c], v));
    }
  }
  INGOT_INLINE void multiply(const BlockProduct& p) { multiply_rows<Quads>(p); }
};

}  // namespace

// A level has what its instructions make faster than at the level that it extends.
const MatmulTable matmul_table = {
#if defined(__AVX512BF16__)
    .bfloat16 = {run_job<Pairs>, Pairs::blocking, pack_panel<std::uint16_t, 2>},
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    .int8 = {run_job<Quads>, Quads::blocking},
#else
    .float32 = {run_job<OneByOne<float>>, OneByOne<float>::blocking, pack_panel<std::uint32_t, 1>},
    .float16 = {run_job<OneByOne<float16>>, OneByOne<float16>::blocking, pack_panel<std::uint16_t, 1>},
    .bfloat16 = {run_job<Pairs>, Pairs::blocking, pack_panel<std::uint16_t, 2>},
    .int8 = {run_job<Quads>, Quads::blocking},
#endif
};

}  // namespace ingot::INGOT_LEVEL
