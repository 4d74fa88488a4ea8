// Weighted sums of pixels for one level: vectors along channels. The host half is kernels/resample.cpp.
//
// A sum is one chain of products in the order of its taps, in float32, whatever its vector is; it is rounded once.
#include "resample.h"

#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// V vectors of channels of one output, or (V = 0) the n < 16 that there are.
template <int V, class T>
INGOT_INLINE void blend_block(const Tap* taps, int count, const T* x, T* y, int n) {
  constexpr int vectors = V == 0 ? 1 : V;
  Vec sum[vectors];
  for (int v = 0; v < vectors; ++v) sum[v] = zero();
  for (int t = 0; t < count; ++t) {
    const T* at = x + taps[t].offset;
    const Vec weight = broadcast(taps[t].weight);
    for (int v = 0; v < vectors; ++v) {
      const Vec value = V == 0 ? load_partial(at, n) : load(at + v * kLanes);
      sum[v] = t == 0 ? value * weight : fma(value, weight, sum[v]);  // the first as it is: zeros keep their sign
    }
  }
  for (int v = 0; v < vectors; ++v) {
    if (V == 0)
      store_partial(y, sum[v], n);
    else
      store(y + v * kLanes, sum[v]);
  }
}

template <class T>
void blend_as(const BlendJob& job, const T* x, T* y) {
  for (int pixel = 0; pixel < job.pixels; ++pixel, y += job.y_step) {
    const Tap* taps = job.taps[pixel];
    const int count = job.counts[pixel];
    std::int64_t c = 0;
    for (; c + 4 * kLanes <= job.channels; c += 4 * kLanes) blend_block<4>(taps, count, x + c, y + c, 0);
    for (; c + kLanes <= job.channels; c += kLanes) blend_block<1>(taps, count, x + c, y + c, 0);
    if (c < job.channels) blend_block<0>(taps, count, x + c, y + c, (int)(job.channels - c));
  }
}

void blend(const BlendJob& job) {
  with_floats(job.dtype, job.y, [&](auto* y) { blend_as(job, (decltype(y))job.x, y); });
}

}  // namespace

const ResampleTable resample_table = {blend};

}  // namespace ingot::INGOT_LEVEL
