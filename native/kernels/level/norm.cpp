// rms_norm, layer_norm and softmax of one row for one level. The host half is kernels/norm.cpp.
//
// Every sum runs over four vectors of partial sums in one order that depends on the width alone.
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

}  // namespace

const NormTable norm_table = {rms_norm, layer_norm, softmax};

}  // namespace ingot::INGOT_LEVEL
