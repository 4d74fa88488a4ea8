// Operands of products that are computed: strided rows of a packed as the products read them, and columns of b packed as panels.
//
// Where neighbours of the packed form lie far apart in memory, blocks of 8 by 8 words are turned in registers.
#pragma once

#include "matmul.h"
#include "matmul_patches.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

typedef float Words8 __attribute__((vector_size(32)));
typedef std::int32_t Places8 __attribute__((vector_size(32)));

/// A block of 8 x 8 words: to[i][j] = from[j][i].
INGOT_INLINE void turn_block(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  Words8 a[8], b[8];
  _Pragma("GCC unroll 8") for (int i = 0; i < 8; ++i) __builtin_memcpy(&a[i], from + i * from_stride, 32);
  const Places8 low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
  _Pragma("GCC unroll 8") for (int i = 0; i < 8; i += 2) {
    b[i] = __builtin_shuffle(a[i], a[i + 1], low);
    b[i + 1] = __builtin_shuffle(a[i], a[i + 1], high);
  }
  const Places8 first = {0, 1, 8, 9, 4, 5, 12, 13}, second = {2, 3, 10, 11, 6, 7, 14, 15};
  _Pragma("GCC unroll 8") for (int i = 0; i < 8; i += 4) {
    a[i] = __builtin_shuffle(b[i], b[i + 2], first);
    a[i + 1] = __builtin_shuffle(b[i], b[i + 2], second);
    a[i + 2] = __builtin_shuffle(b[i + 1], b[i + 3], first);
    a[i + 3] = __builtin_shuffle(b[i + 1], b[i + 3], second);
  }
  const Places8 left = {0, 1, 2, 3, 8, 9, 10, 11}, right = {4, 5, 6, 7, 12, 13, 14, 15};
  _Pragma("GCC unroll 8") for (int i = 0; i < 4; ++i) {
    b[i] = __builtin_shuffle(a[i], a[i + 4], left);
    b[i + 4] = __builtin_shuffle(a[i], a[i + 4], right);
  }
  _Pragma("GCC unroll 8") for (int i = 0; i < 8; ++i) __builtin_memcpy(to + i * to_stride, &b[i], 32);
}

/// to[i][j] = from[j][i] for i < rows, j < columns; strides in words.
inline void turn_words(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride, std::int64_t rows,
                       std::int64_t columns) {
  const std::int64_t whole_rows = rows & -8, whole_columns = columns & -8;
  for (std::int64_t j = 0; j < whole_columns; j += 8)
    for (std::int64_t i = 0; i < whole_rows; i += 8) turn_block(from + j * from_stride + i, from_stride, to + i * to_stride + j, to_stride);
  for (std::int64_t i = whole_rows; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) to[i * to_stride + j] = from[j * from_stride + i];
  for (std::int64_t i = 0; i < whole_rows; ++i)
    for (std::int64_t j = whole_columns; j < columns; ++j) to[i * to_stride + j] = from[j * from_stride + i];
}

INGOT_INLINE void set_value(float* to, float v) { *to = v; }
INGOT_INLINE void set_value(float* to, bfloat16 v) { *to = load_one(&v); }
INGOT_INLINE void set_value(float* to, float16 v) { *to = load_one(&v); }
INGOT_INLINE void set_value(bfloat16* to, bfloat16 v) { *to = v; }
INGOT_INLINE void set_value(std::int8_t* to, std::int8_t v) { *to = v; }

/// Packs values [begin, begin + depth) of rows of x that are not dense, or whose k is in runs, as [row][kXStride bytes].
template <class Source, class Packed>
void pack_strided(const MatmulJob& job, std::int64_t first_row, std::int64_t rows, std::int64_t begin, std::int64_t depth, std::byte* packed) {
  const KRuns& runs = job.runs;
  const std::byte* const x = job.x + first_row * job.x_stride;
  for (std::int64_t k = begin, count; k < begin + depth; k += count, packed += count * (int)sizeof(Packed)) {
    const std::int64_t run = k / runs.length, within = k % runs.length;
    count = smaller(runs.length - within, begin + depth - k);
    const std::byte* const from = x + run * runs.apart + within * runs.step;
    if (runs.step == (int)sizeof(Source)) {
      for (std::int64_t r = 0; r < rows; ++r) copy_values((const Source*)(from + r * job.x_stride), (Packed*)(packed + r * kXStride), (int)count);
      continue;
    }
    if constexpr (__is_same(Source, float)) {
      if (job.x_stride == (int)sizeof(float)) {
        turn_words((const float*)from, runs.step / 4, (float*)packed, kXStride / 4, rows, count);
        continue;
      }
    }
    constexpr std::int64_t kTogether = 16;
    for (std::int64_t first = 0; first < count; first += kTogether)
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = first; i < smaller(first + kTogether, count); ++i)
          set_value((Packed*)(packed + r * kXStride) + i, *(const Source*)(from + r * job.x_stride + i * runs.step));
  }
}

/// 32 dense columns of b, as a panel [k / Depth][32][Depth].
template <class T, int Depth>
INGOT_INLINE void pack_whole_panel(const T* b, std::int64_t k, std::int64_t k_stride, T* panel) {
  static constexpr T kZeros[kPanel] = {};
  constexpr std::int64_t kAhead = 32;  // rows fetched ahead, also behind this b: the next one often follows it
  for (std::int64_t row = 0; row < k; row += Depth, panel += kPanel * Depth) {
    const T* from = b + row * k_stride;
    for (std::int64_t at = kAhead; at < kAhead + Depth; ++at) {
      __builtin_prefetch(from + at * k_stride);
      __builtin_prefetch(from + at * k_stride + kPanel - 1);
    }
    if constexpr (Depth == 1) {
      __builtin_memcpy(panel, from, kPanel * sizeof(T));
    } else {
      const T* next = row + 1 < k ? from + k_stride : kZeros;
      for (int column = 0; column < kPanel; ++column) {
        panel[2 * column] = from[column];
        panel[2 * column + 1] = next[column];
      }
    }
  }
}

/// Some rows of k of up to 32 columns of b, from row `row` of a panel on that is zero where they leave it so.
template <class T, int Depth>
void pack_rows(const T* b, std::int64_t k, std::int64_t columns, std::int64_t k_stride, std::int64_t n_stride, T* panel, std::int64_t row) {
  if (columns == kPanel && n_stride == 1 && row % Depth == 0) return pack_whole_panel<T, Depth>(b, k, k_stride, panel + row * kPanel);
  if constexpr (Depth == 1 && sizeof(T) == 4) {
    float* const to = (float*)panel + row * kPanel;
    if (k_stride == 1) return turn_words((const float*)b, n_stride, to, kPanel, k, columns);
    if (n_stride == 1 && columns > kLanes) {
      for (std::int64_t r = 0; r < k; ++r) {
        const float* const from = (const float*)b + r * k_stride;
        store(to + r * kPanel, load(from));
        store(to + r * kPanel + kLanes, load_partial(from + kLanes, (int)columns - kLanes));
      }
      return;
    }
  }
  const auto place = [&](std::int64_t r, std::int64_t column) {
    return (row + r) / Depth * Depth * kPanel + column * Depth + (row + r) % Depth;
  };
  constexpr std::int64_t kRun = 32;  // columns of b that are dense along k: a run of each in turn
  for (std::int64_t first = 0; first < k; first += kRun) {
    const std::int64_t last = smaller(first + kRun, k);
    if (k_stride == 1) {
      for (std::int64_t column = 0; column < columns; ++column)
        for (std::int64_t r = first; r < last; ++r) panel[place(r, column)] = b[r + column * n_stride];
    } else {
      for (std::int64_t r = first; r < last; ++r)
        for (std::int64_t column = 0; column < columns; ++column) panel[place(r, column)] = b[r * k_stride + column * n_stride];
    }
  }
}

template <class T, int Depth>
void pack_panel(const PanelJob& job) {
  T* const panel = (T*)job.panel;
  if (job.columns < kPanel || job.k % Depth != 0) __builtin_memset(panel, 0, round_up(job.k, Depth) * kPanel * sizeof(T));
  for (std::int64_t k = 0, run = 0; k < job.k; k += job.runs.length, ++run)
    pack_rows<T, Depth>((const T*)(job.b + run * job.runs.apart), smaller(job.runs.length, job.k - k), job.columns,
                        job.runs.step / (int)sizeof(T), job.column_step / (int)sizeof(T), panel, k);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
