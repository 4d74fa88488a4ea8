// Passes over a row of logits for one level. The host half is kernels/sample.cpp.
#include "sample.h"

#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

alignas(64) const float kIota[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/// x in the lanes that the row has from element i on, other in the rest.
INGOT_INLINE Vec within(Vec x, std::int64_t i, std::int64_t count, float other) {
  return count - i >= kLanes ? x : select(load(kIota) < broadcast((float)(count - i)), x, broadcast(other));
}

float maximum(const float* x, std::int64_t count) {
  Vec best = broadcast(-__builtin_inff());
  Vec nan = zero();  // becomes NaN with the first NaN and stays so
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Vec v = within(load_tail(x, i, count), i, count, -__builtin_inff());
    best = max(v, best);
    nan = select(is_nan(v), v, nan);
  }
  return any(is_nan(nan)) ? __builtin_nanf("") : reduce_max(best);
}

void weigh(const float* x, std::int64_t count, float maximum, float temperature, float* weights, float* sums) {
  const Vec top = broadcast(maximum), divisor = broadcast(temperature);
  for (std::int64_t first = 0; first < count; first += kWeightBlock) {
    const std::int64_t last = count - first < kWeightBlock ? count : first + kWeightBlock;
    Vec sum = zero();
    for (std::int64_t i = first; i < last; i += kLanes) {
      const Vec w = within(exp((load_tail(x, i, count) - top) / divisor), i, count, 0.0f);
      if (weights != nullptr) store_tail(weights, i, count, w);
      sum = sum + w;
    }
    *sums++ = reduce_add(sum);
  }
}

}  // namespace

const SampleTable sample_table = {maximum, weigh};

}  // namespace ingot::INGOT_LEVEL
