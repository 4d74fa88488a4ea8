// Winograd's F(4x4, 3x3) and F(2x2, 3x3) for vector units: the transforms on vectors of 16 channels, and products of a register tile of up to
// kRows tiles by 32 outputs. Limits: none beyond winograd.h; any channels, any outputs, any number of tiles.
#include "winograd.h"

#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512F__)
constexpr int kRows = 14, kBothHalves = 14;
#elif defined(__AVX2__)
constexpr int kRows = 6, kBothHalves = 3;
#else
constexpr int kRows = 2, kBothHalves = 1;
#endif
constexpr int kPanel = 32;

// The interpolation points other than 0 and infinity are ±kNear and ±kFar.
constexpr float kNear = 5.0f / 8, kFar = 3.0f / 2;
constexpr float kNear2 = kNear * kNear, kFar2 = kFar * kFar;

INGOT_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// The transforms of F(4x4, 3x3) go by pairs of rows, so that what lies between their two passes stays in registers.
enum Pair { kEnds, kNears, kFars };  // rows 0 and 5, 1 and 2, 3 and 4 of Bᵀ

/// Two rows of Bᵀ times a column of six.
template <Pair P>
INGOT_INLINE void transform_input(const Vec (&d)[6], Vec& first, Vec& second) {
  if constexpr (P == kEnds) {
    const Vec sum = broadcast(kNear2 + kFar2), product = broadcast(kNear2 * kFar2);
    first = fma(product, d[0], fnma(sum, d[2], d[4]));
    second = fma(product, d[1], fnma(sum, d[3], d[5]));
  } else {
    const Vec point = broadcast(P == kNears ? kNear : kFar), other2 = broadcast(P == kNears ? kFar2 : kNear2);
    const Vec even = fnma(other2, d[2], d[4]), odd = fnma(other2, d[1], d[3]);
    first = fma(point, odd, even);
    second = fnma(point, odd, even);
  }
}

INGOT_INLINE void transform_input(const Vec (&d)[6], Vec (&v)[6]) {
  transform_input<kEnds>(d, v[0], v[5]);
  transform_input<kNears>(d, v[1], v[2]);
  transform_input<kFars>(d, v[3], v[4]);
}

/// Rows 0 and 2 (Odd: 1 and 3) of Aᵀ times a column of six.
template <bool Odd>
INGOT_INLINE void transform_output(const Vec (&m)[6], Vec& first, Vec& second) {
  if constexpr (Odd) {
    const Vec near = m[1] - m[2], far = m[3] - m[4];
    first = fma(broadcast(kFar), far, broadcast(kNear) * near);
    second = fma(broadcast(kFar2 * kFar), far, fma(broadcast(kNear2 * kNear), near, m[5]));
  } else {
    const Vec near = m[1] + m[2], far = m[3] + m[4];
    first = m[0] + near + far;
    second = fma(broadcast(kFar2), far, broadcast(kNear2) * near);
  }
}

// The transforms of F(2x2, 3x3), whose points are 0, ±1 and infinity.

INGOT_INLINE void transform_input(const Vec (&d)[4], Vec (&v)[4]) {
  v[0] = d[0] - d[2];
  v[1] = d[1] + d[2];
  v[2] = d[2] - d[1];
  v[3] = d[3] - d[1];
}

INGOT_INLINE void transform_output(const Vec (&m)[4], Vec (&y)[2]) {
  y[0] = m[0] + m[1] + m[2];
  y[1] = m[1] - m[2] + m[3];
}

struct Corner {
  std::int64_t image, row, column;  // of the tile's first output
};
INGOT_INLINE Corner corner_of(const WinogradJob& job, std::int64_t tile) {
  const std::int64_t across = tile % job.tiles_across, rest = tile / job.tiles_across;
  return {rest / job.tiles_down, rest % job.tiles_down * job.tile, across * job.tile};
}

template <class T>
using Patch = const T* [6][6];  // 4x4 of it for tiles of 2x2

/// Where the pixels of a tile's patch lie; zeros outside the image.
template <class T>
INGOT_INLINE void patch_of(const WinogradJob& job, const Corner& corner, Patch<T>& patch) {
  const int size = job.tile + 2;
  const std::int64_t row = corner.row - job.top, column = corner.column - job.left;
  const T* at = (const T*)job.x + corner.image * job.image_stride + row * job.row_stride + column * job.column_stride;
  const bool inside = row >= 0 && column >= 0 && row + size <= job.height && column + size <= job.width;
  for (int i = 0; i < size; ++i, at += job.row_stride)
    for (int j = 0; j < size; ++j) {
      const bool there = inside || (row + i >= 0 && row + i < job.height && column + j >= 0 && column + j < job.width);
      patch[i][j] = there ? at + j * job.column_stride : (const T*)job.zeros;
    }
}

/// Two rows of a transformed patch: `first` and `second`, which are those of P.
template <Pair P, bool Whole, class T>
INGOT_INLINE void transform_rows(const Patch<T>& patch, std::int64_t channel, int lanes, float* first, float* second,
                                 std::int64_t v_position) {
  Vec half[2][6];
  INGOT_UNROLL for (int j = 0; j < 6; ++j) {
    Vec d[6];
    INGOT_UNROLL for (int i = P == kEnds ? 0 : 1; i < (P == kEnds ? 6 : 5); ++i)
      d[i] = Whole ? load(patch[i][j] + channel) : load_partial(patch[i][j] + channel, lanes);
    transform_input<P>(d, half[0][j], half[1][j]);
  }
  INGOT_UNROLL for (int i = 0; i < 2; ++i) {
    Vec t[6];
    transform_input(half[i], t);
    INGOT_UNROLL for (int j = 0; j < 6; ++j) store((i == 0 ? first : second) + j * v_position, t[j]);
  }
}

template <int Tile, bool Whole, class T>
INGOT_INLINE void transform_vector(const Patch<T>& patch, std::int64_t channel, int lanes, float* v, std::int64_t v_position) {
  if constexpr (Tile == 2) {
    Vec half[4][4];
    INGOT_UNROLL for (int j = 0; j < 4; ++j) {
      Vec d[4], t[4];
      INGOT_UNROLL for (int i = 0; i < 4; ++i) d[i] = Whole ? load(patch[i][j] + channel) : load_partial(patch[i][j] + channel, lanes);
      transform_input(d, t);
      INGOT_UNROLL for (int i = 0; i < 4; ++i) half[i][j] = t[i];
    }
    INGOT_UNROLL for (int i = 0; i < 4; ++i) {
      Vec t[4];
      transform_input(half[i], t);
      INGOT_UNROLL for (int j = 0; j < 4; ++j) store(v + (i * 4 + j) * v_position, t[j]);
    }
    return;
  }
  const std::int64_t row = 6 * v_position;
  transform_rows<kEnds, Whole, T>(patch, channel, lanes, v, v + 5 * row, v_position);
  transform_rows<kNears, Whole, T>(patch, channel, lanes, v + row, v + 2 * row, v_position);
  transform_rows<kFars, Whole, T>(patch, channel, lanes, v + 3 * row, v + 4 * row, v_position);
}

/// R tiles by C vectors of outputs at one position. `ahead` is fetched meanwhile, `advance` bytes a channel.
template <int R, int C>
INGOT_INLINE void multiply_tiles(const float* v, std::int64_t v_block, const float* u, std::int64_t channels, float* m, const std::byte* ahead,
                                 std::int64_t advance) {
  Vec a[R][C];
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = zero();
  }
  for (std::int64_t begin = 0; begin < channels; begin += kVDepth, v += v_block) {
    const std::int64_t depth = smaller(kVDepth, channels - begin);
    const float* x = v;
    for (std::int64_t k = 0; k < depth; ++k) {
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + 64);
      ahead += advance;
      Vec b[C];
      INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = load(u + c * kLanes);
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        const Vec value = broadcast(x[r * kVRow]);
        INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(value, b[c], a[r][c]);
      }
      u += kPanel;
      ++x;
    }
  }
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(m + r * kMTile + c * kLanes, a[r][c]);
  }
}

template <int R>
void multiply_rows(const float* v, std::int64_t v_block, const float* u, std::int64_t channels, float* m, const std::byte* ahead,
                   std::int64_t advance) {
  if constexpr (R <= kBothHalves) {
    multiply_tiles<R, 2>(v, v_block, u, channels, m, ahead, advance);
  } else {
    multiply_tiles<R, 1>(v, v_block, u, channels, m, ahead, advance);
    multiply_tiles<R, 1>(v, v_block, u + kLanes, channels, m + kLanes, (const std::byte*)u, 0);
  }
}

typedef void (*MultiplyRows)(const float* v, std::int64_t v_block, const float* u, std::int64_t channels, float* m, const std::byte* ahead,
                             std::int64_t advance);
constexpr MultiplyRows kByRows[] = {
    multiply_rows<1>,  multiply_rows<2>,
#if defined(__AVX2__)
    multiply_rows<3>,  multiply_rows<4>,  multiply_rows<5>,  multiply_rows<6>,
#endif
#if defined(__AVX512F__)
    multiply_rows<7>,  multiply_rows<8>,  multiply_rows<9>,  multiply_rows<10>,
    multiply_rows<11>, multiply_rows<12>, multiply_rows<13>, multiply_rows<14>,
#endif
};

/// The products of all tiles of the group with one panel at one position. Row blocks of nearly equal height, each of which
/// fetches its share of the weights that come next; a single one runs 8 KiB ahead.
INGOT_INLINE void multiply_position(const WinogradJob& job, const float* v, const float* u, const float* next, float* m) {
  const int blocks = (job.tiles + kRows - 1) / kRows;
  const std::int64_t v_block = (std::int64_t)job.tiles * kVRow, advance = kPanel * 4 / blocks;
  for (int b = 0; b < blocks; ++b) {
    const int first = job.tiles * b / blocks, rows = job.tiles * (b + 1) / blocks - first;
    const std::byte* ahead = blocks == 1 ? (const std::byte*)u + 8192 : (const std::byte*)next + b * advance * job.channels;
    kByRows[rows - 1](v + first * kVRow, v_block, u, job.channels, m + (std::int64_t)first * kMTile, ahead, advance);
  }
}

/// Two rows of a tile's outputs (0 and 2, or 1 and 3) for 16 outputs; adds 0 to `faults` when their ends are finite.
template <bool Odd>
INGOT_INLINE void finish_rows(const float* m, float* y, std::int64_t row, Vec& faults) {
  Vec half[2][6];
  INGOT_UNROLL for (int j = 0; j < 6; ++j) {
    Vec column[6];
    INGOT_UNROLL for (int i = Odd ? 1 : 0; i < (Odd ? 6 : 5); ++i) column[i] = load(m + (i * 6 + j) * kPanel);
    transform_output<Odd>(column, half[0][j], half[1][j]);
  }
  INGOT_UNROLL for (int i = 0; i < 2; ++i) {
    float* to = y + (2 * i + Odd) * row;
    Vec t[4];
    transform_output<false>(half[i], t[0], t[2]);
    transform_output<true>(half[i], t[1], t[3]);
    INGOT_UNROLL for (int j = 0; j < 4; ++j) store(to + j * kPanel, t[j]);
    if (i == Odd) faults = fma(t[0] + t[3], zero(), faults);
  }
}

/// A tile's outputs for one panel, `row` floats from row to row; whether its corners are finite.
template <int Tile>
INGOT_INLINE bool finish_tile(const float* m, float* y, std::int64_t row) {
  Vec faults = zero();
  for (int c = 0; c < kPanel; c += kLanes, m += kLanes, y += kLanes) {
    if constexpr (Tile == 4) {
      finish_rows<false>(m, y, row, faults);
      finish_rows<true>(m, y, row, faults);
      continue;
    }
    Vec half[2][4];
    INGOT_UNROLL for (int j = 0; j < 4; ++j) {
      Vec column[4], t[2];
      INGOT_UNROLL for (int i = 0; i < 4; ++i) column[i] = load(m + (i * 4 + j) * kPanel);
      transform_output(column, t);
      half[0][j] = t[0], half[1][j] = t[1];
    }
    INGOT_UNROLL for (int i = 0; i < 2; ++i) {
      Vec t[2];
      transform_output(half[i], t);
      store(y + i * row, t[0]);
      store(y + i * row + kPanel, t[1]);
      faults = fma(t[0] + t[1], zero(), faults);
    }
  }
  return !any(is_nan(faults));
}

/// The weights of 32 outputs at a value of k.
template <class T>
INGOT_INLINE void weights_of(const T* panel, std::int64_t k, float* w) {
  constexpr int kDepth = __is_same(T, bfloat16) ? 2 : 1;
  for (int i = 0; i < kPanel; ++i) w[i] = load_one(panel + (k / kDepth * kPanel + i) * kDepth + k % kDepth);
}

/// The same outputs as sums of products in the order (row, column, channel) of the weight.
template <class T>
__attribute__((noinline, cold)) void finish_tile_directly(const WinogradJob& job, std::int64_t tile, std::int64_t panel, float* y, std::int64_t row) {
  const Corner corner = corner_of(job, tile);
  const T* const weight = (const T*)(job.weight + panel * job.panel_bytes);
  Patch<T> patch;
  patch_of(job, corner, patch);
  for (int i = 0; i < job.tile; ++i)
    for (int j = 0; j < job.tile; ++j) {
      Vec a = zero(), b = zero();
      std::int64_t row_of_panel = 0;
      for (int tap = 0; tap < 9; ++tap) {
        const T* from = patch[i + tap / 3][j + tap % 3];
        for (std::int64_t k = 0; k < job.channels; ++k, ++row_of_panel) {
          float w[kPanel];
          weights_of(weight, row_of_panel, w);
          const Vec value = broadcast(load_one(from + k));
          a = fma(value, load(w), a);
          b = fma(value, load(w + kLanes), b);
        }
      }
      store(y + i * row + j * kPanel, a);
      store(y + i * row + j * kPanel + kLanes, b);
    }
}

/// Finishes `run` neighbouring tiles of one panel and runs the expression over their outputs, a row of pixels at a time.
template <int Tile>
INGOT_INLINE void finish_run(const WinogradJob& job, EpilogueTile& epilogue, std::int64_t tile, int run, std::int64_t panel, const float* m) {
  constexpr std::int64_t kRow = kTileRun * Tile * kPanel;
  for (int i = 0; i < run; ++i) {
    float* y = job.finished + i * Tile * kPanel;
    if (!finish_tile<Tile>(m + i * kMTile, y, kRow))
      with_floats(job.dtype, (const void*)job.x, [&]<class T>(const T*) { finish_tile_directly<T>(job, tile + i, panel, y, kRow); });
  }
  const Corner corner = corner_of(job, tile);
  const int pixels = (int)smaller(run * Tile, job.out_width - corner.column);
  const std::int64_t column = panel * kPanel;
  for (std::int64_t i = 0; i < smaller(Tile, job.out_height - corner.row); ++i) {
    const std::int64_t pixel = (corner.image * job.out_height + corner.row + i) * job.out_width + corner.column;
    run_epilogue(job.epilogue, epilogue, job.finished + i * kRow, kPanel, pixel, pixels, column, smaller(kPanel, job.outputs - column));
  }
}

/// G g Gᵀ of all channels of a panel, from G's rows.
template <int Size, class T>
void transform_weight(const double (&g)[Size][3], const T* panel, std::int64_t channels, float* u) {
  for (std::int64_t k = 0; k < channels; ++k) {
    double half[Size][3][kPanel];
    for (int i = 0; i < Size; ++i)
      for (int x = 0; x < 3; ++x) {
        float w[3][kPanel];
        for (int y = 0; y < 3; ++y) weights_of(panel, (3 * y + x) * channels + k, w[y]);
        for (int l = 0; l < kPanel; ++l) half[i][x][l] = g[i][0] * w[0][l] + g[i][1] * w[1][l] + g[i][2] * w[2][l];
      }
    for (int i = 0; i < Size; ++i)
      for (int j = 0; j < Size; ++j) {
        float* to = u + ((i * Size + j) * channels + k) * kPanel;
        for (int l = 0; l < kPanel; ++l)
          to[l] = (float)(half[i][0][l] * g[j][0] + half[i][1][l] * g[j][1] + half[i][2][l] * g[j][2]);
      }
  }
}

template <int Tile, class T>
INGOT_INLINE void transform_tiles(const WinogradJob& job) {
  for (int tile = 0; tile < job.tiles; ++tile) {
    const Corner corner = corner_of(job, job.first_tile + tile);
    Patch<T> patch;
    patch_of(job, corner, patch);
    for (std::int64_t channel = 0; channel < job.channels; channel += kLanes) {
      float* v = job.v + (channel / kVDepth * job.tiles + tile) * kVRow + channel % kVDepth;
      if (job.channels - channel >= kLanes)
        transform_vector<Tile, true, T>(patch, channel, kLanes, v, job.v_position);
      else
        transform_vector<Tile, false, T>(patch, channel, (int)(job.channels - channel), v, job.v_position);
    }
  }
}

void transform_weight(const std::byte* panel, DType dtype, std::int64_t channels, int tile, float* u) {
  // Row p of G is (1, p, p²) over the product of p's distances to the other points; the last one, for infinity, is (0, 0, 1).
  // F(2x2, 3x3): the signs of the first row of G and of Bᵀ are turned.
  const double a = kNear, b = kFar, zero = a * a * b * b, near = 2 * a * a * (a * a - b * b), far = 2 * b * b * (b * b - a * a);
  const double four[6][3] = {{1 / zero, 0, 0},
                             {1 / near, a / near, a * a / near},
                             {1 / near, -a / near, a * a / near},
                             {1 / far, b / far, b * b / far},
                             {1 / far, -b / far, b * b / far},
                             {0, 0, 1}};
  const double two[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
  with_floats(dtype, (const void*)panel, [&](const auto* w) {
    if (tile == 2) transform_weight(two, w, channels, u);
    else transform_weight(four, w, channels, u);
  });
}

void transform_inputs(const WinogradJob& job) {
  with_floats(job.dtype, (const void*)job.x, [&]<class T>(const T*) {
    if (job.tile == 2) transform_tiles<2, T>(job);
    else transform_tiles<4, T>(job);
  });
}

void compute_outputs(const WinogradJob& job, std::int64_t first, int panels) {
  const int positions = (job.tile + 2) * (job.tile + 2);
  const std::int64_t position_floats = job.channels * kPanel, panel_floats = positions * position_floats, m_panel = (std::int64_t)job.tiles * kMTile;
  const float* u = job.u + first * panel_floats;
  for (int position = 0; position < positions; ++position)
    for (int panel = 0; panel < panels; ++panel) {
      const float* from = u + panel * panel_floats + position * position_floats;
      const float* next = panel + 1 < panels ? from + panel_floats : u + (position + 1) * position_floats;
      multiply_position(job, job.v + position * job.v_position, from, next, job.m + panel * m_panel + position * kPanel);
    }
  EpilogueTile epilogue;
  begin_epilogue(job.epilogue, epilogue);
  for (int tile = 0, run; tile < job.tiles; tile += run) {
    const std::int64_t at = job.first_tile + tile, left = job.tiles_across - at % job.tiles_across;
    run = (int)smaller(smaller(kTileRun, left), job.tiles - tile);
    for (int panel = 0; panel < panels; ++panel) {
      const float* m = job.m + panel * m_panel + (std::int64_t)tile * kMTile;
      if (job.tile == 2) finish_run<2>(job, epilogue, at, run, first + panel, m);
      else finish_run<4>(job, epilogue, at, run, first + panel, m);
    }
  }
}

}  // namespace

const WinogradTable winograd_table = {transform_weight, transform_inputs, compute_outputs};

}  // namespace ingot::INGOT_LEVEL
