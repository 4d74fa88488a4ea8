// rms_norm, layer_norm and softmax of one row, and the two halves of group_norm, for one level. The host half is
// kernels/norm.cpp.
//
// Every sum over a row runs over four vectors of partial sums in one order that depends on the width alone. Those of
// group_norm run down the channels, eight rows at a time, and then over a group's channels.
#include "norm.h"

#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

alignas(64) const float kIota[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/// x in the first n lanes, other in the rest.
INGOT_INLINE Vec first_of(Vec x, std::int64_t n, Vec other) { return select(load(kIota) < broadcast((float)n), x, other); }

/// The sum of f over the vectors of a row.
template <class T, class F>
INGOT_INLINE float sum_over(const T* x, std::int64_t width, const F& f) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) sums[j] = sums[j] + f(load(x + i + j * kLanes));
  int j = 0;
  for (; i + kLanes <= width; i += kLanes, ++j) sums[j] = sums[j] + f(load(x + i));
  if (i < width) sums[j] = sums[j] + first_of(f(load_partial(x + i, (int)(width - i))), width - i, zero());
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/// y = f(x, first element) over the vectors of a row.
template <class X, class Y, class F>
INGOT_INLINE void map_row(const X* x, Y* y, std::int64_t width, const F& f) {
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(y + i, f(load(x + i), i, kLanes));
  if (i < width) store_partial(y + i, f(load_partial(x + i, (int)(width - i)), i, (int)(width - i)), (int)(width - i));
}

/// The vector of an operand of a row that map_row asks for.
INGOT_INLINE Vec beside(const float* p, std::int64_t i, int n) { return n == kLanes ? load(p + i) : load_partial(p + i, n); }

template <class X, class Y>
void rms_norm_as(const X* x, const float* weight, Y* y, std::int64_t width, float eps) {
  const float total = sum_over(x, width, [](Vec v) { return v * v; });
  const Vec scale = broadcast(1.0f / __builtin_sqrtf(total / (float)width + eps));
  if (weight == nullptr)
    map_row(x, y, width, [=](Vec v, std::int64_t, int) { return v * scale; });
  else
    map_row(x, y, width, [=](Vec v, std::int64_t i, int n) { return v * scale * beside(weight, i, n); });
}

void rms_norm(Row x, const float* weight, Row y, std::int64_t width, float eps) {
  with_floats(x.dtype, (const void*)x.data, [&](const auto* from) {
    with_floats(y.dtype, y.data, [&](auto* to) { rms_norm_as(from, weight, to, width, eps); });
  });
}

template <class X, class Y>
void layer_norm_as(const X* x, const float* weight, const float* bias, Y* y, std::int64_t width, float eps) {
  const Vec center = broadcast(sum_over(x, width, [](Vec v) { return v; }) / (float)width);
  const float squares = sum_over(x, width, [=](Vec v) { return (v - center) * (v - center); });
  const Vec scale = broadcast(1.0f / __builtin_sqrtf(squares / (float)width + eps));
  const auto normal = [=](Vec v) { return (v - center) * scale; };
  if (weight != nullptr && bias != nullptr)
    map_row(x, y, width, [=](Vec v, std::int64_t i, int n) { return normal(v) * beside(weight, i, n) + beside(bias, i, n); });
  else if (weight != nullptr)
    map_row(x, y, width, [=](Vec v, std::int64_t i, int n) { return normal(v) * beside(weight, i, n); });
  else if (bias != nullptr)
    map_row(x, y, width, [=](Vec v, std::int64_t i, int n) { return normal(v) + beside(bias, i, n); });
  else
    map_row(x, y, width, [=](Vec v, std::int64_t, int) { return normal(v); });
}

void layer_norm(Row x, const float* weight, const float* bias, Row y, std::int64_t width, float eps) {
  with_floats(x.dtype, (const void*)x.data, [&](const auto* from) {
    with_floats(y.dtype, y.data, [&](auto* to) { layer_norm_as(from, weight, bias, to, width, eps); });
  });
}

/// e / total with its one rounding, for a total of at least 1 or NaN: the rest of a product by the inverse corrects it.
INGOT_INLINE Vec divided([[maybe_unused]] Vec e, Vec total, [[maybe_unused]] Vec inverse) {
#if defined(__FMA__)
  const Vec quotient = e * inverse;
  return fma(fnma(quotient, total, e), inverse, quotient);
#else
  return e / total;
#endif
}

template <class X, class Y>
void softmax_as(const X* x, Y* y, std::int64_t width, bool log_of_it, float* scratch) {
  const Vec lowest = broadcast(-__builtin_inff());
  Vec best[2] = {lowest, lowest};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes)
    for (int j = 0; j < 2; ++j) best[j] = max(best[j], load(x + i + j * kLanes));
  for (; i < width; i += kLanes) {
    const Vec v = load_tail(x, i, width);
    best[0] = max(best[0], width - i >= kLanes ? v : first_of(v, width - i, lowest));
  }
  const Vec maximum = broadcast(reduce_max(max(best[0], best[1])));
  if (log_of_it) {
    const Vec logarithm = log(broadcast(sum_over(x, width, [=](Vec v) { return exp(v - maximum); })));
    return map_row(x, y, width, [=](Vec v, std::int64_t, int) { return v - maximum - logarithm; });
  }
  map_row(x, scratch, width, [=](Vec v, std::int64_t, int) { return exp(v - maximum); });
  const Vec total = broadcast(sum_over((const float*)scratch, width, [](Vec v) { return v; }));
  const Vec inverse = broadcast(1.0f) / total;
  map_row((const float*)scratch, y, width, [=](Vec e, std::int64_t, int) { return divided(e, total, inverse); });
}

void softmax(Row x, Row y, std::int64_t width, bool log_of_it, float* scratch) {
  with_floats(x.dtype, (const void*)x.data, [&](const auto* from) {
    with_floats(y.dtype, y.data, [&](auto* to) { softmax_as(from, to, width, log_of_it, scratch); });
  });
}

template <class X>
float quantize_row_as(const X* x, std::int8_t* y, std::int64_t width) {
  Vec most[4] = {zero(), zero(), zero(), zero()};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) most[j] = max_nan(abs(load(x + i + j * kLanes)), most[j]);
  for (; i < width; i += kLanes) most[0] = max_nan(abs(load_tail(x, i, width)), most[0]);
  const Vec all = max_nan(max_nan(most[0], most[1]), max_nan(most[2], most[3]));
  const float largest = any(is_nan(all)) ? __builtin_nanf("") : reduce_max(all);
  const Vec inverse = broadcast(127.0f / largest), low = broadcast(-127.0f), high = broadcast(127.0f);
  const auto whole = [=](Vec v) {
    const Vec scaled = v * inverse;
    return truncate_to_int(round_even(min(max(select(is_nan(scaled), zero(), scaled), low), high)));
  };
  for (i = 0; i + kLanes <= width; i += kLanes) store_bytes(y + i, whole(load(x + i)));
  if (i < width) {
    std::int8_t last[kLanes];
    store_bytes(last, whole(load_partial(x + i, (int)(width - i))));
    for (std::int64_t j = i; j < width; ++j) y[j] = last[j - i];
  }
  return largest / 127.0f;
}

float quantize_row(Row x, std::int8_t* y, std::int64_t width) {
  float scale = 0;
  with_floats(x.dtype, (const void*)x.data, [&](const auto* from) { scale = quantize_row_as(from, y, width); });
  return scale;
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

/// The sum of a group's channels: in order when they are few, else by vectors.
INGOT_INLINE float group_sum(const float* sums, std::int64_t group, std::int64_t width) {
  const float* p = sums + group * width;
  if (width >= kLanes) return sum_over(p, width, [](Vec v) { return v; });
  float total = 0;
  for (std::int64_t c = 0; c < width; ++c) total += p[c];
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
    Vec v[N], squares[N / 2 + 1];
    for (int i = 0; i < N; ++i) v[i] = load_part(at + i * stride, channels - c) - middle;
    for (int i = 0; i < (N + 1) / 2; ++i) squares[i] = N == 1 ? v[0] * v[0] : fma(v[i], v[i], v[N / 2 + i] * v[N / 2 + i]);
    store(sums_of_squares + c, load(sums_of_squares + c) + sum_of<(N + 1) / 2>(squares));
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

/// What most expressions behind a norm are, in registers: limits, or an activation; and what quantises to a byte.
template <Step Activation>
struct Finish {
  Clamp clamp;
  Ending ending;

  /// Of a result of Y, which store_finished rounds to a byte.
  template <class Y, int N>
  __attribute__((always_inline)) void operator()(Vec (&v)[N], const Y*) const {
    if constexpr (Activation == Step::mish && is_byte<Y>) mish_for_byte(v);
    else if constexpr (Activation == Step::mish) mish(v);
    if constexpr (Activation == Step::silu) each<N>([&](int i) { v[i] = silu(v[i]); });
    if constexpr (Activation == Step::load && !is_byte<Y>) each<N>([&](int i) { v[i] = limited(clamp, v[i]); });
  }
};

/// Rows of C vectors each, from column c on.
template <int C, int N, class F, class Y>
INGOT_INLINE void store_finished(const F&, Y* y, std::int64_t stride, std::int64_t c, std::int64_t columns, const Vec (&v)[N]) {
  each<N>([&](int i) { store_tail(y + i / C * stride, c + i % C * kLanes, columns, v[i]); });
}
template <int C, int N, class F, class Y>
  requires is_byte<Y>
INGOT_INLINE void store_finished(const F& finish, Y* y, std::int64_t stride, std::int64_t c, std::int64_t columns, const Vec (&v)[N]) {
  if constexpr (C == 2) {
    Vec rows[N / 2][2];
    each<N>([&](int i) { rows[i / 2][i % 2] = v[i]; });
    store_ended_rows<Y, false, false>(y + c, stride, finish.ending, rows);
  } else {
    each<N>([&](int i) { store_tail(y + i * stride, c, columns, ended(finish.ending, v[i])); });
  }
}

#if defined(__AVX512F__)
constexpr int kRowsAtOnce = 4;
#else
constexpr int kRowsAtOnce = 1;  // there are registers for no more
#endif

/// Rows x columns to y, `stride` values from row to row.
template <class T, class F, class Y>
void group_normalise_tile(const T* x, std::int64_t x_stride, std::int64_t rows, std::int64_t columns, const float* center,
                          const float* scale, const float* shift, const F& finish, Y* y, std::int64_t stride) {
  const auto band = [&]<int C>(std::int64_t c) __attribute__((always_inline)) {
    Vec middle[C], factor[C], term[C];
    each<C>([&](int i) {
      const std::int64_t at = c + i * kLanes;
      middle[i] = load_tail(center, at, columns), factor[i] = load_tail(scale, at, columns), term[i] = load_tail(shift, at, columns);
    });
    const auto some = [&]<int N>(std::int64_t r) __attribute__((always_inline)) {
      Vec v[N * C];
      each<N * C>([&](int i) {
        v[i] = fma(load_tail(x + (r + i / C) * x_stride, c + i % C * kLanes, columns) - middle[i % C], factor[i % C], term[i % C]);
      });
      finish(v, y);
      store_finished<C>(finish, y + r * stride, stride, c, columns, v);
    };
    std::int64_t r = 0;
    for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) some.template operator()<kRowsAtOnce>(r);
    for (; r < rows; ++r) some.template operator()<1>(r);
  };
  std::int64_t c = 0;
  if constexpr (kEndsBounded && is_byte<Y>)  // pairs of vectors become bytes in fewer steps, and what a processor looks ahead holds
    for (; c + 2 * kLanes <= columns; c += 2 * kLanes) band.template operator()<2>(c);
  for (; c < columns; c += kLanes) band.template operator()<1>(c);
}

/// All rows at once to y.
template <class T, class F, class Y>
void group_normalise_to(const GroupRows& rows, const T* x, const float* center, const float* scale, const float* shift,
                        const F& finish, Y* y, std::int64_t stride) {
  const std::int64_t step = rows.channels <= 64 ? 64 : 8;  // as many as L1 keeps until the next channels' turn
  for (std::int64_t r = 0; r < rows.rows; r += step)
    group_normalise_tile(x + r * rows.stride, rows.stride, rows.rows - r < step ? rows.rows - r : step, rows.channels, center, scale,
                         shift, finish, y + r * stride, stride);
}

/// Whether an expression of that activation and no more is done in registers: then it is done.
template <Step Activation, class T>
bool group_normalise_activated(const GroupRows& rows, const T* x, const float* center, const float* scale, const float* shift,
                               const Chain& chain, const TileOperand& out) {
  Finish<Activation> finish;
  no_clamp(finish.clamp, 0);
  finish.ending = chain.ending;
  const auto to = [&](auto* y) { group_normalise_to(rows, x, center, scale, shift, finish, y, out.row_stride); };
  if (out.dtype == DType::int8 && ends_in<std::int8_t>(chain.ending)) return to((std::int8_t*)out.data), true;
  if (out.dtype == DType::uint8 && ends_in<std::uint8_t>(chain.ending)) return to((std::uint8_t*)out.data), true;
  if (chain.ending.present) return false;
  if (out.dtype == DType::float32) return to((float*)out.data), true;
  if (out.dtype == rows.dtype) return to((T*)out.data), true;
  return false;
}

template <class T>
void group_normalise_as(const GroupRows& rows, const T* x, const float* center, const float* scale, const float* shift,
                        const EpilogueJob& epilogue, float* scratch) {
  EpilogueTile tile;
  Finish<Step::load> finish;  // of none
  const TileOperand& out = epilogue.out;
  begin_epilogue(epilogue, tile);
  const Chain& chain = tile.chain;
  if (tile.chained && chain.count == 1 && chain.links[0].step == Step::mish &&
      group_normalise_activated<Step::mish>(rows, x, center, scale, shift, chain, out))
    return;
  if (tile.chained && chain.count == 1 && chain.links[0].step == Step::silu &&
      group_normalise_activated<Step::silu>(rows, x, center, scale, shift, chain, out))
    return;
  if (tile.chained && chain.count == 0 && chain.ending.present &&
      group_normalise_activated<Step::load>(rows, x, center, scale, shift, chain, out))
    return;
  if (clamp_of(epilogue, tile, 0, finish.clamp)) {
    if (out.dtype == DType::float32)
      return group_normalise_to(rows, x, center, scale, shift, finish, (float*)out.data, out.row_stride);
    if (out.dtype == rows.dtype) return group_normalise_to(rows, x, center, scale, shift, finish, (T*)out.data, out.row_stride);
  }
  no_clamp(finish.clamp, 0);
  const std::int64_t columns = rows.channels < kTile ? rows.channels : kTile, step = tile_rows(columns);
  for (std::int64_t r = 0; r < rows.rows; r += step) {
    const std::int64_t taken = rows.rows - r < step ? rows.rows - r : step;
    for (std::int64_t c = 0; c < rows.channels; c += columns) {
      const std::int64_t width = rows.channels - c < columns ? rows.channels - c : columns;
      group_normalise_tile(x + r * rows.stride + c, rows.stride, taken, width, center + c, scale + c, shift + c, finish, scratch, width);
      run_epilogue(epilogue, tile, scratch, width, r, taken, c, width);
    }
  }
}

void group_normalise(const GroupRows& rows, const float* center, const float* scale, const float* shift, const EpilogueJob& epilogue,
                     float* scratch) {
  with_floats(rows.dtype, rows.x, [&](const auto* x) { group_normalise_as(rows, x, center, scale, shift, epilogue, scratch); });
}

}  // namespace

const NormTable norm_table = {rms_norm, layer_norm, softmax, quantize_row, widen, group_statistics, group_normalise};

}  // namespace ingot::INGOT_LEVEL
