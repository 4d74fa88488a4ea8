// The selective scan for one level: 16 channels in a vector, every state of theirs a chain of one multiply-add a step.
#include "selective_scan.h"

#include "simd.h"
#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

template <class T>
INGOT_INLINE Vec load_across(const T* p, std::int64_t stride, int count) {
  if (stride == 1) return count == kLanes ? load(p) : load_partial(p, count);
  float lanes[kLanes] = {};
  for (int i = 0; i < count; ++i) lanes[i] = load_one(p + i * stride);
  return load(lanes);
}

template <class T>
INGOT_INLINE void store_across(T* p, std::int64_t stride, int count, Vec v) {
  if (stride == 1) return count == kLanes ? store(p, v) : store_partial(p, v, count);
  float lanes[kLanes];
  store(lanes, v);
  for (int i = 0; i < count; ++i) store_one(p + i * stride, lanes[i]);
}

template <class T>
void run_as(const ScanJob& job) {
  const auto *x = (const T*)job.x.data, *delta = (const T*)job.delta.data, *b = (const T*)job.b.data, *c = (const T*)job.c.data;
  T* y = (T*)job.y.data;
  const Vec skip = load(job.skip);
  for (std::int64_t t = 0; t < job.steps; ++t) {
    const Vec in = load_across(x, job.x.across, job.channels), step = load_across(delta, job.delta.across, job.channels);
    const Vec scaled = step * in;
    Vec out = skip * in;
    for (std::int64_t s = 0; s < job.states; ++s) {
      float* const at = job.h + s * kLanes;
      const Vec kept = exp(step * load(job.a + s * kLanes)) * load(at);
      const Vec h = fma(scaled, broadcast(load_one(b + s * job.b.across)), kept);
      store(at, h);
      out = fma(h, broadcast(load_one(c + s * job.c.across)), out);
    }
    store_across(y, job.y.across, job.channels, out);
    x += job.x.step, delta += job.delta.step, b += job.b.step, c += job.c.step, y += job.y.step;
  }
}

void run(const ScanJob& job) {
  with_floats(job.dtype, job.x.data, [&]<class T>(const T*) { run_as<T>(job); });
}

}  // namespace

const SelectiveScanTable selective_scan_table = {run, convert};

}  // namespace ingot::INGOT_LEVEL
