// rms_norm, layer_norm, softmax: rows of any of the three compute floats, accumulated in float32, rounded once.
//
// Limits: the last dimension of the norms' operands has no gaps (softmax: any strides, any axis). A NaN in a row makes the
// row NaN. The order of every sum depends on the row's width alone.
#include "level/norm.h"

#include "check.h"
#include "strided.h"

namespace ingot {

namespace {

using Views = std::span<const TensorView>;
using Types = std::span<const OperandType>;

const NormTable& table_for([[maybe_unused]] Level level) {
#if INGOT_X86
  if (level >= Level::avx512) return avx512::norm_table;
  if (level >= Level::avx2) return avx2::norm_table;
#endif
  return portable::norm_table;
}

Row row_at(const TensorView& view, std::int64_t offset) {
  return {view.as<std::byte>() + offset * static_cast<std::int64_t>(size_of(view.dtype)), view.dtype};
}

TensorView without(TensorView view, int axis) {
  for (int i = axis; i + 1 < view.rank; ++i) {
    view.shape[i] = view.shape[i + 1];
    view.stride[i] = view.stride[i + 1];
  }
  --view.rank;
  return view;
}

/// rms_norm and layer_norm: operands x, then a weight and a bias if the call has them.
class Norm final : public Kernel {
 public:
  Norm(const NormTable& table, const char* name, bool centered, int weight, int bias, float eps)
      : table_(table), name_(name), centered_(centered), weight_(weight), bias_(bias), eps_(eps) {}

  Scratch plan(Views in, Views out, int) const override {
    require_same_shape(name_, "the output", out[0], in[0]);
    require_dense_rows(name_, "x", in[0]);
    require_dense_rows(name_, "the output", out[0]);
    const std::int64_t width = in[0].shape[in[0].rank - 1];
    for (std::size_t i = 1; i < in.size(); ++i) {
      require_shape(name_, i == 1 && weight_ == 1 ? "the weight" : "the bias", in[i], {width});
      require_dense_rows(name_, "the weight or bias", in[i]);
    }
    return {};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0];
    const std::int64_t width = x.shape[x.rank - 1];
    const TensorView x_rows = without(x, x.rank - 1), y_rows = without(y, y.rank - 1);
    const Row weight = weight_ > 0 ? row_at(in[weight_], 0) : Row{nullptr, DType::float32};
    const Row bias = bias_ > 0 ? row_at(in[bias_], 0) : Row{nullptr, DType::float32};
    const Share share = share_of(x_rows.elements(), worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const Row from = row_at(x, offset_of(x_rows, i)), to = row_at(y, offset_of(y_rows, i));
      if (centered_)
        table_.layer_norm(from, weight, bias, to, width, eps_);
      else
        table_.rms_norm(from, weight, to, width, eps_);
    }
  }

 private:
  const NormTable& table_;
  const char* name_;
  bool centered_;
  int weight_, bias_;  // operand numbers, 0 where absent
  float eps_;
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
  params.done();
  require_norm_types("rms_norm", in, out);
  return std::make_unique<Norm>(table_for(level), "rms_norm", false, in.size() > 1 ? 1 : 0, 0, eps);
}

std::unique_ptr<Kernel> make_layer_norm(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("layer_norm", in, 1, 3, out, 1);
  Params params("layer_norm", json);
  const float eps = static_cast<float>(params.number("eps", 0.0, 1e6));
  const bool weight = params.flag("weight"), bias = params.flag("bias");
  params.done();
  require(in.size() == 1u + weight + bias, "layer_norm", "the operands must be x and what the parameters weight and bias announce");
  require_norm_types("layer_norm", in, out);
  return std::make_unique<Norm>(table_for(level), "layer_norm", true, weight ? 1 : 0, bias ? 1 + weight : 0, eps);
}

class Softmax final : public Kernel {
 public:
  Softmax(const NormTable& table, int axis, bool log) : table_(table), axis_(axis), log_(log) {}

  Scratch plan(Views in, Views out, int) const override {
    require_same_shape("softmax", "the output", out[0], in[0]);
    return {0, 3 * row_bytes(in[0])};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0];
    const std::int64_t width = x.shape[axis_];
    const TensorView x_rows = without(x, axis_), y_rows = without(y, axis_);
    // Rows with gaps go through dense copies.
    std::byte *dense_x = worker.local + row_bytes(x), *dense_y = dense_x + row_bytes(x);
    StridedCopy gather, scatter;
    gather.add(width, 1, x.stride[axis_]);
    scatter.add(width, y.stride[axis_], 1);
    const Share share = share_of(x_rows.elements(), worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      Row from = row_at(x, offset_of(x_rows, i)), to = row_at(y, offset_of(y_rows, i));
      void* const result = to.data;
      if (x.stride[axis_] != 1) {
        copy_strided(gather, dense_x, from.data, size_of(x.dtype));
        from.data = dense_x;
      }
      if (y.stride[axis_] != 1) to.data = dense_y;
      table_.softmax(from, to, width, log_, reinterpret_cast<float*>(worker.local));
      if (to.data != result) copy_strided(scatter, result, dense_y, size_of(y.dtype));
    }
  }

 private:
  std::size_t row_bytes(const TensorView& x) const {
    return (static_cast<std::size_t>(x.shape[axis_]) * sizeof(float) + 63) / 64 * 64;
  }

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
  return std::make_unique<Softmax>(table_for(level), axis, log);
}

constexpr KernelInfo kKernels[] = {
    {"rms_norm", 1, "x, weight? -> y; eps", make_rms_norm},
    {"layer_norm", 1, "x, weight?, bias? -> y; eps, weight, bias", make_layer_norm},
    {"softmax", 1, "x -> y; axis, log", make_softmax},
};

}  // namespace

std::span<const KernelInfo> norm_kernels() { return kKernels; }

}  // namespace ingot
