// Matrix products with packed weights for vector units: portable, avx2, avx512, and (bfloat16 only) avx512_bf16.
//
// A register tile of up to kRows rows by one or two vectors of 16 outputs; a row of x is broadcast value by value (bfloat16
// dot products: pair by pair). Limits: none beyond matmul.h; any k, any number of rows.
#include "matmul_blocks.h"

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

/// C vectors of accumulators of R rows: of one panel (1 or 2 vectors), or of two (4), `w_apart` bytes and `apart` sums apart.
template <class Kind, int R, int C>
INGOT_INLINE void tile_product(const BlockProduct& p, const std::byte* x, const std::byte* w, float* to, int steps, Ahead ahead) {
  Vec a[R][C];
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c)
      a[r][c] = p.first ? zero() : load(to + r * p.stride + c / 2 * p.apart + c % 2 * kLanes);
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
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(to + r * p.stride + c / 2 * p.apart + c % 2 * kLanes, a[r][c]);
  }
}

template <class Kind, int R>
void rows_product(const BlockProduct& p, int first_row, const Ahead& ahead) {
  const std::byte* x = p.x + first_row * kXStride;
  float* to = p.accumulators + first_row * p.stride;
  const int steps = (p.k + Kind::w_depth - 1) / Kind::w_depth;
  if constexpr (R <= kTwoPanelsRows) {  // few sums to a panel: two panels hide the latency of one another's
    if (p.panels == 2) return tile_product<Kind, R, 4>(p, x, p.w, to, steps, ahead);
  }
  if constexpr (R * 2 * kVecRegisters <= kAccumulatorRegisters) {
    tile_product<Kind, R, 2>(p, x, p.w, to, steps, ahead);
  } else {
    tile_product<Kind, R, 1>(p, x, p.w, to, steps, ahead);
    tile_product<Kind, R, 1>(p, x, p.w + Kind::w_bytes / 2, to + kLanes, steps, {p.w, Kind::w_bytes, p.w, -1});
  }
}

typedef void (*RowsProduct)(const BlockProduct& p, int first_row, const Ahead& ahead);

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
    by_rows[p.rows - 1](p, 0, {p.w + distance, Kind::w_bytes, p.ahead, steps - distance / Kind::w_bytes});
    return;
  }
  const std::int64_t share = Kind::w_bytes * steps / blocks;
  for (int b = 0; b < blocks; ++b) {
    const int begin = p.rows * b / blocks, rows = p.rows * (b + 1) / blocks - begin;
    by_rows[rows - 1](p, begin, {p.ahead + b * share, Kind::w_bytes / blocks, nullptr, -1});
  }
}

template <class T>
struct OneByOne {
  typedef T Source;
  typedef float Packed;
  static constexpr Blocking blocking = kVectorBlocking;
  static constexpr int k_step = 1, w_depth = 1, w_bytes = kPanel * sizeof(T), x_bytes = 4;
  static constexpr bool pads_rows = false;
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
  static constexpr bool pads_rows = false;
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
  static constexpr bool pads_rows = false;
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

}  // namespace

void matmul_bfloat16(const MatmulJob& job) { run_job<Pairs>(job); }
#if !defined(__AVX512BF16__)
void matmul_float32(const MatmulJob& job) { run_job<OneByOne<float>>(job); }
void matmul_float16(const MatmulJob& job) { run_job<OneByOne<float16>>(job); }
#endif

}  // namespace ingot::INGOT_LEVEL
