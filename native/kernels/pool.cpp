// avg_pool, max_pool: windows over 1 to 3 spatial axes of x [N, *S, C]; y's shape says how far they slide. adaptive_pool: as many
// windows as y's shape says, which share each axis as evenly as whole positions do: from floor(o * S / O) to ceil((o + 1) * S / O).
//
// Limits: x and y have one of the three compute floats (max_pool: or are int8; avg_pool: int8 becomes float32) and dense channels, other strides are
// any. Sums are float32, of int8 exact up to 2^17 positions. Averages: a window is divided by `divisor`, or by its positions inside x, or
// (count_include_pad) inside x with its padding; a window that finds nothing is zero (max_pool: -inf, or -128). A NaN in a window is its greatest
// value.
#include "level/pool.h"

#include <nlohmann/json.hpp>

#include "window.h"

namespace ingot {

namespace {

class Pool final : public Kernel {
 public:
  Pool(const char* name, void (*pool)(const PoolJob&), const Window& window, bool count_padding, std::int64_t divisor)
      : name_(name), pool_(pool), window_(window), count_padding_(count_padding), divisor_(divisor) {}

  Scratch plan(Views in, Views out, int) const override {
    window_.check(name_, in[0], out[0]);
    return {};
  }

  std::optional<std::uint64_t> apart(Views, Views) const override { return 1; }

  void run(Views in, Views out, const Worker& worker) const override {
    if (out[0].elements() == 0) return;
    const Spatial x(in[0], window_.axes), y(out[0], window_.axes);
    const Window window = window_.over(in[0]);
    const LineTasks tasks(y, worker.count, y.shape[4]);
    PoolJob job{};
    job.dtype = in[0].dtype;
    job.plane_step = x.stride[1] * window.axis[0].dilation;
    job.line_step = x.stride[2] * window.axis[1].dilation;
    job.x_step = x.stride[3];
    job.y_step = y.stride[3];
    job.columns = window.axis[2];
    job.count_padding = count_padding_;
    job.divisor = divisor_;
    const Share share = share_of(tasks.count(), worker.index, worker.count);
    for (std::int64_t task = share.first; task < share.last; ++task) {
      const auto [line, columns, channels] = tasks[task];
      const Span planes = span_of(window.axis[0], line.plane), lines = span_of(window.axis[1], line.line);
      job.planes = planes.count;
      job.lines = lines.count;
      job.outer = planes.padded * lines.padded;
      job.first = columns.first;
      job.last = columns.last;
      job.channels = channels.last - channels.first;
      job.x = in[0].at(x.at(line.image, planes.first, lines.first) + channels.first);
      job.y = out[0].at(y.at(line.image, line.plane, line.line) + columns.first * job.y_step + channels.first);
      pool_(job);
    }
  }

 private:
  const char* name_;
  void (*pool_)(const PoolJob&);
  Window window_;
  bool count_padding_;
  std::int64_t divisor_;
};

constexpr std::int64_t kMostPixels = std::int64_t{1} << 31;  // along an axis of adaptive_pool

/// The window of output o of `outputs`, as that of the first output of a window that slides.
WindowAxis adaptive(std::int64_t size, std::int64_t outputs, std::int64_t o) {
  const std::int64_t first = o * size / outputs, last = ((o + 1) * size + outputs - 1) / outputs;
  return {size, last - first, 1, -first, 0, 1};
}

class AdaptivePool final : public Kernel {
 public:
  explicit AdaptivePool(void (*pool)(const PoolJob&)) : pool_(pool) {}

  Scratch plan(Views in, Views out, int) const override {
    const char* name = "adaptive_pool";
    const TensorView &x = in[0], &y = out[0];
    const int axes = x.rank - 2;
    require(y.shape[0] == x.shape[0] && y.shape[axes + 1] == x.shape[axes + 1], name, "x and y must be [N, *S, C] and [N, *S', C]");
    require_dense_rows(name, "x", x);
    require_dense_rows(name, "y", y);
    for (int axis = 1; axis <= axes; ++axis) {
      require(x.shape[axis] > 0 || y.elements() == 0, name, "x has no positions");
      require(x.shape[axis] < kMostPixels && y.shape[axis] < kMostPixels, name, "x and y must have fewer than 2^31 positions along an axis");
    }
    return {};
  }

  std::optional<std::uint64_t> apart(Views, Views) const override { return 1; }

  void run(Views in, Views out, const Worker& worker) const override {
    if (out[0].elements() == 0) return;
    const Spatial x(in[0], in[0].rank - 2), y(out[0], in[0].rank - 2);
    const LineTasks tasks(y, worker.count, y.shape[4]);
    PoolJob job{};
    job.dtype = in[0].dtype;
    job.plane_step = x.stride[1];
    job.line_step = x.stride[2];
    job.x_step = x.stride[3];
    job.y_step = y.stride[3];
    job.last = 1;
    const Share share = share_of(tasks.count(), worker.index, worker.count);
    for (std::int64_t task = share.first; task < share.last; ++task) {
      const auto [line, columns, channels] = tasks[task];
      const Span planes = span_of(adaptive(x.shape[1], y.shape[1], line.plane), 0);
      const Span lines = span_of(adaptive(x.shape[2], y.shape[2], line.line), 0);
      job.planes = planes.count;
      job.lines = lines.count;
      job.channels = channels.last - channels.first;
      job.x = in[0].at(x.at(line.image, planes.first, lines.first) + channels.first);
      for (std::int64_t column = columns.first; column < columns.last; ++column) {
        job.columns = adaptive(x.shape[3], y.shape[3], column);
        job.y = out[0].at(y.at(line.image, line.plane, line.line) + column * job.y_step + channels.first);
        pool_(job);
      }
    }
  }

 private:
  void (*pool_)(const PoolJob&);
};

void require_types(const char* name, Types in, Types out, std::initializer_list<DType> taken = kComputeFloats) {
  require_operands(name, in, 1, 1, out, 1);
  require_dtype(name, "x", in[0].dtype, taken);
  require_dtype(name, "y", out[0].dtype, {in[0].dtype});
}

std::unique_ptr<Kernel> make_avg_pool(const nlohmann::json& json, Types in, Types out, Level level) {
  const char* name = "avg_pool";
  require_operands(name, in, 1, 1, out, 1);
  const bool bytes = in[0].dtype == DType::int8;
  if (!bytes) require_dtype(name, "x", in[0].dtype, kComputeFloats);
  require_dtype(name, "y", out[0].dtype, {bytes ? DType::float32 : in[0].dtype});
  Params params(name, json);
  const Window window(params, in, out, {.post_padding = true});
  const bool count_padding = params.flag("count_include_pad");
  const std::int64_t divisor = params.integer("divisor", 0, std::int64_t{1} << 53);
  params.done();
  return std::make_unique<Pool>(name, half_for(pool_halves, level).average, window, count_padding, divisor);
}

std::unique_ptr<Kernel> make_max_pool(const nlohmann::json& json, Types in, Types out, Level level) {
  require_types("max_pool", in, out, {DType::float32, DType::bfloat16, DType::float16, DType::int8});
  Params params("max_pool", json);
  const Window window(params, in, out, {.dilation = true});
  params.done();
  return std::make_unique<Pool>("max_pool", half_for(pool_halves, level).greatest, window, false, 0);
}

std::unique_ptr<Kernel> make_adaptive_pool(const nlohmann::json& json, Types in, Types out, Level level) {
  const char* name = "adaptive_pool";
  require_types(name, in, out);
  Params params(name, json);
  const PoolTable& half = half_for(pool_halves, level);
  const bool greatest = params.choice("kind", {"average", "greatest"}) == 1;
  params.done();
  require(in[0].rank >= 3 && in[0].rank <= kAxes + 2, name, "x must be [N, *S, C] with 1 to 3 spatial axes");
  require_rank(name, "y", out[0].rank, in[0].rank);
  return std::make_unique<AdaptivePool>(greatest ? half.greatest : half.average);
}

constexpr KernelInfo kKernels[] = {
    {"avg_pool", 1, "x -> y",
     "kernel: integers, stride: integers, pre_padding: integers, post_padding: integers, "
     "count_include_pad: flag, divisor: integer",
     make_avg_pool},
    {"max_pool", 1, "x -> y",
     "kernel: integers, stride: integers, pre_padding: integers, dilation: integers",
     make_max_pool},
    {"adaptive_pool", 1, "x -> y", "kind: average | greatest", make_adaptive_pool},
};

}  // namespace

std::span<const KernelInfo> pool_kernels() { return kKernels; }

}  // namespace ingot
