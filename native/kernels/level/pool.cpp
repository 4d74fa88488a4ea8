// Averages and greatest values of windows for one level: vectors along channels. The host half is kernels/pool.cpp.
//
// Sums: runs of at most 32 positions of a line, added up in order, so that long windows do not gather rounding errors.
#include "pool.h"

#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr std::int64_t kRun = 32;

/// The windows' values of one output and block of channels, V whole vectors or (V = 0) fewer than 16 channels.
template <int V>
struct Block {
  static constexpr int vectors = V == 0 ? 1 : V;
  int count;  // channels when V = 0

  template <class T>
  inline __attribute__((always_inline)) Vec get(const T* p, int v) const {
    return V == 0 ? load_partial(p, count) : load(p + v * kLanes);
  }
  template <class T>
  inline __attribute__((always_inline)) void put(T* p, int v, Vec value) const {
    if (V == 0)
      store_partial(p, value, count);
    else
      store(p + v * kLanes, value);
  }
};

/// Calls f with a Block and the first channel of each block.
template <class F>
INGOT_INLINE void each_block(std::int64_t channels, const F& f) {
  std::int64_t c = 0;
  for (; c + 4 * kLanes <= channels; c += 4 * kLanes) f(Block<4>{0}, c);
  if (c + 2 * kLanes <= channels) f(Block<2>{0}, c), c += 2 * kLanes;
  for (; c + kLanes <= channels; c += kLanes) f(Block<1>{0}, c);
  if (c < channels) f(Block<0>{(int)(channels - c)}, c);
}

/// The sum of a window's values divided by `divisor`; a power of two divides by a product, which is as exact.
template <class X, class Y, class B>
INGOT_INLINE void average_block(const PoolJob& job, const B& block, const X* x, std::int64_t count, Vec divisor, Vec inverse,
                                bool power_of_two, Y* y) {
  Vec total[B::vectors];
  for (int v = 0; v < B::vectors; ++v) total[v] = zero();
  for (std::int64_t plane = 0; plane < job.planes; ++plane, x += job.plane_step) {
    const X* line = x;
    for (std::int64_t i = 0; i < job.lines; ++i, line += job.line_step) {
      const X* at = line;
      for (std::int64_t first = 0; first < count; first += kRun) {
        const std::int64_t last = first + kRun < count ? first + kRun : count;
        Vec sum[B::vectors];
        for (int v = 0; v < B::vectors; ++v) sum[v] = block.get(at, v);
        at += job.x_step;
        for (std::int64_t j = first + 1; j < last; ++j, at += job.x_step)
          for (int v = 0; v < B::vectors; ++v) sum[v] = sum[v] + block.get(at, v);
        for (int v = 0; v < B::vectors; ++v) total[v] = total[v] + sum[v];
      }
    }
  }
  for (int v = 0; v < B::vectors; ++v) block.put(y, v, power_of_two ? total[v] * inverse : total[v] / divisor);
}

/// Calls f for every run of output columns whose windows find positions alike: (first column, how many, what a window finds).
template <class F>
INGOT_INLINE void each_run(const PoolJob& job, const F& f) {
  const WindowAxis& axis = job.columns;
  // Windows of columns from `low` on, below `high`, lie inside.
  const std::int64_t reach = axis.size + axis.before - (axis.kernel - 1) * axis.dilation;
  const std::int64_t low = (axis.before + axis.stride - 1) / axis.stride, inside = reach <= 0 ? 0 : (reach + axis.stride - 1) / axis.stride;
  const std::int64_t high = inside < job.last ? inside : job.last;
  for (std::int64_t column = job.first; column < job.last;) {
    const std::int64_t run = column >= low && column < high ? high - column : 1;
    f(column, run, span_of(axis, column));
    column += run;
  }
}

template <class X, class Y>
void average_as(const PoolJob& job, const X* x, Y* y) {
  const std::int64_t step = job.columns.stride * job.x_step;
  each_run(job, [&](std::int64_t column, std::int64_t run, const Span& span) {
    const std::int64_t inside = job.planes * job.lines * span.count;
    const std::int64_t counted = job.divisor != 0 ? job.divisor : job.count_padding ? job.outer * span.padded : inside;
    const float divisor = inside == 0 ? 1.0f : (float)counted;  // a window that finds nothing is zero
    const bool power_of_two = (counted & (counted - 1)) == 0;
    const X* from = x + span.first * job.x_step;
    Y* to = y + (column - job.first) * job.y_step;
    each_block(job.channels, [&](const auto& block, std::int64_t c) {
      for (std::int64_t i = 0; i < run; ++i)
        average_block(job, block, from + i * step + c, span.count, broadcast(divisor), broadcast(1.0f / divisor), power_of_two,
                      to + i * job.y_step + c);
    });
  });
}

/// The first greatest value, or the first NaN.
template <class T, class B>
INGOT_INLINE void greatest_block(const PoolJob& job, const B& block, const T* x, std::int64_t count, std::int64_t step, T* y) {
  Vec best[B::vectors];
  for (int v = 0; v < B::vectors; ++v) best[v] = broadcast(sizeof(T) == 1 ? -128.0f : -__builtin_inff());
  for (std::int64_t plane = 0; plane < job.planes; ++plane, x += job.plane_step) {
    const T* line = x;
    for (std::int64_t i = 0; i < job.lines; ++i, line += job.line_step) {
      const T* at = line;
      for (std::int64_t j = 0; j < count; ++j, at += step)
        for (int v = 0; v < B::vectors; ++v) best[v] = max_nan(block.get(at, v), best[v]);
    }
  }
  for (int v = 0; v < B::vectors; ++v) block.put(y, v, best[v]);
}

template <class T>
void greatest_as(const PoolJob& job, const T* x, T* y) {
  const std::int64_t tap = job.x_step * job.columns.dilation, step = job.columns.stride * job.x_step;
  each_run(job, [&](std::int64_t column, std::int64_t run, const Span& span) {
    const T* from = x + span.first * job.x_step;
    T* to = y + (column - job.first) * job.y_step;
    each_block(job.channels, [&](const auto& block, std::int64_t c) {
      for (std::int64_t i = 0; i < run; ++i)
        greatest_block(job, block, from + i * step + c, span.count, tap, to + i * job.y_step + c);
    });
  });
}

template <class T>
INGOT_INLINE const T* as_input(const void* x, const T*) {
  return (const T*)x;
}

void average(const PoolJob& job) {
  if (job.dtype == DType::int8) return average_as(job, (const std::int8_t*)job.x, (float*)job.y);
  with_floats(job.dtype, job.y, [&](auto* y) { average_as(job, as_input(job.x, y), y); });
}

void greatest(const PoolJob& job) {
  if (job.dtype == DType::int8) return greatest_as(job, (const std::int8_t*)job.x, (std::int8_t*)job.y);
  with_floats(job.dtype, job.y, [&](auto* y) { greatest_as(job, as_input(job.x, y), y); });
}

}  // namespace

const PoolTable pool_table = {average, greatest};

}  // namespace ingot::INGOT_LEVEL
