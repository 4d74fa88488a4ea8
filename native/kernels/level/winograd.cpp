// Winograd's F(4x4, 3x3), F(2x2, 3x3), F(4x4, 2x2), F(4, 5), F(4, 2) and F(2, 3) for vector units: the transforms on vectors of 16 channels, and
// products of a register tile of up to kRows tiles by 32 outputs, of floats or of pairs of bfloat16. Limits: none beyond winograd.h; any channels, any
// outputs, any number of tiles.
#include "winograd.h"

#include "typed.h"
#include "winograd_transforms.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AVX512F__)
constexpr int kRows = 14, kBothHalves = 14;
#elif defined(__AVX2__)
constexpr int kRows = 6, kBothHalves = 3;
#else
constexpr int kRows = 2, kBothHalves = 1;
#endif
#if defined(__AVX512BF16__)
constexpr bool kPairs = true;
/// The sum so far, and the products of two rows of k.
INGOT_INLINE Vec add_pairs(Vec sum, Vec values, Vec weights) {
  return {_mm512_dpbf16_ps(sum.v, __builtin_bit_cast(__m512bh, values.v), __builtin_bit_cast(__m512bh, weights.v))};
}
#else
constexpr bool kPairs = false;
INGOT_INLINE Vec add_pairs(Vec sum, Vec, Vec) { return sum; }  // never called
#endif
constexpr int kPanel = 32;

INGOT_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

struct Corner {
  std::int64_t image, row, column;  // of the tile's first output
};
/// Which row of the output and the extras that is.
INGOT_INLINE std::int64_t row_of(const WinogradJob& job, const Corner& corner) {
  return corner.image * job.out_image + corner.row * job.out_line + corner.column * job.epilogue.apart;
}
INGOT_INLINE Corner corner_of(const WinogradJob& job, std::int64_t tile) {
  const std::int64_t across = tile % job.tiles_across, rest = tile / job.tiles_across;
  return {rest / job.tiles_down, rest % job.tiles_down * height_of(job.tile), across * width_of(job.tile)};
}

template <class T>
using Patch = const T* [6][6];  // of tiles that read fewer inputs a part
template <class T>
using Line = const T* [8];  // likewise

/// Where transformed inputs go: vectors of 16 rows of k.
struct Transformed {
  float* at;
  std::int64_t position;  // floats from position to position
};
template <bool Paired>
INGOT_INLINE void put(const Transformed& to, int position, Vec value) {
  float* const at = to.at + position * to.position;
#if defined(__AVX512BF16__)
  if constexpr (Paired) return _mm256_storeu_si256((__m256i*)at, (__m256i)_mm512_cvtneps_pbh(value.v));
#endif
  store(at, value);
}
/// That of a tile from a row of k on.
template <bool Paired>
INGOT_INLINE Transformed transformed(const WinogradJob& job, int tile, std::int64_t row) {
  const std::int64_t at = Paired ? row / 2 : row;
  return {job.v + (at / kVDepth * job.tiles + tile) * kVRow + at % kVDepth, job.v_position};
}

/// Where the pixels of a tile's patch lie; zeros outside the image.
template <class T>
INGOT_INLINE void patch_of(const WinogradJob& job, const Corner& corner, Patch<T>& patch) {
  const int size = inputs_of(job.tile);
  const std::int64_t row = corner.row - job.top, column = corner.column - job.left;
  const T* at = (const T*)job.x + corner.image * job.image_stride + row * job.row_stride + column * job.column_stride;
  const bool inside = row >= 0 && column >= 0 && row + size <= job.height && column + size <= job.width;
  for (int i = 0; i < size; ++i, at += job.row_stride)
    for (int j = 0; j < size; ++j) {
      const bool there = inside || (row + i >= 0 && row + i < job.height && column + j >= 0 && column + j < job.width);
      patch[i][j] = there ? at + j * job.column_stride : (const T*)job.zeros;
    }
}

/// Where the pixels of a tile lie that a block of taps reads; zeros outside the image.
template <class T>
INGOT_INLINE void line_of(const WinogradJob& job, const Corner& corner, std::int64_t block, Line<T>& line) {
  const bool down = is_down(job.tile);
  const std::int64_t step = job.taps.stride, reach = down ? job.height : job.width, across = down ? corner.column - job.left : corner.row - job.top;
  const std::int64_t first = (down ? corner.row : corner.column) * step - (down ? job.top : job.left) + job.taps.first_of(block);
  const std::int64_t along = down ? job.row_stride : job.column_stride, other = down ? job.column_stride : job.row_stride;
  const bool there = across >= 0 && across < (down ? job.width : job.height);
  const T* const from = (const T*)job.x + corner.image * job.image_stride + across * other;
  for (int i = 0; i < inputs_of(job.tile); ++i) {
    const std::int64_t at = first + i * step;
    line[i] = there && at >= 0 && at < reach ? from + at * along : (const T*)job.zeros;
  }
}

/// Two rows of a transformed patch: `first` and `second`, which are those of P.
template <Pair P, bool Whole, class T>
INGOT_INLINE void transform_rows(const Patch<T>& patch, std::int64_t channel, int lanes, const Transformed& to, int first, int second) {
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
    INGOT_UNROLL for (int j = 0; j < 6; ++j) put<false>(to, (i == 0 ? first : second) * 6 + j, t[j]);
  }
}

template <int Inputs, bool Paired, bool Whole, class T>
INGOT_INLINE void transform_line(const Line<T>& line, std::int64_t channel, int lanes, const Transformed& to) {
  Vec d[Inputs], t[Inputs];
  INGOT_UNROLL for (int i = 0; i < Inputs; ++i) d[i] = Whole ? load(line[i] + channel) : load_partial(line[i] + channel, lanes);
  transform_input(d, t);
  INGOT_UNROLL for (int i = 0; i < Inputs; ++i) put<Paired>(to, i, t[i]);
}

template <WinogradTile Tile, bool Paired, bool Whole, class T>
INGOT_INLINE void transform_square(const Patch<T>& patch, std::int64_t channel, int lanes, const Transformed& to) {
  if constexpr (Tile != WinogradTile::square_4) {
    constexpr int kInputs = inputs_of(Tile);
    Vec half[kInputs][kInputs];
    INGOT_UNROLL for (int j = 0; j < kInputs; ++j) {
      Vec d[kInputs], t[kInputs];
      INGOT_UNROLL for (int i = 0; i < kInputs; ++i) d[i] = Whole ? load(patch[i][j] + channel) : load_partial(patch[i][j] + channel, lanes);
      transform_input(d, t);
      INGOT_UNROLL for (int i = 0; i < kInputs; ++i) half[i][j] = t[i];
    }
    INGOT_UNROLL for (int i = 0; i < kInputs; ++i) {
      Vec t[kInputs];
      transform_input(half[i], t);
      INGOT_UNROLL for (int j = 0; j < kInputs; ++j) put<Paired>(to, i * kInputs + j, t[j]);
    }
    return;
  }
  transform_rows<kEnds, Whole, T>(patch, channel, lanes, to, 0, 5);
  transform_rows<kNears, Whole, T>(patch, channel, lanes, to, 1, 2);
  transform_rows<kFars, Whole, T>(patch, channel, lanes, to, 3, 4);
}

/// R tiles by C vectors of outputs at one position. `ahead` is fetched meanwhile, `advance` bytes a channel.
template <bool Paired, int R, int C>
INGOT_INLINE void multiply_tiles(const float* v, std::int64_t v_block, const float* u, std::int64_t depth, float* m, std::int64_t m_tile,
                                 const std::byte* ahead, std::int64_t advance) {
  Vec a[R][C];
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = zero();
  }
  for (std::int64_t begin = 0; begin < depth; begin += kVDepth, v += v_block) {
    const std::int64_t rows = smaller(kVDepth, depth - begin);
    const float* x = v;
    for (std::int64_t k = 0; k < rows; ++k) {
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + 64);
      ahead += advance;
      Vec b[C];
      INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = load(u + c * kLanes);
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        const Vec value = broadcast(x[r * kVRow]);
        INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = Paired ? add_pairs(a[r][c], value, b[c]) : fma(value, b[c], a[r][c]);
      }
      u += kPanel;
      ++x;
    }
  }
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(m + r * m_tile + c * kLanes, a[r][c]);
  }
}

template <bool Paired, int R>
void multiply_rows(const float* v, std::int64_t v_block, const float* u, std::int64_t depth, float* m, std::int64_t m_tile,
                   const std::byte* ahead, std::int64_t advance) {
  if constexpr (R <= kBothHalves) {
    multiply_tiles<Paired, R, 2>(v, v_block, u, depth, m, m_tile, ahead, advance);
  } else {
    multiply_tiles<Paired, R, 1>(v, v_block, u, depth, m, m_tile, ahead, advance);
    multiply_tiles<Paired, R, 1>(v, v_block, u + kLanes, depth, m + kLanes, m_tile, (const std::byte*)u, 0);
  }
}

typedef void (*MultiplyRows)(const float* v, std::int64_t v_block, const float* u, std::int64_t depth, float* m, std::int64_t m_tile,
                             const std::byte* ahead, std::int64_t advance);
template <bool Paired>
constexpr MultiplyRows kByRows[] = {
    multiply_rows<Paired, 1>,  multiply_rows<Paired, 2>,
#if defined(__AVX2__)
    multiply_rows<Paired, 3>,  multiply_rows<Paired, 4>,  multiply_rows<Paired, 5>,  multiply_rows<Paired, 6>,
#endif
#if defined(__AVX512F__)
    multiply_rows<Paired, 7>,  multiply_rows<Paired, 8>,  multiply_rows<Paired, 9>,  multiply_rows<Paired, 10>,
    multiply_rows<Paired, 11>, multiply_rows<Paired, 12>, multiply_rows<Paired, 13>, multiply_rows<Paired, 14>,
#endif
};

/// The products of all tiles of the group with one panel at one position. Row blocks of nearly equal height, each of which
/// fetches its share of the weights that come next; a single one runs 8 KiB ahead.
INGOT_INLINE void multiply_position(const WinogradJob& job, const float* v, const float* u, std::int64_t depth, const float* next, float* m) {
  const int blocks = (job.tiles + kRows - 1) / kRows;
  const std::int64_t v_block = (std::int64_t)job.tiles * kVRow, advance = kPanel * 4 / blocks;
  for (int b = 0; b < blocks; ++b) {
    const int first = job.tiles * b / blocks, rows = job.tiles * (b + 1) / blocks - first;
    const std::byte* ahead = blocks == 1 ? (const std::byte*)u + 8192 : (const std::byte*)next + b * advance * depth;
    const auto multiply = kPairs && job.paired ? kByRows<kPairs>[rows - 1] : kByRows<false>[rows - 1];
    multiply(v + first * kVRow, v_block, u, depth, m + first * job.m_tile, job.m_tile, ahead, advance);
  }
}

/// Where 16 outputs of a tile's pixels go as floats, and how: as they are, or with a bias and limits (Clamp).
template <bool Clamped>
struct Destination {
  float* at;
  std::int64_t row, pixel;  // floats from row to row, and from pixel to pixel
  Vec bias, low, high;

  [[gnu::always_inline]] void put(int i, int j, Vec value) const {
    store(at + i * row + j * pixel, Clamped ? min(high, max(low, value + bias)) : value);  // a NaN, as second operand, passes
  }
};

/// Two rows of a tile's outputs (0 and 2, or 1 and 3) for 16 outputs; adds 0 to `faults` when their ends are finite.
template <bool Odd, bool Clamped>
INGOT_INLINE void finish_rows(const float* m, const Destination<Clamped>& to, Vec& faults) {
  Vec half[2][6];
  INGOT_UNROLL for (int j = 0; j < 6; ++j) {
    Vec column[6];
    INGOT_UNROLL for (int i = Odd ? 1 : 0; i < (Odd ? 6 : 5); ++i) column[i] = load(m + (i * 6 + j) * kPanel);
    transform_output<Odd>(column, half[0][j], half[1][j]);
  }
  INGOT_UNROLL for (int i = 0; i < 2; ++i) {
    Vec t[4];
    transform_output<false>(half[i], t[0], t[2]);
    transform_output<true>(half[i], t[1], t[3]);
    INGOT_UNROLL for (int j = 0; j < 4; ++j) to.put(2 * i + Odd, j, t[j]);
    if (i == Odd) faults = fma(t[0] + t[3], zero(), faults);
  }
}

/// A line's outputs for 16 outputs; adds 0 to `faults` when its ends are finite.
template <WinogradTile Tile, bool Clamped>
INGOT_INLINE void finish_line(const float* m, const Destination<Clamped>& to, Vec& faults) {
  constexpr int kInputs = inputs_of(Tile), kOutputs = size_of(Tile);
  Vec from[kInputs], t[kOutputs];
  INGOT_UNROLL for (int i = 0; i < kInputs; ++i) from[i] = load(m + i * kPanel);
  transform_output(from, t);
  INGOT_UNROLL for (int i = 0; i < kOutputs; ++i) to.put(is_down(Tile) ? i : 0, is_down(Tile) ? 0 : i, t[i]);
  faults = fma(t[0] + t[kOutputs - 1], zero(), faults);
}

/// A square's outputs for 16 outputs; adds 0 to `faults` when its corners are finite.
template <WinogradTile Tile, bool Clamped>
INGOT_INLINE void finish_square(const float* m, const Destination<Clamped>& to, Vec& faults) {
  constexpr int kInputs = inputs_of(Tile), kOutputs = size_of(Tile);
  Vec half[kOutputs][kInputs];
  INGOT_UNROLL for (int j = 0; j < kInputs; ++j) {
    Vec column[kInputs], t[kOutputs];
    INGOT_UNROLL for (int i = 0; i < kInputs; ++i) column[i] = load(m + (i * kInputs + j) * kPanel);
    transform_output(column, t);
    INGOT_UNROLL for (int i = 0; i < kOutputs; ++i) half[i][j] = t[i];
  }
  INGOT_UNROLL for (int i = 0; i < kOutputs; ++i) {
    Vec t[kOutputs];
    transform_output(half[i], t);
    INGOT_UNROLL for (int j = 0; j < kOutputs; ++j) to.put(i, j, t[j]);
    if (i == 0 || i + 1 == kOutputs) faults = fma(t[0] + t[kOutputs - 1], zero(), faults);
  }
}

/// A tile's outputs for one panel, `row` floats from row to row and `pixel` from pixel to pixel, with the clamp or as they are; whether its
/// corners are finite.
template <WinogradTile Tile, bool Clamped>
INGOT_INLINE bool finish_tile(const float* m, float* y, std::int64_t row, std::int64_t pixel, [[maybe_unused]] const Clamp* clamp) {
  Vec faults = zero();
  for (int c = 0; c < kPanel; c += kLanes, m += kLanes) {
    Destination<Clamped> to{y + c, row, pixel, zero(), zero(), zero()};
    if constexpr (Clamped) to.bias = load(clamp->bias + c), to.low = broadcast(clamp->low), to.high = broadcast(clamp->high);
    if constexpr (Tile == WinogradTile::square_4) {
      finish_rows<false>(m, to, faults);
      finish_rows<true>(m, to, faults);
    } else if constexpr (is_line(Tile)) {
      finish_line<Tile>(m, to, faults);
    } else {
      finish_square<Tile>(m, to, faults);
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

/// A pixel of x, or zeros.
template <class T>
INGOT_INLINE const T* pixel_of(const WinogradJob& job, std::int64_t image, std::int64_t row, std::int64_t column) {
  const bool inside = row >= 0 && row < job.height && column >= 0 && column < job.width;
  return inside ? (const T*)job.x + image * job.image_stride + row * job.row_stride + column * job.column_stride : (const T*)job.zeros;
}

/// The same outputs as sums of products in the order (row, column, channel) of the weight.
template <class T>
__attribute__((noinline, cold)) void finish_tile_directly(const WinogradJob& job, std::int64_t tile, std::int64_t panel, float* y, std::int64_t row) {
  const Corner corner = corner_of(job, tile);
  const T* const weight = (const T*)(job.weight + panel * job.panel_bytes);
  const std::int64_t down = is_across(job.tile) ? 1 : job.taps.count, across = is_down(job.tile) ? 1 : job.taps.count;
  const std::int64_t step_down = down == 1 ? 1 : job.taps.stride, step_across = across == 1 ? 1 : job.taps.stride;
  for (int i = 0; i < height_of(job.tile); ++i)
    for (int j = 0; j < width_of(job.tile); ++j) {
      Vec a = zero(), b = zero();
      std::int64_t row_of_panel = 0;
      for (std::int64_t tap = 0; tap < down * across; ++tap) {
        const T* from = pixel_of<T>(job, corner.image, (corner.row + i) * step_down - job.top + tap / across,
                                    (corner.column + j) * step_across - job.left + tap % across);
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
template <WinogradTile Tile>
INGOT_INLINE void finish_run(const WinogradJob& job, EpilogueTile& epilogue, std::int64_t tile, int run, std::int64_t panel, const float* m) {
  constexpr std::int64_t kRow = kRunPixels * kPanel;
  for (int i = 0; i < run; ++i) {
    float* y = job.finished + i * width_of(Tile) * kPanel;
    if (!finish_tile<Tile, false>(m + i * job.m_tile, y, kRow, kPanel, nullptr))
      with_floats(job.dtype, (const void*)job.x, [&]<class T>(const T*) { finish_tile_directly<T>(job, tile + i, panel, y, kRow); });
  }
  const Corner corner = corner_of(job, tile);
  const int pixels = (int)smaller(run * width_of(Tile), job.out_width - corner.column);
  const std::int64_t column = panel * kPanel;
  for (std::int64_t i = 0; i < smaller(height_of(Tile), job.out_height - corner.row); ++i)
    run_epilogue(job.epilogue, epilogue, job.finished + i * kRow, kPanel, row_of(job, corner) + i * job.out_line, pixels, column,
                 smaller(kPanel, job.outputs - column));
}

/// The same where the epilogue is a clamp: tiles whose pixels are all inside end in registers.
template <WinogradTile Tile>
INGOT_INLINE void finish_clamped_run(const Clamp& clamp, const WinogradJob& job, EpilogueTile& epilogue, std::int64_t tile, int run,
                                  std::int64_t panel, const float* m) {
  const Corner corner = corner_of(job, tile);
  if (corner.row + height_of(Tile) > job.out_height || corner.column + run * width_of(Tile) > job.out_width)
    return finish_run<Tile>(job, epilogue, tile, run, panel, m);
  const TileOperand& out = job.epilogue.out;
  const std::int64_t row = job.out_line * out.row_stride, pixel = job.epilogue.apart * out.row_stride;
  float* y = (float*)out.data + row_of(job, corner) * out.row_stride + panel * kPanel;
  for (int i = 0; i < run; ++i, m += job.m_tile, y += width_of(Tile) * pixel)
    if (!finish_tile<Tile, true>(m, y, row, pixel, &clamp)) finish_run<Tile>(job, epilogue, tile + i, 1, panel, m);
}

/// The transformed weights of 32 outputs at a value of k: a row of them, or every second bfloat16 of one.
void put_weights(const double* values, std::int64_t k, bool paired, float* rows) {
  if (!paired) {
    for (int l = 0; l < kPanel; ++l) rows[k * kPanel + l] = (float)values[l];
    return;
  }
  bfloat16* const pairs = (bfloat16*)(rows + k / 2 * kPanel) + k % 2;
  for (int l = 0; l < kPanel; ++l) store_one(pairs + 2 * l, (float)values[l]);
}

/// G g Gᵀ of all channels of a panel, from G's rows; `depth` rows of u for each position.
template <int Size, int Taps, class T>
void transform_weights(const double (&g)[Size][Taps], const T* panel, std::int64_t channels, std::int64_t depth, bool paired, float* u) {
  const auto sum = [&](const double (&row)[Taps], const auto& w, int l) {
    double total = row[0] * w[0][l];
    for (int t = 1; t < Taps; ++t) total += row[t] * w[t][l];
    return total;
  };
  for (std::int64_t k = 0; k < channels; ++k) {
    double half[Size][Taps][kPanel];
    for (int i = 0; i < Size; ++i)
      for (int x = 0; x < Taps; ++x) {
        float w[Taps][kPanel];
        for (int y = 0; y < Taps; ++y) weights_of(panel, (Taps * y + x) * channels + k, w[y]);
        for (int l = 0; l < kPanel; ++l) half[i][x][l] = sum(g[i], w, l);
      }
    for (int i = 0; i < Size; ++i)
      for (int j = 0; j < Size; ++j) {
        double to[kPanel];
        for (int l = 0; l < kPanel; ++l) to[l] = sum(g[j], half[i], l);
        put_weights(to, k, paired, u + (i * Size + j) * depth * kPanel);
      }
  }
}

/// G g of a block's channels.
template <int Size, int Taps, class T>
void transform_block(const double (&g)[Size][Taps], const WinogradTaps& taps, std::int64_t block, const T* panel, std::int64_t channels,
                     std::int64_t depth, bool paired, float* u) {
  for (std::int64_t k = 0; k < channels; ++k) {
    float w[Taps][kPanel] = {};
    for (int i = 0; i < Taps; ++i) {
      const std::int64_t tap = taps.first_of(block) + i * taps.stride;
      if (tap < taps.count) weights_of(panel, tap * channels + k, w[i]);
    }
    for (int p = 0; p < Size; ++p) {
      double to[kPanel];
      for (int l = 0; l < kPanel; ++l) {
        to[l] = 0;
        for (int i = 0; i < Taps; ++i) to[l] += g[p][i] * w[i][l];
      }
      put_weights(to, block * block_depth(channels) + k, paired, u + p * depth * kPanel);
    }
  }
}

/// Fetches what the next tile reads beside this one, a line of channels of each pixel: hardware does not see as many runs as a patch has.
template <WinogradTile Tile, class T>
INGOT_INLINE void fetch_next(const WinogradJob& job, const Patch<T>& patch, std::int64_t channel) {
  constexpr int kInputs = inputs_of(Tile), kSize = size_of(Tile);
  if (channel * (int)sizeof(T) % 64 != 0) return;
  const std::int64_t ahead = channel + kSize * job.column_stride;
  INGOT_UNROLL for (int i = 0; i < kInputs; ++i) {
    INGOT_UNROLL for (int j = kInputs - kSize; j < kInputs; ++j) __builtin_prefetch(patch[i][j] + ahead);
  }
}

template <WinogradTile Tile, bool Paired, class T>
INGOT_INLINE void transform_tiles(const WinogradJob& job) {
  for (int tile = 0; tile < job.tiles; ++tile) {
    const Corner corner = corner_of(job, job.first_tile + tile);
    Patch<T> patch;
    patch_of(job, corner, patch);
    for (std::int64_t channel = 0; channel < job.channels; channel += kLanes) {
      const Transformed to = transformed<Paired>(job, tile, channel);
      fetch_next<Tile>(job, patch, channel);
      if (job.channels - channel >= kLanes)
        transform_square<Tile, Paired, true, T>(patch, channel, kLanes, to);
      else
        transform_square<Tile, Paired, false, T>(patch, channel, (int)(job.channels - channel), to);
    }
  }
}

template <WinogradTile Tile, bool Paired, class T>
INGOT_INLINE void transform_lines(const WinogradJob& job) {
  const std::int64_t blocks = job.taps.blocks();
  for (int tile = 0; tile < job.tiles; ++tile) {
    const Corner corner = corner_of(job, job.first_tile + tile);
    std::int64_t k = 0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      Line<T> line;
      line_of(job, corner, block, line);
      for (std::int64_t channel = 0; channel < job.channels; channel += kLanes, k += kLanes) {
        const Transformed to = transformed<Paired>(job, tile, k);
        if (job.channels - channel >= kLanes)
          transform_line<inputs_of(Tile), Paired, true, T>(line, channel, kLanes, to);
        else
          transform_line<inputs_of(Tile), Paired, false, T>(line, channel, (int)(job.channels - channel), to);
      }
    }
  }
}

void transform_weight(const std::byte* panel, DType dtype, std::int64_t channels, WinogradTile tile, const WinogradTaps& taps, bool paired,
                      float* u) {
  with_floats(dtype, (const void*)panel, [&](const auto* w) {
    const std::int64_t rows = is_line(tile) ? taps.blocks() * block_depth(channels) : channels, depth = paired ? (rows + 1) / 2 : rows;
    if (tile == WinogradTile::square_4) return transform_weights(kSquare4Weights, w, channels, depth, paired, u);
    if (tile == WinogradTile::square_2) return transform_weights(kTwoWeights, w, channels, depth, paired, u);
    if (tile == WinogradTile::short_square) return transform_weights(kShortWeights, w, channels, depth, paired, u);
    for (std::int64_t block = 0; block < taps.blocks(); ++block) {
      if (is_short(tile)) transform_block(kShortWeights, taps, block, w, channels, depth, paired, u);
      else if (size_of(tile) == 4) transform_block(kLine4Weights, taps, block, w, channels, depth, paired, u);
      else transform_block(kTwoWeights, taps, block, w, channels, depth, paired, u);
    }
  });
}

/// `act` of the tile and of how its products are.
template <class Act>
INGOT_INLINE void with_tile(const WinogradJob& job, const Act& act) {
  constexpr auto kSquare4 = WinogradTile::square_4, kSquare2 = WinogradTile::square_2;
  constexpr auto kDown4 = WinogradTile::down_4, kDown2 = WinogradTile::down_2;
  if (job.tile == kSquare4) act.template operator()<kSquare4>();
  else if (job.tile == kSquare2) act.template operator()<kSquare2>();
  else if (job.tile == kDown4) act.template operator()<kDown4>();
  else if (job.tile == kDown2) act.template operator()<kDown2>();
  else if (job.tile == WinogradTile::across_4) act.template operator()<WinogradTile::across_4>();
  else if (job.tile == WinogradTile::across_2) act.template operator()<WinogradTile::across_2>();
  else if (job.tile == WinogradTile::short_square) act.template operator()<WinogradTile::short_square>();
  else if (job.tile == WinogradTile::short_down) act.template operator()<WinogradTile::short_down>();
  else act.template operator()<WinogradTile::short_across>();
}

template <WinogradTile Tile, bool Paired, class T>
void transform_inputs_of(const WinogradJob& job) {
  if constexpr (is_line(Tile)) transform_lines<Tile, Paired, T>(job);
  else transform_tiles<Tile, Paired, T>(job);
}

void transform_inputs(const WinogradJob& job) {
  with_tile(job, [&]<WinogradTile Tile>() {
    if constexpr (kPairs && size_of(Tile) == 2)
      if (job.paired) return transform_inputs_of<Tile, true, bfloat16>(job);
    with_floats(job.dtype, (const void*)job.x, [&]<class T>(const T*) { transform_inputs_of<Tile, false, T>(job); });
  });
}

/// Whether a panel's outputs end in registers: there are 32 of them, as float32, and the epilogue is a clamp. Which one.
inline bool ends_in_registers(const WinogradJob& job, const EpilogueTile& epilogue, std::int64_t panel, Clamp& clamp) {
  const std::int64_t column = panel * kPanel;
  if (job.epilogue.out.dtype != DType::float32 || job.outputs - column < kPanel) return false;
  TileOperand extras[kMaxInputs];
  for (int i = 0; i < job.epilogue.extra_count; ++i) extras[i] = moved(job.epilogue.extras[i], 0, 1, column);
  EpilogueJob there = job.epilogue;
  there.extras = extras;
  return clamp_of(there, epilogue, kPanel, clamp);
}

template <WinogradTile Tile>
INGOT_INLINE void finish_outputs(const WinogradJob& job, std::int64_t first, int panels) {
  constexpr std::int64_t kMost = kRunPixels / width_of(Tile);
  EpilogueTile epilogue;
  begin_epilogue(job.epilogue, epilogue);
  for (int panel = 0; panel < panels; ++panel) {
    Clamp clamp;
    const bool clamped = ends_in_registers(job, epilogue, first + panel, clamp);
    for (int tile = 0, run; tile < job.tiles; tile += run) {
      const std::int64_t at = job.first_tile + tile, left = smaller(job.tiles_across - at % job.tiles_across, job.tiles - tile);
      const std::int64_t runs = (left + kMost - 1) / kMost;
      run = (int)((left + runs - 1) / runs);
      const float* const m = job.m + (panel * job.tiles + tile) * job.m_tile;
      if (clamped) finish_clamped_run<Tile>(clamp, job, epilogue, at, run, first + panel, m);
      else finish_run<Tile>(job, epilogue, at, run, first + panel, m);
    }
  }
}

void compute_outputs(const WinogradJob& job, std::int64_t first, int panels) {
  const int positions = positions_of(job.tile);
  const std::int64_t position_floats = job.depth * kPanel, panel_floats = positions * position_floats;
  const float* u = job.u + first * panel_floats;
  for (int position = 0; position < positions; ++position)
    for (int panel = 0; panel < panels; ++panel) {
      const float* from = u + panel * panel_floats + position * position_floats;
      const float* next = panel + 1 < panels ? from + panel_floats : u + (position + 1) * position_floats;
      const std::int64_t depth = position + 1 < positions ? job.depth : job.last_depth;
      multiply_position(job, job.v + position * job.v_position, from, depth, next, job.m + panel * job.tiles * job.m_tile + position * kPanel);
    }
  with_tile(job, [&]<WinogradTile Tile>() { finish_outputs<Tile>(job, first, panels); });
}

}  // namespace

const WinogradTable winograd_table = {kPairs, transform_weight, transform_inputs, compute_outputs};

}  // namespace ingot::INGOT_LEVEL
