// Reductions of floats for one level. The host half is kernels/reduce.cpp.
#include "reduce.h"

#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

alignas(64) const float kIota[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

struct Add {
  static constexpr float start = 0.0f;
  INGOT_INLINE Vec of(Vec a, Vec b) { return a + b; }
};
struct Multiply {
  static constexpr float start = 1.0f;
  INGOT_INLINE Vec of(Vec a, Vec b) { return a * b; }
};
struct Greatest {
  static constexpr float start = -__builtin_inff();
  INGOT_INLINE Vec of(Vec a, Vec b) { return max_nan(a, b); }
};
struct Least {
  static constexpr float start = __builtin_inff();
  INGOT_INLINE Vec of(Vec a, Vec b) { return min_nan(a, b); }
};

template <class F>
INGOT_INLINE void with_reduction(Reduction how, const F& f) {
  switch (how) {
    case Reduction::prod: return f(Multiply{});
    case Reduction::max: return f(Greatest{});
    case Reduction::min: return f(Least{});
    default: return f(Add{});
  }
}

/// Lanes of a run's last vector that it does not have leave the result as it is.
template <class R, class T>
INGOT_INLINE Vec load_or_start(const T* x, std::int64_t i, std::int64_t count) {
  const Vec v = load_tail(x, i, count);
  return count - i >= kLanes ? v : select(load(kIota) < broadcast((float)(count - i)), v, broadcast(R::start));
}

template <class R>
float across_lanes(Vec v) {
  float lanes[2 * kLanes];
  store(lanes, v);
  store(lanes + kLanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    store(lanes, R::of(load(lanes), load(lanes + half)));
  }
  return lanes[0];
}

template <class R, class T>
float run_as(const T* x, std::int64_t count) {
  // Blocks bound the length of a chain of additions, and with it the rounding error of long sums.
  constexpr std::int64_t kBlock = 4096;
  Vec total = broadcast(R::start);
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t last = count - first < kBlock ? count : first + kBlock;
    Vec part[4] = {broadcast(R::start), broadcast(R::start), broadcast(R::start), broadcast(R::start)};
    std::int64_t i = first;
    for (; i + 4 * kLanes <= last; i += 4 * kLanes)
      for (int j = 0; j < 4; ++j) part[j] = R::of(part[j], load(x + i + j * kLanes));
    for (int j = 0; i < last; i += kLanes, ++j) part[j] = R::of(part[j], load_or_start<R>(x, i, last));
    total = R::of(total, R::of(R::of(part[0], part[1]), R::of(part[2], part[3])));
  }
  return across_lanes<R>(total);
}

float run(const void* x, DType dtype, std::int64_t count, Reduction how) {
  float result = 0;
  with_floats(dtype, x, [&](const auto* p) {
    with_reduction(how, [&](auto reduction) { result = run_as<decltype(reduction)>(p, count); });
  });
  return result;
}

void combine(float* into, const void* x, DType dtype, std::int64_t count, Reduction how) {
  with_floats(dtype, x, [&](const auto* p) {
    with_reduction(how, [&](auto reduction) {
      for (std::int64_t i = 0; i < count; i += kLanes)
        store_tail(into, i, count, decltype(reduction)::of(load_tail(into, i, count), load_tail(p, i, count)));
    });
  });
}

template <class T>
std::int64_t argmax_as(const T* x, std::int64_t count) {
  const float best = run_as<Greatest>(x, count);
  const Vec wanted = broadcast(best);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Vec v = load_or_start<Greatest>(x, i, count);
    if (!any((v == wanted) | is_nan(v))) continue;
    for (std::int64_t j = i; j < count && j < i + kLanes; ++j) {
      const float one = load_one(x + j);
      if (one != one || (best == best && one == best)) return j;
    }
  }
  return 0;
}

std::int64_t argmax(const void* x, DType dtype, std::int64_t count) {
  std::int64_t result = 0;
  with_floats(dtype, x, [&](const auto* p) { result = argmax_as(p, count); });
  return result;
}

}  // namespace

const ReduceTable reduce_table = {run, combine, argmax, convert};

}  // namespace ingot::INGOT_LEVEL
