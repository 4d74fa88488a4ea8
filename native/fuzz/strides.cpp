// Layouts that kernels accept in most cases, and some that few do.
#include "strides.h"

#include <algorithm>
#include <numeric>

namespace ingot::fuzz {
namespace {

using Sizes = std::vector<std::int64_t>;

std::vector<int> shuffled(int count, Random& random) {
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random.engine());
  return order;
}

/// Every dimension steps over all that come before it in `order` (the innermost first), by `gap` times as much or with
/// some elements between.
Sizes nested(const Sizes& shape, const std::vector<int>& order, bool gaps, Random& random) {
  constexpr std::int64_t kFactors[] = {1, 1, 1, 2, 3};
  Sizes stride(shape.size());
  std::int64_t reach = 1;
  for (int dim : order) {
    const auto d = static_cast<std::size_t>(dim);
    std::int64_t step = reach;
    if (gaps) step = reach * random.pick(kFactors) + (random.chance(3) ? random.between(1, 5) : 0);
    stride[d] = step;
    reach = step * std::max<std::int64_t>(shape[d], 1);
  }
  return stride;
}

std::vector<int> row_major(int rank) {
  std::vector<int> order(static_cast<std::size_t>(rank));
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

void turn_some(Sizes& stride, std::size_t dims, std::uint64_t one_in, Random& random) {
  for (std::size_t d = 0; d < dims; ++d)
    if (random.chance(one_in)) stride[d] = -stride[d];
}

}  // namespace

Layout spanned(const Sizes& shape, Sizes stride) {
  Layout layout{std::move(stride)};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    layout.empty = layout.empty || shape[d] == 0;
    const std::int64_t reach = (shape[d] - 1) * layout.stride[d];
    (reach < 0 ? layout.low : layout.high) += reach;
  }
  if (layout.empty) layout.low = layout.high = 0;
  return layout;
}

Layout dense_layout(const Sizes& shape) {
  Sizes stride(shape.size());
  std::int64_t reach = 1;
  for (std::size_t d = shape.size(); d-- > 0; reach *= std::max<std::int64_t>(shape[d], 1)) stride[d] = reach;
  return spanned(shape, std::move(stride));
}

Layout random_layout(const Sizes& shape, bool distinct, Random& random) {
  const auto rank = static_cast<int>(shape.size());
  const std::size_t outer = rank == 0 ? 0 : shape.size() - 1;
  Sizes stride = nested(shape, row_major(rank), false, random);
  switch (random.below(distinct ? 5 : 8)) {
    case 0: break;  // an offset is all
    case 1:         // dense rows with gaps between them, some backwards
      stride = nested(shape, row_major(rank), true, random);
      if (rank > 0) stride[outer] = 1;
      turn_some(stride, outer, 3, random);
      break;
    case 2: {  // dense rows, equally far apart
      if (rank == 0) break;
      std::int64_t step = shape[outer] + random.between(0, 5);
      if (random.chance(3)) step = -step;
      for (std::size_t d = outer; d > 0; --d) {
        stride[d - 1] = step;
        step *= std::max<std::int64_t>(shape[d - 1], 1);
      }
      break;
    }
    case 3:  // permuted, gaps anywhere
      stride = nested(shape, shuffled(rank, random), true, random);
      turn_some(stride, shape.size(), 4, random);
      break;
    case 4:  // backwards along the last dimension, or along all
      turn_some(stride, outer, 2, random);
      if (rank > 0) stride[outer] = random.chance(2) ? -stride[outer] : stride[outer];
      break;
    case 5:  // broadcast along some
      for (std::int64_t& step : stride)
        if (random.chance(2)) step = 0;
      break;
    case 6:  // dense rows that overlap, as windows do
      for (std::size_t d = 0; d < outer; ++d) stride[d] = random.between(-3, 3);
      break;
    default: {
      constexpr std::int64_t kSteps[] = {0, 1, 1, -1, 2, 3, -2, 5, 16, 33};
      for (std::int64_t& step : stride) step = random.pick(kSteps);
    }
  }
  return spanned(shape, std::move(stride));
}

std::int64_t place_of(const Sizes& shape, const Layout& layout, std::int64_t number) {
  std::int64_t place = 0;
  for (std::size_t d = shape.size(); d > 0; --d) {
    place += number % shape[d - 1] * layout.stride[d - 1];
    number /= shape[d - 1];
  }
  return place;
}

Cover random_cover(const Sizes& shape, Random& random) {
  const auto rank = static_cast<int>(shape.size());
  std::vector<int> order = row_major(rank);  // the innermost first
  if (random.chance(3)) order = shuffled(rank, random);
  // One dimension of the buffer is larger than the result's: every `factor`th index of it is the result's, or a run.
  const int wide = rank == 0 ? -1 : random.chance(2) ? order.back() : random.pick(order);
  const bool spread = random.chance(3);
  const std::int64_t factor = spread ? random.between(2, 3) : 1;
  const std::int64_t before = spread ? 0 : random.between(0, 3), behind = spread ? 0 : random.between(0, 3);
  Cover cover;
  Sizes stride(shape.size());
  std::int64_t reach = 1;
  for (int dim : order) {
    const auto d = static_cast<std::size_t>(dim);
    stride[d] = reach;
    reach *= dim == wide ? shape[d] * factor + before + behind : shape[d];
  }
  cover.base = {reach};
  const auto part = [&](std::int64_t first, std::int64_t size) {
    Cover::Part one{shape, stride, 0};
    if (wide < 0) return one;
    const auto w = static_cast<std::size_t>(wide);
    one.shape[w] = size;
    one.offset = first * stride[w];
    one.stride[w] *= factor;
    return one;
  };
  const std::int64_t size = wide < 0 ? 1 : shape[static_cast<std::size_t>(wide)];
  cover.result = part(before, size);
  if (before > 0) cover.fillers.push_back(part(0, before));
  if (behind > 0) cover.fillers.push_back(part(before + size, behind));
  for (std::int64_t i = 1; i < factor; ++i) cover.fillers.push_back(part(i, size));
  if (wide < 0) cover.fillers.clear();
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0 || !random.chance(4)) continue;
    cover.result.offset += (shape[d] - 1) * cover.result.stride[d];
    cover.result.stride[d] = -cover.result.stride[d];
  }
  return cover;
}

}  // namespace ingot::fuzz
