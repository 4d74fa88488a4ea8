// conv_depthwise: every channel of x [N, *S, C] convolved with a window of its own, weight [taps, C], with a scalar expression
// on the float32 results.
//
// Limits: x and the weight both have one of the three compute floats, or are int8, whose sums are exact up to 1024 taps; y may be
// int8 or uint8, as the epilogue's last step makes them. Channels of x and y are dense, the weight is contiguous; extras have any
// strides and broadcast to y. y's shape says how far the windows slide; positions outside x add nothing, of int8 `outside`.
#include "level/depthwise.h"

#include "epilogue.h"
#include "product.h"
#include "window.h"

namespace ingot {

namespace {

constexpr std::int64_t kExactTaps = 1024;  // products of int8 whose sum float32 holds exactly

/// The operand of tiles whose row 0 is that output column of a line, from a channel on.
TileOperand placed(const TensorView& view, const Spatial& at, const Line& line, std::int64_t column, std::int64_t channel) {
  const std::int64_t offset = at.at(line.image, line.plane, line.line) + column * at.stride[3] + channel * at.stride[4];
  return {view.at(offset), view.dtype, at.stride[3], at.stride[4]};
}

class Depthwise final : public Kernel {
 public:
  Depthwise(const Window& window, Epilogue epilogue, Level level, int outside)
      : window_(window), epilogue_(std::move(epilogue)), table_(half_for(depthwise_halves, level)), outside_(static_cast<float>(outside)) {}

  Scratch plan(Views in, Views out, int) const override {
    const char* name = "conv_depthwise";
    const TensorView& y = out[0];
    window_.check(name, in[0], y);
    require_shape(name, "the weight", in[1], {window_.positions(), y.shape[y.rank - 1]});
    require_contiguous(name, "the weight", in[1]);
    for (std::size_t i = 2; i < in.size(); ++i) require_broadcasts(name, in[i], y);
    return {0, bytes_of_layout<EpilogueMemory>(epilogue_, kDepthwiseValues)};
  }

  std::optional<std::uint64_t> apart(Views in, Views out) const override { return 1 | apart_by_broadcast(in, out[0], 2); }

  void run(Views in, Views out, const Worker& worker) const override {
    if (out[0].elements() == 0) return;
    const Spatial x(in[0], window_.axes), y(out[0], window_.axes);
    const Window window = window_.over(in[0]);
    const WindowAxis* axis = window.axis;
    const std::int64_t all = y.shape[4];
    const LineTasks tasks(y, worker.count, kDepthwiseChannels);
    const auto memory = layout_at<EpilogueMemory>(worker.local, epilogue_, kDepthwiseValues);
    TileOperand extras[kMaxInputs];
    DepthwiseJob job{};
    job.dtype = in[0].dtype;
    job.plane_step = x.stride[1] * axis[0].dilation;
    job.line_step = x.stride[2] * axis[1].dilation;
    job.x_step = x.stride[3];
    job.w_step = all;
    job.w_line_step = axis[2].kernel * all;
    job.w_plane_step = axis[1].kernel * job.w_line_step;
    job.columns = axis[2];
    job.outside = outside_;
    job.positions = window.positions();
    job.epilogue = epilogue_.job(extras, in.size() - 2, memory.epilogue);
    job.values = memory.values;
    const Share share = share_of(tasks.count(), worker.index, worker.count);
    for (std::int64_t task = share.first; task < share.last; ++task) {
      const auto [line, columns, channels] = tasks[task];
      const Span planes = span_of(axis[0], line.plane), lines = span_of(axis[1], line.line);
      job.planes = planes.count;
      job.lines = lines.count;
      job.first = columns.first;
      job.last = columns.last;
      job.channels = channels.last - channels.first;
      job.x = in[0].at(x.at(line.image, planes.first, lines.first) + channels.first);
      const std::int64_t taps = planes.skipped * job.w_plane_step + lines.skipped * job.w_line_step;
      job.whole_w = in[1].at(channels.first);
      job.w = in[1].at(planes.count * lines.count == 0 ? 0 : taps + channels.first);
      for (std::size_t i = 2; i < in.size(); ++i)
        extras[i - 2] = placed(in[i], Spatial(in[i], window_.axes), line, columns.first, channels.first);
      job.epilogue.out = placed(out[0], y, line, columns.first, channels.first);
      job.epilogue.out.column_stride = 1;
      table_.run(job);
    }
  }

 private:
  Window window_;
  Epilogue epilogue_;
  const DepthwiseTable& table_;
  float outside_;
};

std::unique_ptr<Kernel> make_conv_depthwise(const nlohmann::json& json, Types in, Types out, Level level) {
  const char* name = "conv_depthwise";
  require_operands(name, in, 2, kMaxInputs, out, 1);
  if (in[0].dtype != DType::int8) require_dtype(name, "x", in[0].dtype, kComputeFloats);
  require_dtype(name, "the weight", in[1].dtype, {in[0].dtype});
  require_dtype(name, "y", out[0].dtype, kEpilogueResults);
  Params params(name, json);
  const Window window(params, in, out, {.dilation = true});
  const int outside = params.has("outside") ? read_outside(params, in[0].dtype) : 0;
  require(in[0].dtype != DType::int8 || window.positions() <= kExactTaps, name, "sums of int8 are exact up to 1024 taps");
  Epilogue epilogue(params, 1, in.subspan(2), out, level);
  params.done();
  return std::make_unique<Depthwise>(window, std::move(epilogue), level, outside);
}

constexpr KernelInfo kKernels[] = {
    {"conv_depthwise", 1, "x, weight, *extras -> y",
     "kernel: integers, stride: integers, pre_padding: integers, dilation: integers, outside?: integer, "
     "epilogue: expression",
     make_conv_depthwise},
};

}  // namespace

std::span<const KernelInfo> depthwise_kernels() { return kKernels; }

}  // namespace ingot
