// rms_norm, layer_norm and softmax of one row, and the two halves of group_norm, for one level. The host half is
// kernels/norm.cpp.
//
// Every sum over a row runs over four vectors of partial sums in one order that depends on the width alone; those of
// group_norm run down the channels, eight rows at a time, and then over a group's channels.
#include "norm.h"

#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

alignas(64) const float kIota[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/// x in the lanes that the row has from element i on, other in the rest.
INGOT_INLINE Vec within(Vec x, std::int64_t i, std::int64_t width, Vec other) {
  return width - i >= kLanes ? x : select(load(kIota) < broadcast((float)(width - i)), x, other);
}

/// The sum of term(i) over the row's vectors, i being a vector's first element.
template <class F>
INGOT_INLINE float sum_over(std::int64_t width, const F& term) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) sums[j] = sums[j] + term(i + j * kLanes);
  for (int j = 0; i < width; i += kLanes, ++j) sums[j] = sums[j] + term(i);
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <class X, class Y>
void rms_norm_as(const X* x, Row weight, Y* y, std::int64_t width, float eps) {
  const float total = sum_over(width, [=](std::int64_t i) {
    const Vec v = load_tail(x, i, width);
    return v * v;
  });
  const Vec scale = broadcast(1.0f / __builtin_sqrtf(total / (float)width + eps));
  if (weight.data == nullptr) {
    for (std::int64_t i = 0; i < width; i += kLanes) store_tail(y, i, width, load_tail(x, i, width) * scale);
    return;
  }
  with_floats(weight.dtype, (const void*)weight.data, [=](const auto* w) {
    for (std::int64_t i = 0; i < width; i += kLanes)
      store_tail(y, i, width, load_tail(x, i, width) * scale * load_tail(w, i, width));
  });
}

void rms_norm(Row x, Row weight, Row y, std::int64_t width, float eps) {
  with_floats(x.dtype, (const void*)x.data, [&](const auto* from) {
    with_floats(y.dtype, y.data, [&](auto* to) { rms_norm_as(from, weight, to, width, eps); });
  });
}

INGOT_INLINE Vec load_any(Row row, std::int64_t i, std::int64_t width) {
  Vec v = zero();
  with_floats(row.dtype, (const void*)row.data, [&](const auto* p) { v = load_tail(p, i, width); });
  return v;
}

template <class X, class Y>
void layer_norm_as(const X* x, Row weight, Row bias, Y* y, std::int64_t width, float eps) {
  const float mean = sum_over(width, [=](std::int64_t i) { return load_tail(x, i, width); }) / (float)width;
  const Vec center = broadcast(mean);
  const float squares = sum_over(width, [=](std::int64_t i) {
    const Vec d = within(load_tail(x, i, width) - center, i, width, zero());
    return d * d;
  });
  const Vec scale = broadcast(1.0f / __builtin_sqrtf(squares / (float)width + eps));
  for (std::int64_t i = 0; i < width; i += kLanes) {
    Vec v = (load_tail(x, i, width) - center) * scale;
    if (weight.data != nullptr) v = v * load_any(weight, i, width);
    if (bias.data != nullptr) v = v + load_any(bias, i, width);
    store_tail(y, i, width, v);
  }
}

void layer_norm(Row x, Row weight, Row bias, Row y, std::int64_t width, float eps) {
  with_floats(x.dtype, (const void*)x.data, [&](const auto* from) {
    with_floats(y.dtype, y.data, [&](auto* to) { layer_norm_as(from, weight, bias, to, width, eps); });
  });
}

template <class X, class Y>
void softmax_as(const X* x, Y* y, std::int64_t width, bool log_of_it, float* scratch) {
  const Vec lowest = broadcast(-__builtin_inff());
  Vec best = lowest;
  for (std::int64_t i = 0; i < width; i += kLanes) best = max(best, within(load_tail(x, i, width), i, width, lowest));
  const Vec maximum = broadcast(reduce_max(best));
  const float total = sum_over(width, [=](std::int64_t i) {
    const Vec e = within(exp(load_tail(x, i, width) - maximum), i, width, zero());
    if (!log_of_it) store_tail(scratch, i, width, e);
    return e;
  });
  if (!log_of_it) {
    for (std::int64_t i = 0; i < width; i += kLanes) store_tail(y, i, width, load_tail(scratch, i, width) / broadcast(total));
    return;
  }
  const Vec logarithm = log(broadcast(total));
  for (std::int64_t i = 0; i < width; i += kLanes) store_tail(y, i, width, load_tail(x, i, width) - maximum - logarithm);
}

void softmax(Row x, Row y, std::int64_t width, bool log_of_it, float* scratch) {
  with_floats(x.dtype, (const void*)x.data, [&](const auto* from) {
    with_floats(y.dtype, y.data, [&](auto* to) { softmax_as(from, to, width, log_of_it, scratch); });
  });
}

void widen(Row x, float* y, std::int64_t width) { convert(x.data, x.dtype, y, DType::float32, width); }

// ---- group_norm

constexpr int kRows = 8;

/// 16 elements, or the fewer that there are.
template <class T>
INGOT_INLINE Vec load_part(const T* p, std::int64_t count) {
  return count >= kLanes ? load(p) : load_partial(p, (int)count);
}

/// Calls f(first channel, x's rows from there on, how many of them: kRows or 1) for every vector of channels.
template <class T, class F>
INGOT_INLINE void each_vector(const GroupRows& rows, const T* x, const F& f) {
  std::int64_t r = 0;
  for (; r + kRows <= rows.rows; r += kRows, x += kRows * rows.stride)
    for (std::int64_t c = 0; c < rows.channels; c += kLanes) f.template operator()<kRows>(c, x + c);
  for (; r < rows.rows; ++r, x += rows.stride)
    for (std::int64_t c = 0; c < rows.channels; c += kLanes) f.template operator()<1>(c, x + c);
}

template <int N>
INGOT_INLINE Vec sum_of(const Vec* v) {
  if constexpr (N == 1)
    return v[0];
  else
    return sum_of<N / 2>(v) + sum_of<N / 2>(v + N / 2);
}

/// Sums of a group's channels, in order.
INGOT_INLINE float group_sum(const float* sums, std::int64_t group, std::int64_t width) {
  float total = 0;
  for (std::int64_t c = group * width; c < (group + 1) * width; ++c) total += sums[c];
  return total;
}

/// Twice over the rows, which are few enough to stay in L1: means, then distances from them. The sum of the distances, zero but
/// for roundings, corrects both.
template <class T>
void group_statistics_as(const GroupRows& rows, const T* x, float* statistics, float* scratch) {
  const std::int64_t channels = rows.channels, stride = rows.stride, width = channels / rows.groups;
  const std::int64_t padded = (channels + kLanes - 1) / kLanes * kLanes;
  float *sums = scratch, *sums_of_squares = scratch + padded, *center = scratch + 2 * padded;
  float *means = statistics, *rests = means + rows.groups, *squares = rests + rows.groups;
  const float count = (float)(rows.rows * width);
  __builtin_memset(sums, 0, padded * sizeof(float));
  each_vector(rows, x, [=]<int N>(std::int64_t c, const T* at) {
    Vec v[N];
    for (int i = 0; i < N; ++i) v[i] = load_part(at + i * stride, channels - c);
    store(sums + c, load(sums + c) + sum_of<N>(v));
  });
  for (std::int64_t g = 0; g < rows.groups; ++g) {
    means[g] = group_sum(sums, g, width) / count;
    for (std::int64_t c = g * width; c < (g + 1) * width; ++c) center[c] = means[g];
  }
  __builtin_memset(sums, 0, 2 * padded * sizeof(float));
  each_vector(rows, x, [=]<int N>(std::int64_t c, const T* at) {
    const Vec middle = load(center + c);
    Vec v[N], square = load(sums_of_squares + c);
    for (int i = 0; i < N; ++i) v[i] = load_part(at + i * stride, channels - c) - middle;
    for (int i = 0; i < N; ++i) square = fma(v[i], v[i], square);
    store(sums_of_squares + c, square);
    store(sums + c, load(sums + c) + sum_of<N>(v));
  });
  for (std::int64_t g = 0; g < rows.groups; ++g) {
    const float rest = group_sum(sums, g, width), around = group_sum(sums_of_squares, g, width) - rest * (rest / count);
    rests[g] = rest / count;
    squares[g] = around < 0 ? 0 : around;
  }
}

void group_statistics(const GroupRows& rows, float* statistics, float* scratch) {
  with_floats(rows.dtype, rows.x, [&](const auto* x) { group_statistics_as(rows, x, statistics, scratch); });
}

/// Rows x columns from row `row` and column `column` on, to `to`.
template <class T>
void group_normalise_tile(const T* x, std::int64_t x_stride, std::int64_t rows, std::int64_t columns, const float* center,
                          const float* scale, const float* shift, float* to, std::int64_t stride) {
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    const Vec middle = load_tail(center, c, columns), factor = load_tail(scale, c, columns), term = load_tail(shift, c, columns);
    for (std::int64_t r = 0; r < rows; ++r)
      store_tail(to + r * stride, c, columns, fma(load_tail(x + r * x_stride, c, columns) - middle, factor, term));
  }
}

template <class T>
void group_normalise_as(const GroupRows& rows, const T* x, const float* center, const float* scale, const float* shift,
                        const Finish& finish, float* scratch) {
  const std::int64_t columns = rows.channels < kTile ? rows.channels : kTile, step = tile_rows(columns);
  const bool through = writes_through(finish);
  for (std::int64_t r = 0; r < rows.rows; r += step) {
    const std::int64_t taken = rows.rows - r < step ? rows.rows - r : step;
    for (std::int64_t c = 0; c < rows.channels; c += columns) {
      const std::int64_t width = rows.channels - c < columns ? rows.channels - c : columns;
      float* to = through ? (float*)finish.out.data + r * finish.out.row_stride + c : scratch;
      const std::int64_t stride = through ? finish.out.row_stride : width;
      group_normalise_tile(x + r * rows.stride + c, rows.stride, taken, width, center + c, scale + c, shift + c, to, stride);
      if (!through) finish_rows(finish, to, stride, r, taken, c, width);
    }
  }
}

void group_normalise(const GroupRows& rows, const float* center, const float* scale, const float* shift, const Finish& finish,
                     float* scratch) {
  with_floats(rows.dtype, rows.x, [&](const auto* x) { group_normalise_as(rows, x, center, scale, shift, finish, scratch); });
}

}  // namespace

const NormTable norm_table = {rms_norm, layer_norm, softmax, widen, group_statistics, group_normalise};

}  // namespace ingot::INGOT_LEVEL
