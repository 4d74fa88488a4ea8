// rms_norm, layer_norm, softmax, quantize_rows: rows of any of the three compute floats, accumulated in float32, rounded once.
// group_norm: x [N, *S, C] in groups of channels, with a scalar expression on the float32 results, which may end in int8 or uint8.
//
// Limits: the last dimension of the norms' operands has no gaps (softmax: any strides, any axis). A NaN in a row makes the
// row NaN. The order of every sum depends on the row's width alone; that of group_norm on the shape of one image. group_norm:
// the rows of an image are equally far apart, in x, in y and in extras.
#include "level/norm.h"

#include <algorithm>
#include <cmath>

#include "check.h"
#include "epilogue.h"
#include "strided.h"

namespace ingot {

namespace {

Row row_at(const TensorView& view, std::int64_t offset) {
  return {view.at(offset), view.dtype};
}

TensorView without(TensorView view, int axis) {
  for (int i = axis; i + 1 < view.rank; ++i) {
    view.shape[i] = view.shape[i + 1];
    view.stride[i] = view.stride[i + 1];
  }
  --view.rank;
  return view;
}

/// Kernel::apart where each line along an axis is computed by itself.
std::optional<std::uint64_t> apart_but_along(int axis) { return axis == 0 ? std::nullopt : std::optional<std::uint64_t>(1); }

/// quantize_rows: rows as int8, and a scale for each.
class QuantizeRows final : public Kernel {
 public:
  explicit QuantizeRows(const NormTable& table) : table_(table) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &x = in[0], &scales = out[1];
    require_same_shape("quantize_rows", "the numbers", out[0], x);
    require_dense_rows("quantize_rows", "x", x);
    require_dense_rows("quantize_rows", "the numbers", out[0]);
    require(scales.rank == x.rank && scales.shape[x.rank - 1] == 1, "quantize_rows", "the scales must be [..., 1]");
    for (int dim = 0; dim + 1 < x.rank; ++dim)
      require(scales.shape[dim] == x.shape[dim], "quantize_rows", "x and the scales must have the same rows");
    return {};
  }

  std::optional<std::uint64_t> apart(Views, Views out) const override { return apart_but_along(out[0].rank - 1); }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0], &scales = out[1];
    const std::int64_t width = x.shape[x.rank - 1];
    const TensorView x_rows = without(x, x.rank - 1), y_rows = without(y, y.rank - 1), s_rows = without(scales, x.rank - 1);
    const Share share = share_of(x_rows.elements(), worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i)
      scales.as<float>()[offset_of(s_rows, i)] =
          table_.quantize_row(row_at(x, offset_of(x_rows, i)), y.as<std::int8_t>() + offset_of(y_rows, i), width);
  }

 private:
  const NormTable& table_;
};

std::unique_ptr<Kernel> make_quantize_rows(const nlohmann::json& json, Types in, Types out, Level level) {
  const char* name = "quantize_rows";
  Params(name, json).done();
  require_operands(name, in, 1, 1, out, 2);
  require(in[0].rank >= 1, name, "x must have rows");
  require_dtype(name, "x", in[0].dtype, kComputeFloats);
  require_dtype(name, "the numbers", out[0].dtype, {DType::int8});
  require_dtype(name, "the scales", out[1].dtype, {DType::float32});
  return std::make_unique<QuantizeRows>(half_for(norm_halves, level));
}

/// rms_norm and layer_norm: operands x, then a weight and a bias if the call has them.
class Norm final : public Kernel {
 public:
  Norm(const NormTable& table, const char* name, bool centered, int weight, int bias, float eps, float shift = 0)
      : table_(table), name_(name), centered_(centered), weight_(weight), bias_(bias), eps_(eps), shift_(shift) {}

  Scratch plan(Views in, Views out, int) const override {
    require_same_shape(name_, "the output", out[0], in[0]);
    require_dense_rows(name_, "x", in[0]);
    require_dense_rows(name_, "the output", out[0]);
    const std::int64_t width = in[0].shape[in[0].rank - 1];
    for (std::size_t i = 1; i < in.size(); ++i) {
      require_shape(name_, i == 1 && weight_ == 1 ? "the weight" : "the bias", in[i], {width});
      require_dense_rows(name_, "the weight or bias", in[i]);
    }
    return {0, bytes_of_layout<Widened>(in.size() - 1, width)};
  }

  std::optional<std::uint64_t> apart(Views, Views out) const override { return apart_but_along(out[0].rank - 1); }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0];
    const std::int64_t width = x.shape[x.rank - 1];
    const TensorView x_rows = without(x, x.rank - 1), y_rows = without(y, y.rank - 1);
    const Share share = share_of(x_rows.elements(), worker.index, worker.count);
    if (share.first == share.last) return;
    const auto rows = layout_at<Widened>(worker.local, in.size() - 1, width);
    const auto widened = [&](int operand) -> const float* {  // once, not for every row
      if (operand == 0) return nullptr;
      const bool shifted = operand == weight_ && shift_ != 0;
      if (in[operand].dtype == DType::float32 && !shifted) return in[operand].as<const float>();
      float* row = rows.of_operand[operand - 1];
      table_.widen(row_at(in[operand], 0), row, width);
      for (std::int64_t i = 0; shifted && i < width; ++i) row[i] += shift_;
      return row;
    };
    const float *weight = widened(weight_), *bias = widened(bias_);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const Row from = row_at(x, offset_of(x_rows, i)), to = row_at(y, offset_of(y_rows, i));
      if (centered_)
        table_.layer_norm(from, weight, bias, to, width, eps_);
      else
        table_.rms_norm(from, weight, to, width, eps_);
    }
  }

 private:
  /// The weight and the bias in float32.
  struct Widened {
    float* of_operand[2] = {};

    Widened(Frame& frame, std::size_t count, std::int64_t width) {
      for (std::size_t i = 0; i < count; ++i) of_operand[i] = frame.take<float>(width);
    }
  };

  const NormTable& table_;
  const char* name_;
  bool centered_;
  int weight_, bias_;  // operand numbers, 0 where absent
  float eps_, shift_;  // the shift is added to the weight
};

void require_norm_types(const char* name, Types in, Types out) {
  for (const OperandType& x : in) require_dtype(name, "an operand", x.dtype, kComputeFloats);
  require_dtype(name, "the output", out[0].dtype, kComputeFloats);
  require(in[0].rank >= 1, name, "x must have a dimension");
}

std::unique_ptr<Kernel> make_rms_norm(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("rms_norm", in, 1, 2, out, 1);
  Params params("rms_norm", json);
  const float eps = static_cast<float>(params.number("eps", 0.0, 1e6));
  const float shift = params.has("shift") ? static_cast<float>(params.number("shift", -1e6, 1e6)) : 0.0f;
  params.done();
  require(shift == 0 || in.size() > 1, "rms_norm", "a shift needs a weight");
  require_norm_types("rms_norm", in, out);
  return std::make_unique<Norm>(half_for(norm_halves, level), "rms_norm", false, in.size() > 1 ? 1 : 0, 0, eps, shift);
}

std::unique_ptr<Kernel> make_layer_norm(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("layer_norm", in, 1, 3, out, 1);
  Params params("layer_norm", json);
  const float eps = static_cast<float>(params.number("eps", 0.0, 1e6));
  const bool weight = params.flag("weight"), bias = params.flag("bias");
  params.done();
  require(in.size() == 1u + weight + bias, "layer_norm", "the operands must be x and what the parameters weight and bias announce");
  require_norm_types("layer_norm", in, out);
  return std::make_unique<Norm>(half_for(norm_halves, level), "layer_norm", true, weight ? 1 : 0, bias ? 1 + weight : 0, eps);
}

class Softmax final : public Kernel {
 public:
  Softmax(const NormTable& table, int axis, bool log) : table_(table), axis_(axis), log_(log) {}

  Scratch plan(Views in, Views out, int) const override {
    require_same_shape("softmax", "the output", out[0], in[0]);
    return {0, bytes_of_layout<Memory>(in[0].shape[axis_])};
  }

  std::optional<std::uint64_t> apart(Views, Views) const override { return apart_but_along(axis_); }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0];
    const std::int64_t width = x.shape[axis_];
    const TensorView x_rows = without(x, axis_), y_rows = without(y, axis_);
    const auto memory = layout_at<Memory>(worker.local, width);
    StridedCopy gather, scatter;
    gather.add(width, 1, x.stride[axis_]);
    scatter.add(width, y.stride[axis_], 1);
    const Share share = share_of(x_rows.elements(), worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      Row from = row_at(x, offset_of(x_rows, i)), to = row_at(y, offset_of(y_rows, i));
      void* const result = to.data;
      if (x.stride[axis_] != 1) {
        copy_strided(gather, memory.dense_x, from.data, size_of(x.dtype));
        from.data = memory.dense_x;
      }
      if (y.stride[axis_] != 1) to.data = memory.dense_y;
      table_.softmax(from, to, width, log_, memory.scratch);
      if (to.data != result) copy_strided(scatter, result, memory.dense_y, size_of(y.dtype));
    }
  }

 private:
  struct Memory {
    float* scratch;
    float *dense_x, *dense_y;  // copies of rows with gaps

    Memory(Frame& frame, std::int64_t width)
        : scratch(frame.take<float>(width)), dense_x(frame.take<float>(width)), dense_y(frame.take<float>(width)) {}
  };

  const NormTable& table_;
  int axis_;
  bool log_;
};

std::unique_ptr<Kernel> make_softmax(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("softmax", in, 1, 1, out, 1);
  require(in[0].rank >= 1, "softmax", "x must have a dimension");
  Params params("softmax", json);
  const int axis = params.axis("axis", in[0].rank, -1);
  const bool log = params.flag("log", false);
  params.done();
  require_norm_types("softmax", in, out);
  return std::make_unique<Softmax>(half_for(norm_halves, level), axis, log);
}

/// Where the rows of images [N, *S, C] lie, or of an operand that broadcasts to them.
struct Images {
  std::int64_t image_stride, row_stride, channel_stride;

  /// The rows of an image must be equally far apart.
  Images(const TensorView& view, const TensorView& y)
      : image_stride(broadcast_stride(view, y.rank, 0)), row_stride(ingot::row_stride(view, y, 1).value()),
        channel_stride(broadcast_stride(view, y.rank, y.rank - 1)) {}
  TileOperand at(const TensorView& view, std::int64_t image, std::int64_t row) const {
    return {view.at(image * image_stride + row * row_stride), view.dtype, row_stride, channel_stride};
  }
};

/// Chunks of rows, as many as the shape of one image says, each with its statistics: so the order of summation is one.
class GroupNorm final : public Kernel {
 public:
  GroupNorm(const NormTable& table, std::int64_t groups, float eps, int weight, int bias, Epilogue epilogue)
      : table_(table), groups_(groups), eps_(eps), weight_(weight), bias_(bias), epilogue_(std::move(epilogue)) {}

  Scratch plan(Views in, Views out, int) const override {
    const char* name = "group_norm";
    const TensorView &x = in[0], &y = out[0];
    const std::int64_t channels = x.shape[x.rank - 1];
    require_same_shape(name, "y", y, x);
    require_dense_rows(name, "x", x);
    require_dense_rows(name, "y", y);
    require(channels % groups_ == 0, name, "groups must divide the channels");
    require(row_stride(x, y, 1) && row_stride(y, y, 1), name, "the rows of an image must be equally far apart");
    const std::size_t extras = 1u + (weight_ > 0) + (bias_ > 0);
    for (std::size_t i = 1; i < extras; ++i) {
      require_shape(name, weight_ > 0 && i == 1 ? "the weight" : "the bias", in[i], {channels});
      require_dense_rows(name, "the weight or bias", in[i]);
    }
    for (std::size_t i = extras; i < in.size(); ++i) {
      require_broadcasts(name, in[i], y);
      require(row_stride(in[i], y, 1).has_value(), name, "the rows of an operand of the epilogue must be equally far apart in an image");
    }
    const Chunks chunks(x);
    Frame shared = Frame::counting();
    shared.take<float>(x.shape[0] * chunks.count * kStatistics * groups_);
    return {shared.bytes(), bytes_of_layout<Memory>(epilogue_, channels, groups_)};
  }

  std::optional<std::uint64_t> apart(Views in, Views out) const override {
    return 1 | apart_by_broadcast(in, out[0], 1u + (weight_ > 0) + (bias_ > 0));
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0];
    if (x.elements() == 0) return;
    const Chunks chunks(x);
    const std::int64_t channels = x.shape[x.rank - 1], each = kStatistics * groups_;
    const Images from(x, y), to(y, y);
    float* statistics = reinterpret_cast<float*>(worker.shared);
    const auto memory = layout_at<Memory>(worker.local, epilogue_, channels, groups_);
    const auto rows = [&](std::int64_t chunk) {
      return GroupRows{from.at(x, chunk / chunks.count, chunk % chunks.count * chunks.rows).data, x.dtype,
                       chunks.rows_of(chunk % chunks.count), from.row_stride, channels, groups_};
    };
    const Share share = share_of(x.shape[0] * chunks.count, worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i)
      table_.group_statistics(rows(i), statistics + i * each, memory.factors);
    worker.barrier();
    TileOperand extras[kMaxInputs];
    const std::size_t first_extra = 1u + (weight_ > 0) + (bias_ > 0);
    EpilogueJob epilogue = epilogue_.job(extras, in.size() - first_extra, memory.epilogue);
    float *center = memory.factors, *scale = center + padded(channels), *shift = scale + padded(channels);
    std::int64_t known = -1;
    for (std::int64_t i = share.last - 1; i >= share.first; --i) {  // backwards: what was read last is still in L2
      const std::int64_t image = i / chunks.count, row = i % chunks.count * chunks.rows;
      if (image != known) channel_factors(in, statistics + image * chunks.count * each, chunks, memory.sums, center, scale, shift);
      known = image;
      for (std::size_t j = first_extra; j < in.size(); ++j) extras[j - first_extra] = Images(in[j], y).at(in[j], image, row);
      epilogue.out = to.at(y, image, row);
      epilogue.out.column_stride = 1;
      table_.group_normalise(rows(i), center, scale, shift, epilogue, memory.tile);
    }
  }

 private:
  struct Chunks {
    std::int64_t all, rows, count;

    explicit Chunks(const TensorView& x) : all(1) {
      for (int dim = 1; dim + 1 < x.rank; ++dim) all *= x.shape[dim];
      constexpr std::int64_t kElements = 8192;  // float32: 32 KiB of L1
      rows = std::max<std::int64_t>(8, kElements / std::max<std::int64_t>(1, x.shape[x.rank - 1]) / 8 * 8);
      count = (all + rows - 1) / rows;
    }
    std::int64_t rows_of(std::int64_t chunk) const { return std::min(rows, all - chunk * rows); }
  };
  static constexpr std::int64_t kStatistics = 3;  // of a group in a chunk
  static std::int64_t padded(std::int64_t channels) { return (channels + 15) / 16 * 16; }

  struct Memory {
    std::byte* epilogue;
    float* factors;  // of each channel: what is subtracted, multiplied by and added; before, statistics are made there
    float* tile;
    double* sums;

    Memory(Frame& frame, const Epilogue& epilogue_of, std::int64_t channels, std::int64_t groups)
        : epilogue(epilogue_of.take(frame)), factors(frame.take<float>(3 * padded(channels))), tile(frame.take<float>(kTile)),
          sums(frame.take<double>(2 * groups)) {}
  };

  /// An image's chunks put together: per channel, what to subtract, to multiply by and to add.
  void channel_factors(Views in, const float* statistics, const Chunks& chunks, double* sums, float* center, float* scale, float* shift) const {
    const std::int64_t channels = in[0].shape[in[0].rank - 1], width = channels / groups_;
    std::fill(scale, scale + channels, 1.0f);
    std::fill(shift, shift + channels, 0.0f);
    if (weight_ > 0) table_.widen(row_at(in[weight_], 0), scale, channels);
    if (bias_ > 0) table_.widen(row_at(in[bias_], 0), shift, channels);
    double *means = sums, *squares = sums + groups_;
    std::fill(sums, sums + 2 * groups_, 0.0);
    for (std::int64_t i = 0; i < chunks.count; ++i) {
      const float *mean = statistics + i * kStatistics * groups_, *rest = mean + groups_;
      const double rows = static_cast<double>(chunks.rows_of(i));
      for (std::int64_t g = 0; g < groups_; ++g) means[g] += (static_cast<double>(mean[g]) + rest[g]) * rows;
    }
    for (std::int64_t g = 0; g < groups_; ++g) means[g] /= static_cast<double>(chunks.all);
    for (std::int64_t i = 0; i < chunks.count; ++i) {
      const float *mean = statistics + i * kStatistics * groups_, *rest = mean + groups_, *square = rest + groups_;
      const double count = static_cast<double>(chunks.rows_of(i) * width);
      for (std::int64_t g = 0; g < groups_; ++g) {
        const double distance = static_cast<double>(mean[g]) + rest[g] - means[g];
        squares[g] += square[g] + distance * distance * count;
      }
    }
    for (std::int64_t g = 0; g < groups_; ++g) {
      const double variance = squares[g] / static_cast<double>(chunks.all * width);
      const float factor = static_cast<float>(1.0 / std::sqrt(variance + eps_));
      for (std::int64_t c = g * width; c < (g + 1) * width; ++c) {
        center[c] = static_cast<float>(means[g]);
        scale[c] *= factor;
        shift[c] += static_cast<float>(center[c] - means[g]) * scale[c];  // what rounding the mean took
      }
    }
  }

  const NormTable& table_;
  std::int64_t groups_;
  float eps_;
  int weight_, bias_;  // operand numbers, 0 where absent
  Epilogue epilogue_;
};

std::unique_ptr<Kernel> make_group_norm(const nlohmann::json& json, Types in, Types out, Level level) {
  const char* name = "group_norm";
  require_operands(name, in, 1, kMaxInputs, out, 1);
  Params params(name, json);
  const std::int64_t groups = params.integer("groups", 1, std::int64_t{1} << 31);
  const float eps = static_cast<float>(params.number("eps", 0.0, 1e6));
  const bool weight = params.flag("weight"), bias = params.flag("bias");
  const std::size_t own = 1u + weight + bias;
  require(in.size() >= own, name, "the operands must be x, what the parameters weight and bias announce, and those of the epilogue");
  require(in[0].rank >= 2, name, "x must be [N, ..., C]");
  require_dtype(name, "x", in[0].dtype, kComputeFloats);
  for (std::size_t i = 1; i < own; ++i) require_dtype(name, "the weight or bias", in[i].dtype, {in[0].dtype});
  require_dtype(name, "y", out[0].dtype, kEpilogueResults);
  Epilogue epilogue(params, 1, in.subspan(own), out, level);
  params.done();
  return std::make_unique<GroupNorm>(half_for(norm_halves, level), groups, eps, weight ? 1 : 0, bias ? 1 + weight : 0,
                                     std::move(epilogue));
}

constexpr KernelInfo kKernels[] = {
    {"rms_norm", 1, "x, weight? -> y", "eps: number, shift?: number", make_rms_norm},
    {"layer_norm", 1, "x, weight?, bias? -> y", "eps: number, weight: flag, bias: flag", make_layer_norm},
    {"softmax", 1, "x -> y", "axis?: integer, log?: flag", make_softmax},
    {"quantize_rows", 1, "x -> y, scales", "", make_quantize_rows},
    {"group_norm", 1, "x, weight?, bias?, *extras -> y",
     "groups: integer, eps: number, weight: flag, bias: flag, epilogue: expression",
     make_group_norm},
};

}  // namespace

std::span<const KernelInfo> norm_kernels() { return kKernels; }

}  // namespace ingot
