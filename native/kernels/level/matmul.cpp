// Matrix products with packed weights for vector units: portable, avx2, avx512, and (bfloat16 only) avx512_bf16.
//
// A register tile of up to kRows rows by one or two vectors of 16 outputs; a row of x is broadcast value by value (bfloat16
// dot products: pair by pair). Limits: none beyond matmul.h; any k, any number of rows.
#include "matmul_blocks.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512F__)
constexpr int kRows = 14, kVecRegisters = 1, kAccumulatorRegisters = 28;
#elif defined(__AVX2__)
constexpr int kRows = 6, kVecRegisters = 2, kAccumulatorRegisters = 12;
#else
constexpr int kRows = 2, kVecRegisters = 4, kAccumulatorRegisters = 8;
#endif

#define INGOT_UNROLL _Pragma("GCC unroll 16")

/// `C` vectors of accumulators of R rows, at offset `part` (in vectors) of the panel.
template <class Kind, int R, int C>
INGOT_INLINE void tile_product(const std::byte* x, const std::byte* w, int steps, float* to, std::int64_t stride, bool first,
                               const std::byte* ahead, std::int64_t advance) {
  Vec a[R][C];
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = first ? zero() : load(to + r * stride + c * kLanes);
  }
  for (int s = 0; s < steps; ++s) {
    __builtin_prefetch(ahead);
    __builtin_prefetch(ahead + 64);
    ahead += advance;
    Kind::template step<R, C>(a, x, w);
    x += Kind::x_bytes;
    w += Kind::w_bytes;
  }
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(to + r * stride + c * kLanes, a[r][c]);
  }
}

template <class Kind, int R>
void rows_product(const std::byte* x, const std::byte* w, int steps, float* to, std::int64_t stride, bool first,
                  const std::byte* ahead, std::int64_t advance) {
  if constexpr (R * 2 * kVecRegisters <= kAccumulatorRegisters) {
    tile_product<Kind, R, 2>(x, w, steps, to, stride, first, ahead, advance);
  } else {
    tile_product<Kind, R, 1>(x, w, steps, to, stride, first, ahead, advance);
    tile_product<Kind, R, 1>(x, w + Kind::w_bytes / 2, steps, to + kLanes, stride, first, ahead, 0);
  }
}

typedef void (*RowsProduct)(const std::byte*, const std::byte*, int, float*, std::int64_t, bool, const std::byte*, std::int64_t);

/// Row blocks of nearly equal height; each fetches its share of the block that comes next.
template <class Kind>
INGOT_INLINE void multiply_rows(const BlockProduct& p) {
  static constexpr RowsProduct by_rows[] = {
      rows_product<Kind, 1>,
      rows_product<Kind, 2>,
#if defined(__AVX2__)
      rows_product<Kind, 3>, rows_product<Kind, 4>, rows_product<Kind, 5>, rows_product<Kind, 6>,
#endif
#if defined(__AVX512F__)
      rows_product<Kind, 7>, rows_product<Kind, 8>, rows_product<Kind, 9>, rows_product<Kind, 10>, rows_product<Kind, 11>,
      rows_product<Kind, 12>, rows_product<Kind, 13>, rows_product<Kind, 14>,
#endif
  };
  const int blocks = (p.rows + kRows - 1) / kRows;
  const int steps = (p.k + Kind::w_depth - 1) / Kind::w_depth;
  if (blocks == 1) {  // the weights are read once: run a fixed distance ahead of them
    by_rows[p.rows - 1](p.x, p.w, steps, p.accumulators, p.stride, p.first, p.w + 4096, Kind::w_bytes);
    return;
  }
  const std::int64_t share = Kind::w_bytes * steps / blocks;
  for (int b = 0; b < blocks; ++b) {
    const int begin = p.rows * b / blocks, rows = p.rows * (b + 1) / blocks - begin;
    by_rows[rows - 1](p.x + begin * kXStride, p.w, steps, p.accumulators + begin * p.stride, p.stride, p.first,
                      p.ahead + b * share, Kind::w_bytes / blocks);
  }
}

template <class T>
struct OneByOne {
  typedef T Source;
  typedef float Packed;
  static constexpr int k_block = 128, k_step = 1, w_depth = 1, w_bytes = kPanel * sizeof(T), x_bytes = 4;
  static constexpr std::int64_t k_outside = 1 << 17;
  static constexpr bool pads_rows = false;
  template <int R, int C>
  INGOT_INLINE void step(Vec (&a)[R][C], const std::byte* x, const std::byte* w) {
    Vec b[C];
    INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = load((const T*)w + c * kLanes);
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
  static constexpr int k_block = 256, k_step = 2, w_depth = 2, w_bytes = kPanel * 4, x_bytes = 4;
  static constexpr std::int64_t k_outside = 1 << 18;
  static constexpr bool pads_rows = false;
  template <int R, int C>
  INGOT_INLINE void step(Vec (&a)[R][C], const std::byte* x, const std::byte* w) {
    __m512bh b[C];
    INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = (__m512bh)_mm512_loadu_si512(w + c * 64);
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
  static constexpr int k_block = 128, k_step = 2, w_depth = 2, w_bytes = kPanel * 4, x_bytes = 8;
  static constexpr std::int64_t k_outside = 1 << 17;
  static constexpr bool pads_rows = false;
  template <int R, int C>
  INGOT_INLINE void step(Vec (&a)[R][C], const std::byte* x, const std::byte* w) {
    Vec even[C], odd[C];
    INGOT_UNROLL for (int c = 0; c < C; ++c) {
      const Ints pair = bits(load((const float*)w + c * kLanes));
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
