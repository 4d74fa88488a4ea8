// Winograd's F(4x4, 3x3) for vector units: the transforms on vectors of 16 channels, and products of a register tile of up to
// kRows tiles by 32 outputs. Limits: none beyond winograd.h; any channels, any outputs, any number of tiles.
#include "winograd.h"

#include "simd.h"

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

#define INGOT_UNROLL _Pragma("GCC unroll 16")

// The interpolation points other than 0 and infinity are ±kNear and ±kFar.
constexpr float kNear = 5.0f / 8, kFar = 3.0f / 2;
constexpr float kNear2 = kNear * kNear, kFar2 = kFar * kFar;

INGOT_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Bᵀ times a column of six.
INGOT_INLINE void transform_input(const Vec (&d)[6], Vec (&v)[6]) {
  const Vec near2 = broadcast(kNear2), far2 = broadcast(kFar2), sum = broadcast(kNear2 + kFar2), product = broadcast(kNear2 * kFar2);
  v[0] = fma(product, d[0], fnma(sum, d[2], d[4]));
  v[5] = fma(product, d[1], fnma(sum, d[3], d[5]));
  const Vec even_near = fnma(far2, d[2], d[4]), odd_near = fnma(far2, d[1], d[3]);
  const Vec even_far = fnma(near2, d[2], d[4]), odd_far = fnma(near2, d[1], d[3]);
  v[1] = fma(broadcast(kNear), odd_near, even_near);
  v[2] = fnma(broadcast(kNear), odd_near, even_near);
  v[3] = fma(broadcast(kFar), odd_far, even_far);
  v[4] = fnma(broadcast(kFar), odd_far, even_far);
}

/// Aᵀ times a column of six.
INGOT_INLINE void transform_output(const Vec (&m)[6], Vec (&y)[4]) {
  const Vec even_near = m[1] + m[2], odd_near = m[1] - m[2], even_far = m[3] + m[4], odd_far = m[3] - m[4];
  y[0] = m[0] + even_near + even_far;
  y[1] = fma(broadcast(kFar), odd_far, broadcast(kNear) * odd_near);
  y[2] = fma(broadcast(kFar2), even_far, broadcast(kNear2) * even_near);
  y[3] = fma(broadcast(kFar2 * kFar), odd_far, fma(broadcast(kNear2 * kNear), odd_near, m[5]));
}

struct Corner {
  std::int64_t image, row, column;  // of the tile's first output
};
INGOT_INLINE Corner corner_of(const WinogradJob& job, std::int64_t tile) {
  const std::int64_t across = tile % job.tiles_across, rest = tile / job.tiles_across;
  return {rest / job.tiles_down, rest % job.tiles_down * kOutTile, across * kOutTile};
}

/// Where the values of a patch of `size` by `size` pixels from (row, column) on lie; zeros outside the image.
template <int Size>
INGOT_INLINE void patch_at(const WinogradJob& job, const Corner& corner, std::int64_t row, std::int64_t column, const float* (&patch)[Size][Size]) {
  const float* image = job.x + corner.image * job.image_stride;
  for (int i = 0; i < Size; ++i) {
    const bool inside = row + i >= 0 && row + i < job.height;
    for (int j = 0; j < Size; ++j)
      patch[i][j] = inside && column + j >= 0 && column + j < job.width
                        ? image + (row + i) * job.row_stride + (column + j) * job.column_stride
                        : job.zeros;
  }
}

template <bool Whole>
INGOT_INLINE void transform_vector(const float* const (&patch)[6][6], std::int64_t channel, int lanes, float* v, std::int64_t v_position) {
  Vec half[6][6];
  INGOT_UNROLL for (int j = 0; j < 6; ++j) {
    Vec d[6], t[6];
    INGOT_UNROLL for (int i = 0; i < 6; ++i)
      d[i] = Whole ? load(patch[i][j] + channel) : load_partial(patch[i][j] + channel, lanes);
    transform_input(d, t);
    INGOT_UNROLL for (int i = 0; i < 6; ++i) half[i][j] = t[i];
  }
  INGOT_UNROLL for (int i = 0; i < 6; ++i) {
    Vec t[6];
    transform_input(half[i], t);
    INGOT_UNROLL for (int j = 0; j < 6; ++j) store(v + (i * 6 + j) * v_position, t[j]);
  }
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
/// fetches its share of the weights that come next.
INGOT_INLINE void multiply_position(const WinogradJob& job, const float* v, const float* u, const float* next, float* m) {
  const int blocks = (job.tiles + kRows - 1) / kRows;
  const std::int64_t v_block = (std::int64_t)job.tiles * kVRow, advance = kPanel * 4 / blocks;
  for (int b = 0; b < blocks; ++b) {
    const int first = job.tiles * b / blocks, rows = job.tiles * (b + 1) / blocks - first;
    kByRows[rows - 1](v + first * kVRow, v_block, u, job.channels, m + (std::int64_t)first * kMTile,
                      (const std::byte*)next + b * advance * job.channels, advance);
  }
}

/// A tile's 4x4 outputs for one panel, `row` floats from row to row; whether its corners are finite.
INGOT_INLINE bool finish_tile(const float* m, float* y, std::int64_t row) {
  Vec faults = zero();
  for (int c = 0; c < kPanel; c += kLanes) {
    Vec half[4][6];
    INGOT_UNROLL for (int j = 0; j < 6; ++j) {
      Vec column[6], t[4];
      INGOT_UNROLL for (int i = 0; i < 6; ++i) column[i] = load(m + (i * 6 + j) * kPanel + c);
      transform_output(column, t);
      INGOT_UNROLL for (int i = 0; i < 4; ++i) half[i][j] = t[i];
    }
    INGOT_UNROLL for (int i = 0; i < 4; ++i) {
      Vec t[4];
      transform_output(half[i], t);
      INGOT_UNROLL for (int j = 0; j < 4; ++j) store(y + i * row + j * kPanel + c, t[j]);
      if (i == 0 || i == 3) faults = fma(t[0] + t[3], zero(), faults);
    }
  }
  return !any(is_nan(faults));
}

/// The same outputs as sums of products in the order (row, column, channel) of the weight.
__attribute__((noinline, cold)) void finish_tile_directly(const WinogradJob& job, std::int64_t tile, const float* weight, float* y, std::int64_t row) {
  const Corner corner = corner_of(job, tile);
  const float* patch[6][6];
  patch_at(job, corner, corner.row - job.top, corner.column - job.left, patch);
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      Vec a = zero(), b = zero();
      const float* w = weight;
      for (int tap = 0; tap < 9; ++tap) {
        const float* from = patch[i + tap / 3][j + tap % 3];
        for (std::int64_t k = 0; k < job.channels; ++k, w += kPanel) {
          const Vec value = broadcast(from[k]);
          a = fma(value, load(w), a);
          b = fma(value, load(w + kLanes), b);
        }
      }
      store(y + i * row + j * kPanel, a);
      store(y + i * row + j * kPanel + kLanes, b);
    }
}

/// Finishes `run` neighbouring tiles of one panel and runs the expression over their outputs, a row of pixels at a time.
INGOT_INLINE void finish_run(const WinogradJob& job, std::int64_t tile, int run, std::int64_t panel, const float* m) {
  constexpr std::int64_t kRow = kTileRun * kOutTile * kPanel;
  for (int i = 0; i < run; ++i) {
    float* y = job.finished + i * kOutTile * kPanel;
    if (!finish_tile(m + i * kMTile, y, kRow))
      finish_tile_directly(job, tile + i, job.weight + panel * 9 * job.channels * kPanel, y, kRow);
  }
  const Corner corner = corner_of(job, tile);
  const int pixels = (int)smaller(run * kOutTile, job.out_width - corner.column);
  const std::int64_t column = panel * kPanel;
  TileOperand in[1 + kMaxInputs];
  for (std::int64_t i = 0; i < smaller(kOutTile, job.out_height - corner.row); ++i) {
    const std::int64_t pixel = (corner.image * job.out_height + corner.row + i) * job.out_width + corner.column;
    const auto moved = [&](const TileOperand& o) {
      return TileOperand{o.data + (pixel * o.row_stride + column * o.column_stride) * bytes_of(o.dtype), o.dtype, o.row_stride,
                         o.column_stride};
    };
    in[0] = {(std::byte*)(job.finished + i * kRow), DType::float32, kPanel, 1};
    for (int e = 0; e < job.extra_count; ++e) in[1 + e] = moved(job.extras[e]);
    const TileOperand out = moved(job.out);
    job.run_tile(*job.code, in, &out, pixels, (int)smaller(kPanel, job.outputs - column), job.tile_scratch);
  }
}

}  // namespace

void winograd_weight(const float* panel, std::int64_t channels, float* u) {
  // Row p of G is (1, p, p²) over the product of p's distances to the other points; the last one, for infinity, is (0, 0, 1).
  const double a = kNear, b = kFar, zero = a * a * b * b, near = 2 * a * a * (a * a - b * b), far = 2 * b * b * (b * b - a * a);
  const double g[6][3] = {{1 / zero, 0, 0},
                          {1 / near, a / near, a * a / near},
                          {1 / near, -a / near, a * a / near},
                          {1 / far, b / far, b * b / far},
                          {1 / far, -b / far, b * b / far},
                          {0, 0, 1}};
  for (std::int64_t k = 0; k < channels; ++k) {
    double half[6][3][kPanel];
    for (int i = 0; i < 6; ++i)
      for (int x = 0; x < 3; ++x) {
        const float* w = panel + (x * channels + k) * kPanel;
        const std::int64_t down = 3 * channels * kPanel;
        for (int l = 0; l < kPanel; ++l) half[i][x][l] = g[i][0] * w[l] + g[i][1] * w[down + l] + g[i][2] * w[2 * down + l];
      }
    for (int i = 0; i < 6; ++i)
      for (int j = 0; j < 6; ++j) {
        float* to = u + ((i * 6 + j) * channels + k) * kPanel;
        for (int l = 0; l < kPanel; ++l)
          to[l] = (float)(half[i][0][l] * g[j][0] + half[i][1][l] * g[j][1] + half[i][2][l] * g[j][2]);
      }
  }
}

void winograd_inputs(const WinogradJob& job, int first, int last) {
  for (int tile = first; tile < last; ++tile) {
    const Corner corner = corner_of(job, job.first_tile + tile);
    const float* patch[6][6];
    patch_at(job, corner, corner.row - job.top, corner.column - job.left, patch);
    for (std::int64_t channel = 0; channel < job.channels; channel += kLanes) {
      float* v = job.v + (channel / kVDepth * job.tiles + tile) * kVRow + channel % kVDepth;
      if (job.channels - channel >= kLanes)
        transform_vector<true>(patch, channel, kLanes, v, job.v_position);
      else
        transform_vector<false>(patch, channel, (int)(job.channels - channel), v, job.v_position);
    }
  }
}

void winograd_outputs(const WinogradJob& job, std::int64_t first, int panels) {
  const std::int64_t position_floats = job.channels * kPanel, panel_floats = kPositions * position_floats, m_panel = (std::int64_t)job.tiles * kMTile;
  const float* u = job.u + first * panel_floats;
  for (int position = 0; position < kPositions; ++position)
    for (int panel = 0; panel < panels; ++panel) {
      const float* from = u + panel * panel_floats + position * position_floats;
      const float* next = panel + 1 < panels ? from + panel_floats : u + (position + 1) * position_floats;
      multiply_position(job, job.v + position * job.v_position, from, next, job.m + panel * m_panel + position * kPanel);
    }
  for (int tile = 0, run; tile < job.tiles; tile += run) {
    const std::int64_t left = job.tiles_across - (job.first_tile + tile) % job.tiles_across;
    run = (int)smaller(smaller(kTileRun, left), job.tiles - tile);
    for (int panel = 0; panel < panels; ++panel)
      finish_run(job, job.first_tile + tile, run, first + panel, job.m + panel * m_panel + (std::int64_t)tile * kMTile);
  }
}

}  // namespace ingot::INGOT_LEVEL
