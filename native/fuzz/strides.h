// Random layouts of one operand.
#pragma once

#include "array.h"

namespace ingot::fuzz {

/// Strides over `shape`, and the elements that they span: from offset + low to offset + high.
struct Layout {
  std::vector<std::int64_t> stride;
  std::int64_t low = 0, high = 0;
  bool empty = false;
};

/// A layout to read from: gaps, permuted dimensions, negative strides, and unless `distinct` also 0 and overlaps.
Layout random_layout(const std::vector<std::int64_t>& shape, bool distinct, Random& random);

/// Without gaps, in row-major order.
Layout dense_layout(const std::vector<std::int64_t>& shape);

/// Adds up what strides span.
Layout spanned(const std::vector<std::int64_t>& shape, std::vector<std::int64_t> stride);

/// Where the element of that row-major number lies, from the layout's offset.
std::int64_t place_of(const std::vector<std::int64_t>& shape, const Layout& layout, std::int64_t number);

/// A buffer that one result and fillers cover without overlap.
struct Cover {
  std::vector<std::int64_t> base;  // its shape
  struct Part {
    std::vector<std::int64_t> shape, stride;
    std::int64_t offset;
  };
  Part result;
  std::vector<Part> fillers;
};

/// The result has `shape`: permuted, backwards, with gaps inside or rows behind and before it.
Cover random_cover(const std::vector<std::int64_t>& shape, Random& random);

}  // namespace ingot::fuzz
