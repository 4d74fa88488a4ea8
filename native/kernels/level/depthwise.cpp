// Depthwise convolution for one level: vectors along channels, a block of neighbouring outputs in registers, so that a
// weight is loaded once for all of them. The host half is kernels/depthwise.cpp.
//
// An output is one chain of products in the order of the window's positions, those outside x left out, whatever its block is.
#include "depthwise.h"

#include "simd.h"

#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

// Outputs of a block: as many accumulators as the registers hold beside a weight and a value.
#if defined(__AVX512F__)
constexpr int kBlock = 12;
#elif defined(__AVX2__)
constexpr int kBlock = 6;
#else
constexpr int kBlock = 2;
#endif

/// Where a block's windows lie: positions [0, count) of each line, from x on; the next output's is x_next further.
template <class T>
struct Windows {
  const T* x;
  const T* w;
  std::int64_t count, x_next, x_tap;
};

/// P outputs of 16 channels, or of the n < 16 that there are.
template <int P, bool Whole, class T>
INGOT_INLINE void block(const DepthwiseJob& job, const Windows<T>& windows, int n, float* values, std::int64_t stride) {
  Vec sum[P];
  for (int p = 0; p < P; ++p) sum[p] = zero();
  const T* x_plane = windows.x;
  const T* w_plane = windows.w;
  for (std::int64_t plane = 0; plane < job.planes; ++plane, x_plane += job.plane_step, w_plane += job.w_plane_step) {
    const T* x_line = x_plane;
    const T* w_line = w_plane;
    for (std::int64_t line = 0; line < job.lines; ++line, x_line += job.line_step, w_line += job.w_line_step) {
      const T* x = x_line;
      const T* w = w_line;
      for (std::int64_t i = 0; i < windows.count; ++i, x += windows.x_tap, w += job.w_step) {
        const Vec weight = Whole ? load(w) : load_partial(w, n);
        const T* at = x;
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p, at += windows.x_next) sum[p] = fma(Whole ? load(at) : load_partial(at, n), weight, sum[p]);
      }
    }
  }
  for (int p = 0; p < P; ++p) {
    if (Whole)
      store(values + p * stride, sum[p]);
    else
      store_partial(values + p * stride, sum[p], n);
  }
}

/// `outputs` <= kBlock outputs of all channels.
template <int P, class T>
void channels(const DepthwiseJob& job, const Windows<T>& windows, float* values, std::int64_t stride) {
  std::int64_t c = 0;
  Windows<T> at = windows;
  for (; c + kLanes <= job.channels; c += kLanes, at.x += kLanes, at.w += kLanes)
    block<P, true>(job, at, kLanes, values + c, stride);
  if (c < job.channels) block<P, false>(job, at, (int)(job.channels - c), values + c, stride);
}

template <int P, class T>
INGOT_INLINE void channels_of(const DepthwiseJob& job, const Windows<T>& windows, int outputs, float* values, std::int64_t stride) {
  if (outputs == P) return channels<P>(job, windows, values, stride);
  if constexpr (P > 1) channels_of<P - 1>(job, windows, outputs, values, stride);
}

template <class T>
void depthwise_as(const DepthwiseJob& job, const T* x, const T* w) {
  const WindowAxis& axis = job.columns;
  const std::int64_t step = depthwise_columns(job.channels);
  const bool through = writes_through(job.finish);
  FinishTile tile;
  begin_finish(job.finish, tile);
  // Outputs whose windows lie inside: from `low` on, below `high`.
  const std::int64_t reach = axis.size + axis.before - (axis.kernel - 1) * axis.dilation;
  const std::int64_t low = (axis.before + axis.stride - 1) / axis.stride, high = reach <= 0 ? 0 : (reach + axis.stride - 1) / axis.stride;
  for (std::int64_t first = job.first; first < job.last; first += step) {
    const std::int64_t last = job.last - first < step ? job.last : first + step;
    float* values = through ? (float*)job.finish.out.data + (first - job.first) * job.finish.out.row_stride : job.values;
    const std::int64_t stride = through ? job.finish.out.row_stride : job.channels;
    for (std::int64_t column = first; column < last;) {
      const bool inside = column >= low && column < high;
      std::int64_t outputs = 1;
      if (inside) {
        const std::int64_t end = high < last ? high : last;
        outputs = end - column < kBlock ? end - column : kBlock;
      }
      const Span span = span_of(axis, column);
      const Windows<T> windows = {x + span.first * job.x_step, w + span.skipped * job.w_step, span.count,
                                  axis.stride * job.x_step, axis.dilation * job.x_step};
      channels_of<kBlock>(job, windows, (int)outputs, values + (column - first) * stride, stride);
      column += outputs;
    }
    if (!through) finish_rows(job.finish, tile, values, stride, first - job.first, last - first, 0, job.channels);
  }
}

}  // namespace

void depthwise(const DepthwiseJob& job) {
  with_floats(job.dtype, job.x, [&](const auto* x) { depthwise_as(job, x, (decltype(x))job.w); });
}

}  // namespace ingot::INGOT_LEVEL
