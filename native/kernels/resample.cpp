// resize, grid_sample: pixels [N, *S, C] at other places, each a weighted sum of those around it.
//
// Limits: x and y have one of the three compute floats and dense channels, other strides are any; grid is float32 [N, *S', axes]
// with any strides, its last dimension from the last axis to the first. Places are float32, as torch computes them; sums are
// float32. A place that is no number is the first pixel, or outside.
#include "level/resample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "window.h"

namespace ingot {

namespace {

enum class Mode { nearest, nearest_exact, linear, cubic };
enum class Beyond { zeros, border, reflection };

constexpr std::int64_t kMostPixels = std::int64_t{1} << 31;  // along an axis
constexpr float kCubic = -0.75f;                             // torch's kernel

/// What counts along one axis.
struct AxisTaps {
  int count = 0;
  std::int64_t index[4];
  float weight[4];

  void add(std::int64_t at, float share) {
    index[count] = at;
    weight[count++] = share;
  }
};

/// A whole number as a pixel; the nearest one where there is none.
std::int64_t clamped(float at, std::int64_t size) {
  if (!(at > 0)) return 0;
  return at >= static_cast<float>(size - 1) ? size - 1 : std::min(static_cast<std::int64_t>(at), size - 1);
}

/// The weights of the four pixels around a place that lies t behind the second.
void cubic_weights(float t, float weight[4]) {
  const auto near = [](float d) { return ((kCubic + 2) * d - (kCubic + 3)) * d * d + 1; };
  const auto far = [](float d) { return ((kCubic * d - 5 * kCubic) * d + 8 * kCubic) * d - 4 * kCubic; };
  weight[0] = far(t + 1);
  weight[1] = near(t);
  weight[2] = near(1 - t);
  weight[3] = far(2 - t);
}

// ---- resize ----

AxisTaps resized(Mode mode, bool align_corners, std::int64_t place, std::int64_t from, std::int64_t to) {
  AxisTaps taps;
  if (from == to) {
    taps.add(place, 1);
    return taps;
  }
  const bool corners = align_corners && mode != Mode::nearest && mode != Mode::nearest_exact;
  const auto ratio = [](std::int64_t a, std::int64_t b) { return static_cast<float>(static_cast<double>(a) / static_cast<double>(b)); };
  const float step = corners ? (to > 1 ? ratio(from - 1, to - 1) : 0.0f) : ratio(from, to), at = static_cast<float>(place);
  if (mode == Mode::nearest || mode == Mode::nearest_exact) {
    taps.add(clamped(std::floor((mode == Mode::nearest ? at : at + 0.5f) * step), from), 1);
    return taps;
  }
  float where = corners ? at * step : (at + 0.5f) * step - 0.5f;
  if (mode == Mode::linear) {
    where = std::max(where, 0.0f);
    const std::int64_t low = clamped(std::floor(where), from);
    const float t = where - static_cast<float>(low);
    taps.add(low, 1 - t);
    taps.add(std::min(low + 1, from - 1), t);
    return taps;
  }
  const float low = std::floor(where);
  float weight[4];
  cubic_weights(where - low, weight);
  for (int i = 0; i < 4; ++i) taps.add(clamped(low + static_cast<float>(i - 1), from), weight[i]);
  return taps;
}

// ---- grid_sample ----

/// A place as one between the edges, by turning back there.
float reflected(float at, float low, float span) {
  if (span <= 0) return 0;
  at = std::fabs(at - low);
  const float rest = std::fmod(at, span);
  return std::fmod(std::floor(at / span), 2.0f) == 0 ? rest + low : span - rest + low;
}

struct Sampling {
  Mode mode;
  Beyond beyond;
  bool align_corners;

  /// A place as what `beyond` makes of it.
  float bounded(float at, std::int64_t size) const {
    if (beyond == Beyond::zeros) return at;
    const float last = static_cast<float>(size - 1);
    if (beyond == Beyond::reflection)
      at = align_corners ? reflected(at, 0, last) : reflected(at, -0.5f, static_cast<float>(size));
    return at > 0 ? std::min(at, last) : 0;  // what is no number is the first
  }

  /// Adds the pixel with that whole number, unless it lies outside.
  void add(AxisTaps& taps, float at, float weight, std::int64_t size) const {
    const float whole = mode == Mode::cubic ? bounded(at, size) : at;
    if (whole >= 0 && whole <= static_cast<float>(size - 1)) taps.add(clamped(whole, size), weight);
  }

  /// Where a coordinate lies along an axis, as far as it is bounded before its neighbours are found.
  float place(float coordinate, std::int64_t size) const {
    const float whole = static_cast<float>(size);
    const float where = align_corners ? (coordinate + 1) * ((whole - 1) / 2) : ((coordinate + 1) * whole - 1) / 2;
    return mode == Mode::cubic ? where : bounded(where, size);
  }

  AxisTaps at(float where, std::int64_t size) const {
    AxisTaps taps;
    if (mode == Mode::nearest) {
      add(taps, std::nearbyint(where), 1, size);
    } else if (mode == Mode::linear) {
      const float low = std::floor(where);
      add(taps, low, low + 1 - where, size);
      add(taps, low + 1, where - low, size);
    } else {
      const float low = std::floor(where);
      float weight[4];
      cubic_weights(where - low, weight);
      for (int i = 0; i < 4; ++i) add(taps, low + static_cast<float>(i - 1), weight[i], size);
    }
    return taps;
  }
};

// ---- both ----

class Resample : public Kernel {
 public:
  Resample(const char* name, Level level) : name_(name), blend_(half_for(resample_halves, level).blend) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &x = in[0], &y = out[0];
    const int axes = x.rank - 2;
    require(y.shape[0] == x.shape[0] && y.shape[axes + 1] == x.shape[axes + 1], name_, "x and y must be [N, *S, C] and [N, *S', C]");
    require_dense_rows(name_, "x", x);
    require_dense_rows(name_, "y", y);
    for (int axis = 1; axis <= axes; ++axis) {
      require(x.shape[axis] > 0 || y.elements() == 0, name_, "x has no pixels");
      require(x.shape[axis] <= kMostPixels && y.shape[axis] <= kMostPixels, name_, "x and y may have at most 2^31 pixels along an axis");
    }
    check(in, out);
    return {};
  }

  std::optional<std::uint64_t> apart(Views in, Views) const override { return (std::uint64_t{1} << in.size()) - 1; }

  void run(Views in, Views out, const Worker& worker) const override {
    if (out[0].elements() == 0) return;
    const int axes = in[0].rank - 2;
    const Spatial x(in[0], axes), y(out[0], axes);
    const LineTasks tasks(y, worker.count, y.shape[4]);
    BlendJob job;
    job.dtype = in[0].dtype;
    job.y_step = y.stride[3];
    const Share share = share_of(tasks.count(), worker.index, worker.count);
    for (std::int64_t task = share.first; task < share.last; ++task) {
      const auto [line, columns, channels] = tasks[task];
      job.channels = channels.last - channels.first;
      job.x = in[0].at(x.at(line.image, 0, 0) + channels.first);
      for (std::int64_t column = columns.first; column < columns.last; column += kBlendPixels) {
        job.pixels = static_cast<int>(std::min<std::int64_t>(kBlendPixels, columns.last - column));
        job.y = out[0].at(y.at(line.image, line.plane, line.line) + column * y.stride[3] + channels.first);
        for (int pixel = 0; pixel < job.pixels; ++pixel) {
          AxisTaps taps[kAxes];
          find(taps, in, axes, x, y, line, column + pixel);
          job.counts[pixel] = joined(taps, x, job.taps[pixel]);
        }
        blend_(job);
      }
    }
  }

 protected:
  virtual void check(Views in, Views out) const = 0;
  /// What counts along each axis towards the output in that column of the line.
  virtual void find(AxisTaps taps[kAxes], Views in, int axes, const Spatial& x, const Spatial& y, const Line& line,
                    std::int64_t column) const = 0;

  const char* name_;

 private:
  /// The taps of every pixel that counts along all axes.
  static int joined(const AxisTaps taps[kAxes], const Spatial& x, Tap* to) {
    int count = 0;
    for (int i = 0; i < taps[0].count; ++i)
      for (int j = 0; j < taps[1].count; ++j)
        for (int k = 0; k < taps[2].count; ++k)
          to[count++] = {taps[0].index[i] * x.stride[1] + taps[1].index[j] * x.stride[2] + taps[2].index[k] * x.stride[3],
                         taps[0].weight[i] * taps[1].weight[j] * taps[2].weight[k]};
    return count;
  }

  void (*blend_)(const BlendJob&);
};

class Resize final : public Resample {
 public:
  Resize(Mode mode, bool align_corners, Level level) : Resample("resize", level), mode_(mode), align_corners_(align_corners) {}

 private:
  void check(Views, Views) const override {}

  void find(AxisTaps taps[kAxes], Views, int, const Spatial& x, const Spatial& y, const Line& line, std::int64_t column) const override {
    const std::int64_t places[kAxes] = {line.plane, line.line, column};
    for (int axis = 0; axis < kAxes; ++axis) taps[axis] = resized(mode_, align_corners_, places[axis], x.shape[1 + axis], y.shape[1 + axis]);
  }

  Mode mode_;
  bool align_corners_;
};

class GridSample final : public Resample {
 public:
  GridSample(const Sampling& sampling, Level level) : Resample("grid_sample", level), sampling_(sampling) {}

 private:
  void check(Views in, Views out) const override {
    const TensorView &grid = in[1], &y = out[0];
    const int axes = in[0].rank - 2;
    for (int i = 0; i <= axes; ++i) require(grid.shape[i] == y.shape[i], name_, "grid must be [N, *S', axes]");
    require(grid.shape[axes + 1] == axes, name_, "grid must have a coordinate for each axis");
  }

  void find(AxisTaps taps[kAxes], Views in, int axes, const Spatial& x, const Spatial&, const Line& line, std::int64_t column) const override {
    const Spatial grid(in[1], axes);
    const float* place = in[1].as<const float>() + grid.at(line.image, line.plane, line.line) + column * grid.stride[3];
    for (int axis = 0; axis < kAxes - axes; ++axis) {
      taps[axis].count = 0;
      taps[axis].add(0, 1);
    }
    bool somewhere = true;
    for (int i = 0; i < axes; ++i) {
      const std::int64_t size = x.shape[kAxes - i];
      const float where = sampling_.place(place[i * grid.stride[4]], size);
      taps[kAxes - 1 - i] = sampling_.at(where, size);
      somewhere = somewhere && std::isfinite(where);
    }
    if (somewhere || sampling_.mode == Mode::nearest || axes != 2) return;
    for (int axis = 0; axis < kAxes; ++axis) {  // of an image, what lies nowhere is no number, as in torch
      taps[axis].count = 0;
      taps[axis].add(0, std::numeric_limits<float>::quiet_NaN());
    }
  }

  Sampling sampling_;
};

/// Checks the types of x and y; gives the number of axes.
int require_images(const char* name, Types in, Types out, std::size_t operands, int least) {
  require_operands(name, in, operands, operands, out, 1);
  require_dtype(name, "x", in[0].dtype, kComputeFloats);
  require_dtype(name, "y", out[0].dtype, {in[0].dtype});
  require(in[0].rank >= least + 2 && in[0].rank <= kAxes + 2, name, "x must be [N, *S, C] with at most 3 spatial axes");
  require_rank(name, "y", out[0].rank, in[0].rank);
  return in[0].rank - 2;
}

std::unique_ptr<Kernel> make_resize(const nlohmann::json& json, Types in, Types out, Level level) {
  require_images("resize", in, out, 1, 1);
  Params params("resize", json);
  const auto mode = static_cast<Mode>(params.choice("mode", {"nearest", "nearest_exact", "linear", "cubic"}));
  const bool align_corners = params.flag("align_corners");
  params.done();
  return std::make_unique<Resize>(mode, align_corners, level);
}

std::unique_ptr<Kernel> make_grid_sample(const nlohmann::json& json, Types in, Types out, Level level) {
  const int axes = require_images("grid_sample", in, out, 2, 2);
  Params params("grid_sample", json);
  constexpr Mode kModes[] = {Mode::nearest, Mode::linear, Mode::cubic};
  const Mode mode = kModes[params.choice("mode", {"nearest", "linear", "cubic"})];
  const auto beyond = static_cast<Beyond>(params.choice("beyond", {"zeros", "border", "reflection"}));
  const bool align_corners = params.flag("align_corners");
  params.done();
  require(mode != Mode::cubic || axes == 2, "grid_sample", "cubic takes two spatial axes");
  require_dtype("grid_sample", "grid", in[1].dtype, {DType::float32});
  require_rank("grid_sample", "grid", in[1].rank, in[0].rank);
  return std::make_unique<GridSample>(Sampling{mode, beyond, align_corners}, level);
}

constexpr KernelInfo kKernels[] = {
    {"resize", 1, "x -> y", "mode: nearest | nearest_exact | linear | cubic, align_corners: flag", make_resize},
    {"grid_sample", 1, "x, grid -> y",
     "mode: nearest | linear | cubic, beyond: zeros | border | reflection, align_corners: flag", make_grid_sample},
};

}  // namespace

std::span<const KernelInfo> resample_kernels() { return kKernels; }

}  // namespace ingot
