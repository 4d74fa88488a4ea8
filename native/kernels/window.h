// Sliding windows over one to three spatial axes of channels-last operands [N, *S, C]: parameters, checks, where lines lie.
#pragma once

#include <cstdint>
#include <string_view>

#include "check.h"
#include "level/window.h"

namespace ingot {

constexpr int kAxes = 3;  // fewer spatial axes: the leading ones have size 1 and a window of 1

/// What a kernel's windows may have beside kernel, stride and pre_padding.
struct WindowRules {
  bool post_padding = false, dilation = false;
  std::int64_t least_padding = 0;
  std::int64_t most = std::int64_t{1} << 31;  // of all but padding
};

/// The window of a call as its parameters give it; the axes' sizes are not known yet.
struct Window {
  int axes;  // as the user counts them
  WindowAxis axis[kAxes];

  /// Reads the parameters for x and y of that rank.
  Window(Params& params, Types in, Types out, const WindowRules& rules);
  std::int64_t positions() const { return axis[0].kernel * axis[1].kernel * axis[2].kernel; }
  /// This window over x's axes.
  Window over(const TensorView& x) const;
  /// Refuses x and y that are not [N, *S, C] and [N, *S', C] with dense channels, and windows out of reach of 64 bits.
  void check(std::string_view kernel, const TensorView& x, const TensorView& y) const;
};

/// An output line's place in the outer loop: [image][plane][line].
struct Line {
  std::int64_t image, plane, line;
};

/// A view of [N, *S, C], or one that broadcasts to it: sizes and strides with three spatial axes (0 where it is broadcast).
struct Spatial {
  std::int64_t shape[kAxes + 2], stride[kAxes + 2];

  /// `axes` is the number of spatial axes of the output.
  Spatial(const TensorView& view, int axes);
  std::int64_t at(std::int64_t image, std::int64_t plane, std::int64_t line) const {
    return image * stride[0] + plane * stride[1] + line * stride[2];
  }
  /// Which pixel that is, of those of all images.
  std::int64_t pixel(const Line& line, std::int64_t column) const {
    return ((line.image * shape[1] + line.plane) * shape[2] + line.line) * shape[3] + column;
  }
};

/// Outputs that one worker computes in one go: columns of a line, and channels of each, from a whole vector on.
struct LineTask {
  Line line;
  Share columns, channels;
};

/// How the lines of outputs, which are not empty, are split so that there are tasks for all. Each line is split into
/// runs of columns, and those into runs of channels (of whole vectors). What a task computes does not depend on the
/// split.
class LineTasks {
 public:
  /// `y` lives as long.
  LineTasks(const Spatial& y, int workers, std::int64_t most_channels);
  std::int64_t count() const { return lines_ * column_parts_ * channel_parts_; }
  LineTask operator[](std::int64_t number) const;

 private:
  const Spatial& y_;
  std::int64_t lines_, column_parts_, channel_parts_;
};

}  // namespace ingot
