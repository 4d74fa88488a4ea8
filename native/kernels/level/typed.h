// Element types chosen at run time, for the level code of the row kernels. Include after simd.h.
#pragma once

#include "dtype.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

/// Calls f with p as a pointer to the dtype's element type; only the three floats that kernels compute with get here.
template <class F>
INGOT_INLINE void with_floats(DType dtype, const void* p, const F& f) {
  if (dtype == DType::float32)
    f((const float*)p);
  else if (dtype == DType::bfloat16)
    f((const bfloat16*)p);
  else
    f((const float16*)p);
}
template <class F>
INGOT_INLINE void with_floats(DType dtype, void* p, const F& f) {
  if (dtype == DType::float32)
    f((float*)p);
  else if (dtype == DType::bfloat16)
    f((bfloat16*)p);
  else
    f((float16*)p);
}

/// 16 elements from element i on, or the n < 16 that there are (the other lanes are zero).
template <class T>
INGOT_INLINE Vec load_tail(const T* p, std::int64_t i, std::int64_t count) {
  return count - i >= kLanes ? load(p + i) : load_partial(p + i, (int)(count - i));
}
template <class T>
INGOT_INLINE void store_tail(T* p, std::int64_t i, std::int64_t count, Vec v) {
  if (count - i >= kLanes)
    store(p + i, v);
  else
    store_partial(p + i, v, (int)(count - i));
}

template <class X, class Y>
static void convert_row(const X* x, Y* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) store_tail(y, i, count, load_tail(x, i, count));
}

static inline void convert(const void* x, DType x_dtype, void* y, DType y_dtype, std::int64_t count) {
  with_floats(x_dtype, x, [&](auto* from) { with_floats(y_dtype, y, [&](auto* to) { convert_row(from, to, count); }); });
}

}  // namespace ingot::INGOT_LEVEL
