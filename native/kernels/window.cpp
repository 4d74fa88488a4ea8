#include "window.h"

#include <algorithm>

#include "broadcast.h"

namespace ingot {

Window::Window(Params& params, Types in, Types out, const WindowRules& rules) {
  constexpr std::int64_t kMostPadding = std::int64_t{1} << 31;
  const std::string_view kernel = params.kernel();
  const int rank = in[0].rank;
  if (rank < 3 || rank > kAxes + 2 || out[0].rank != rank)
    refuse(kernel, "x has rank " + std::to_string(rank) + " and y " + std::to_string(out[0].rank) +
                       ", must both be [N, *S, C] with 1 to 3 spatial axes");
  axes = rank - 2;
  for (WindowAxis& one : axis) one = {1, 1, 1, 0, 0, 1};
  const auto read = [&](const char* name, std::int64_t low, std::int64_t high, std::int64_t WindowAxis::*field) {
    const std::vector<std::int64_t> values = params.integers(name, low, high);
    if (values.size() != static_cast<std::size_t>(axes))
      refuse(kernel, std::string("parameter ") + name + " has " + std::to_string(values.size()) + " entries, must have " +
                         std::to_string(axes));
    for (int i = 0; i < axes; ++i) axis[kAxes - axes + i].*field = values[i];
  };
  read("kernel", 1, rules.most, &WindowAxis::kernel);
  read("stride", 1, rules.most, &WindowAxis::stride);
  read("pre_padding", rules.least_padding, kMostPadding, &WindowAxis::before);
  if (rules.post_padding) read("post_padding", rules.least_padding, kMostPadding, &WindowAxis::after);
  if (rules.dilation) read("dilation", 1, rules.most, &WindowAxis::dilation);
  std::int64_t positions = 1;
  for (const WindowAxis& one : axis)
    require(!__builtin_mul_overflow(positions, one.kernel, &positions), kernel, "the window has more positions than 64 bits count");
}

Window Window::over(const TensorView& x) const {
  Window window = *this;
  for (int i = 0; i < axes; ++i) window.axis[kAxes - axes + i].size = x.shape[1 + i];
  return window;
}

void Window::check(std::string_view kernel, const TensorView& x, const TensorView& y) const {
  require(x.rank == axes + 2 && y.rank == axes + 2 && x.shape[0] == y.shape[0] && x.shape[axes + 1] == y.shape[axes + 1],
          kernel, "x and y must be [N, *S, C] and [N, *S', C]");
  require_dense_rows(kernel, "x", x);
  require_dense_rows(kernel, "y", y);
  for (int i = 0; i < axes; ++i) {
    const WindowAxis& one = axis[kAxes - axes + i];
    std::int64_t last = 0, apart = 0;  // beyond every position, padding included; halved so that sums of two such fit
    require(!__builtin_mul_overflow(y.shape[1 + i], one.stride, &last) && last < INT64_MAX / 8 &&
                one.kernel * one.dilation < INT64_MAX / 8 &&
                !__builtin_mul_overflow(x.stride[1 + i], one.dilation, &apart) &&
                apart > INT64_MIN / 8 && apart < INT64_MAX / 8,
            kernel, "a window lies beyond 64 bits");
  }
}

Spatial::Spatial(const TensorView& view, int axes) {
  const int rank = axes + 2, missing = kAxes - axes;
  for (int i = 0; i < kAxes + 2; ++i) shape[i] = 1, stride[i] = 0;
  for (int dim = 0; dim < rank; ++dim) {
    const int own = dim - (rank - view.rank), place = dim == 0 ? 0 : dim + missing;
    shape[place] = own < 0 ? 1 : view.shape[own];
    stride[place] = broadcast_stride(view, rank, dim);
  }
}

LineTasks::LineTasks(const Spatial& y, int workers, std::int64_t most_channels) : y_(y) {
  lines_ = y.shape[0] * y.shape[1] * y.shape[2];
  const std::int64_t columns = y.shape[3], channels = y.shape[4], vectors = (channels + 15) / 16;
  column_parts_ = 1;
  channel_parts_ = std::max<std::int64_t>(1, (channels + most_channels - 1) / most_channels);
  const std::int64_t wanted = 4 * workers;
  if (workers == 1 || lines_ * channel_parts_ >= wanted) return;
  column_parts_ = std::min(columns, (wanted + lines_ - 1) / lines_);
  const std::int64_t tasks = lines_ * column_parts_;  // uneven: share the channels of each
  if (tasks < wanted && tasks % workers != 0) channel_parts_ = std::max(channel_parts_, std::min<std::int64_t>(vectors, workers));
}

LineTask LineTasks::operator[](std::int64_t number) const {
  const auto part = [&](std::int64_t count, std::int64_t parts) {
    const Share share = share_of(count, static_cast<int>(number % parts), static_cast<int>(parts));
    number /= parts;
    return share;
  };
  const std::int64_t channels = y_.shape[4];
  const Share vectors = part((channels + 15) / 16, channel_parts_), columns = part(y_.shape[3], column_parts_);
  const std::int64_t lines = y_.shape[2], planes = y_.shape[1];
  return {{number / lines / planes, number / lines % planes, number % lines}, columns, {vectors.first * 16, std::min(vectors.last * 16, channels)}};
}

}  // namespace ingot
