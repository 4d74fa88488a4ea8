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
  const T* whole_w;  // of all positions
  std::int64_t count, x_next, x_tap;
};

/// What the positions outside x add to outputs of a block: `outside` times the weights that no position inside is multiplied with.
template <bool Whole, class T>
INGOT_INLINE Vec around(const DepthwiseJob& job, const Windows<T>& windows, int n) {
  const auto weight = [&](const T* w) { return Whole ? load(w) : load_partial(w, n); };
  if (job.planes * job.lines * windows.count == job.positions) return zero();
  Vec sum = zero();
  for (std::int64_t i = 0; i < job.positions; ++i) sum = sum + weight(windows.whole_w + i * job.w_step);
  for (std::int64_t plane = 0; plane < job.planes; ++plane)
    for (std::int64_t line = 0; line < job.lines; ++line)
      for (std::int64_t i = 0; i < windows.count; ++i)
        sum = sum - weight(windows.w + plane * job.w_plane_step + line * job.w_line_step + i * job.w_step);
  return sum * broadcast(job.outside);
}

/// P outputs of 16 channels, or of the n < 16 that there are.
template <int P, bool Whole, class T, class Y>
INGOT_INLINE void block(const DepthwiseJob& job, const Windows<T>& windows, int n, const Clamp& clamp, Vec bias, Y* y, std::int64_t stride) {
  Vec sum[P];
  const Vec start = job.outside == 0 ? zero() : around<Whole>(job, windows, n);
  for (int p = 0; p < P; ++p) sum[p] = start;
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
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p, y += stride) {
    const Vec v = limited(clamp, sum[p] + bias);
    if (Whole)
      store(y, v);
    else
      store_partial(y, v, n);
  }
}

/// P outputs of all channels.
template <int P, class T, class Y>
void channels(const DepthwiseJob& job, const Windows<T>& windows, const Clamp& clamp, Y* y, std::int64_t stride) {
  std::int64_t c = 0;
  Windows<T> at = windows;
  for (; c + kLanes <= job.channels; c += kLanes, at.x += kLanes, at.w += kLanes, at.whole_w += kLanes)
    block<P, true>(job, at, kLanes, clamp, load(clamp.bias + c), y + c, stride);
  if (c < job.channels) block<P, false>(job, at, (int)(job.channels - c), clamp, load(clamp.bias + c), y + c, stride);
}

template <int P, class T, class Y>
INGOT_INLINE void channels_of(const DepthwiseJob& job, const Windows<T>& windows, int outputs, const Clamp& clamp, Y* y, std::int64_t stride) {
  if (outputs == P) return channels<P>(job, windows, clamp, y, stride);
  if constexpr (P > 1) channels_of<P - 1>(job, windows, outputs, clamp, y, stride);
}

/// Outputs [first, last) of the line to y, `stride` values from one to the next.
template <class T, class Y>
void columns(const DepthwiseJob& job, const T* x, const T* w, std::int64_t first, std::int64_t last, const Clamp& clamp, Y* y,
             std::int64_t stride) {
  const WindowAxis& axis = job.columns;
  // Outputs whose windows lie inside: from `low` on, below `high`.
  const std::int64_t reach = axis.size + axis.before - (axis.kernel - 1) * axis.dilation;
  const std::int64_t low = (axis.before + axis.stride - 1) / axis.stride;
  const std::int64_t high = reach <= 0 ? 0 : (reach + axis.stride - 1) / axis.stride, end = high < last ? high : last;
  for (std::int64_t column = first; column < last;) {
    std::int64_t outputs = 1;
    if (column >= low && column < end) outputs = end - column < kBlock ? end - column : kBlock;
    const Span span = span_of(axis, column);
    const Windows<T> windows = {x + span.first * job.x_step, w + span.skipped * job.w_step, (const T*)job.whole_w, span.count,
                                axis.stride * job.x_step, axis.dilation * job.x_step};
    channels_of<kBlock>(job, windows, (int)outputs, clamp, y + (column - first) * stride, stride);
    column += outputs;
  }
}

template <class T>
void depthwise_as(const DepthwiseJob& job, const T* x, const T* w) {
  EpilogueTile tile;
  Clamp clamp;
  const TileOperand& out = job.epilogue.out;
  begin_epilogue(job.epilogue, tile);
  const bool quantises = tile.chained && tile.chain.ending.present;  // which no clamp does
  if (!quantises && clamp_of(job.epilogue, tile, job.channels, clamp)) {
    if (out.dtype == DType::float32) return columns(job, x, w, job.first, job.last, clamp, (float*)out.data, out.row_stride);
    if (out.dtype == job.dtype) return columns(job, x, w, job.first, job.last, clamp, (T*)out.data, out.row_stride);
  }
  no_clamp(clamp, job.channels);
  const std::int64_t step = depthwise_columns(job.channels);
  for (std::int64_t first = job.first; first < job.last; first += step) {
    const std::int64_t last = job.last - first < step ? job.last : first + step;
    columns(job, x, w, first, last, clamp, job.values, job.channels);
    run_epilogue(job.epilogue, tile, job.values, job.channels, first - job.first, last - first, 0, job.channels);
  }
}

void run(const DepthwiseJob& job) {
  if (job.dtype == DType::int8) return depthwise_as(job, (const std::int8_t*)job.x, (const std::int8_t*)job.w);
  with_floats(job.dtype, job.x, [&](const auto* x) { depthwise_as(job, x, (decltype(x))job.w); });
}

}  // namespace

const DepthwiseTable depthwise_table = {run};

}  // namespace ingot::INGOT_LEVEL
