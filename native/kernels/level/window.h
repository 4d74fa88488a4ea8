// A window that slides along one axis: plain data that host and level halves share.
#pragma once

#include <cstdint>

namespace ingot {

/// Output o reads inputs o * stride - before + k * dilation for k < kernel, those that there are. `after` counts towards an
/// average only: how far a window may reach behind the last input. A negative `before`: the first inputs are left out.
struct WindowAxis {
  std::int64_t size, kernel, stride, before, after, dilation;
};

/// What a window finds: positions [skipped, skipped + count) of it lie inside, the first of them at input `first`; and how
/// many positions lie inside the padded axis (right for a dilation of 1 and a window that finds something).
struct Span {
  std::int64_t skipped, first, count, padded;
};

static inline Span span_of(const WindowAxis& axis, std::int64_t out) {
  const std::int64_t start = out * axis.stride - axis.before, rest = axis.size - start, room = rest + axis.after;
  std::int64_t skipped = start < 0 ? -start : 0, end = rest > 0 ? rest : 0;
  if (axis.dilation != 1) {
    skipped = (skipped + axis.dilation - 1) / axis.dilation;
    end = (end + axis.dilation - 1) / axis.dilation;
  }
  if (end > axis.kernel) end = axis.kernel;
  const bool found = end > skipped;
  return {skipped, found ? start + skipped * axis.dilation : 0, found ? end - skipped : 0, room < axis.kernel ? room : axis.kernel};
}

}  // namespace ingot
