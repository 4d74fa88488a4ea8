// conv_packed: convolution of channels-last x by a constant weight stored in panels, with an epilogue. It is
// matmul_packed's product over patches of x, which are gathered block by block. conv_transpose_packed: the same for
// every phase of the output positions modulo the stride, each of which is an ordinary convolution with stride 1. A
// 3x3 convolution of floats with stride 1, one with taps along one axis and phases of two taps go by Winograd (winograd.h)
// where that is faster than the level's direct product; groups of few channels by vectors that hold several of them
// (grouped.h); a handful of outputs by vectors along the patches (narrow.h). Where a build has measured, the parameter
// `algorithm` takes the place of these rules, at every level and for every size, and `order` and `split` that of the direct
// product's rules for its loops and for what it deals to workers. An algorithm that the convolution cannot take is as none.
//
// Limits: 1 to 3 spatial dimensions; x and the weight are both float32, bfloat16, float16 or int8; sums are float32, or of int8 whole
// numbers which the epilogue gets as float32. The last
// dimension of x is dense; rows of y are dense and equally far apart; extras broadcast to [rows of y, outputs]. Reads outside
// x are zero (of int8 in conv_packed the number `outside`), so padding behind x is only seen in y's shape. y may be int8 or uint8,
// as the epilogue's last step makes them.
#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>

#include "grouped.h"
#include "level/image.h"
#include "level/raised_lines.h"
#include "narrow.h"
#include "product.h"
#include "window.h"
#include "winograd.h"

namespace ingot {

namespace {

using Sizes = std::array<std::int64_t, 3>;

/// Pixels of a channels-last view along three axes.
Sizes pixels_of(const TensorView& view) {
  const Spatial at(view, view.rank - 2);
  return {at.shape[1], at.shape[2], at.shape[3]};
}

/// [N, W, C] as [N, 1, W, C].
TensorView with_lines(const TensorView& view) {
  if (view.rank != 3) return view;
  TensorView four = view;
  four.rank = 4;
  for (int dim = 3; dim > 1; --dim) four.shape[dim] = view.shape[dim - 1], four.stride[dim] = view.stride[dim - 1];
  four.shape[1] = 1, four.stride[1] = 0;
  return four;
}

enum class Algorithm { direct, winograd_2, winograd_4, by_rules };  // 2 and 4: outputs of a tile each way

/// What both kernels are made with.
struct Parameters {
  std::int64_t outputs, channels, groups;
  Window window;
  DType dtype;
  Level level;
  int outside = 0;  // of int8: what lies around x
  Algorithm algorithm = Algorithm::by_rules;
  Order order = Order::by_rules;
  Split split = Split::by_rules;

  std::int64_t group_channels() const { return channels / groups; }
  std::int64_t group_outputs() const { return outputs / groups; }
  std::int64_t group_units() const { return (group_outputs() + kPanel - 1) / kPanel; }
};

/// One product: all groups of a convolution, or of a phase of a transposed one.
struct Product {
  const Window* window;
  const TensorView* weight; // in panels; null where no tap reaches
  Sizes out;                // pixels
  std::int64_t first_row;   // of y
  const RowPlaces* places;  // or null
};

class Convolution : public Kernel {
 public:
  Convolution(const char* name, const Parameters& parameters, Epilogue epilogue)
      : name_(name), p_(parameters), epilogue_(std::move(epilogue)), product_(product_for(p_.level, p_.dtype)) {}

 protected:
  void check_operands(Views in, Views out, std::size_t first_extra) const {
    const TensorView &x = in[0], &y = out[0];
    require(x.shape[x.rank - 1] == p_.channels && y.shape[y.rank - 1] == p_.outputs, name_,
            "x must be [N, sizes..., channels] and y [N, sizes..., outputs]");
    require(x.shape[0] == y.shape[0], name_, "x and y must have the same number of images");
    constexpr std::int64_t kLargest = std::int64_t{1} << 40;
    for (int dim = 1; dim <= p_.window.axes; ++dim)
      require(x.shape[dim] <= kLargest && y.shape[dim] <= kLargest, name_, "x and y may have at most 2^40 pixels along a dimension");
    require_dense_rows(name_, "x", x);
    require_dense_rows(name_, "y", y);
    require(row_stride(y, y).has_value(), name_, "rows of y must be equally far apart");
    require_extras(name_, in, first_extra, y);
  }

  void check_panels(const TensorView& w, std::int64_t taps) const {
    PackedWeight(w.dtype, taps * p_.group_channels()).check(name_, "the weight", &w, p_.groups * p_.group_units());
  }

  /// Of a product by this window, whose output has that many pixels in each of its images.
  std::size_t scratch(const Window& window, const TensorView& x, const Sizes& out, int threads) const {
    const std::int64_t k = window.positions() * p_.group_channels(), rows = x.shape[0] * out[0] * out[1] * out[2];
    const Patches patches = patches_of(window, x, out, 0);
    const ImagePlan image = image_of(patches, x);
    std::size_t product = image.lines > 0 ? bytes_of_layout<ImageMemory>(image)
                                          : product_scratch(blocking_of(product_.blocking, p_.order), rows, p_.group_units(), k, 1, threads);
    if (product_.raises) product = std::max(product, static_cast<std::size_t>(raised_lines(patches).bytes()));
    return bytes_of_layout<ProductMemory>(PackedWeight(p_.dtype, k), epilogue_, product);
  }

  /// A worker's part of a product: its rows of all units of its columns, group by group.
  void multiply(const Product& product, Views in, const TensorView& y, std::size_t first_extra, const Worker& worker) const {
    const std::int64_t units = p_.group_units(), k = product.window->positions() * p_.group_channels();
    const std::int64_t rows = y.shape[0] * product.out[0] * product.out[1] * product.out[2];
    Patches patches = patches_of(*product.window, in[0], product.out, 0);
    const ImagePlan image = image_of(patches, in[0]);
    const double packing = image.lines == 0 ? kPackingPatches : image.packs ? 1 : kPackingImage / static_cast<double>(product.window->positions());
    const Grid grid = grid_of(p_.split, rows, p_.groups * units, worker.count, packing, rows_step(product_));
    const Share down = share_of(rows, worker.index / grid.by_units, grid.by_rows);
    const Share across = share_of(p_.groups * units, worker.index % grid.by_units, grid.by_units);
    if (down.first == down.last) return;
    const PackedWeight weight(p_.dtype, k);
    const auto memory = layout_at<ProductMemory>(worker.local, weight, epilogue_);
    patches.first = down.first;
    std::optional<RowPlaces> places;
    if (product.places != nullptr) (places = *product.places)->first = down.first;
    const std::int64_t row = product.first_row + (places ? 0 : down.first);
    TileOperand extras[kMaxExtras];
    MatmulJob job{};
    job.patches = &patches;
    job.image = image.lines > 0 ? &image : nullptr;
    job.places = places ? &*places : nullptr;
    job.rows = down.last - down.first;
    job.k = k;
    job.order = p_.order;
    job.parts = 1;
    job.epilogue = epilogue_.job(extras, in.size() - first_extra, memory.epilogue);
    job.scratch = memory.product;
    for (std::int64_t unit = across.first; unit < across.last; unit += job.units) {
      const std::int64_t group = unit / units, column = unit % units * kPanel;
      patches.x = in[0].at(group * p_.group_channels());
      job.units = std::min(units - unit % units, across.last - unit);
      if (product.weight != nullptr) weight.place(job, product.weight, unit, memory.unpacked);
      job.columns = p_.group_outputs() - column;
      const std::int64_t output = group * p_.group_outputs() + column;
      place_operands(in, first_extra, y, row, output, extras, job.epilogue.out);
      product_.run(job);
    }
  }

  /// A worker's part of a product by Winograd, whose outputs lie in y from that row on.
  void transform(const Winograd& winograd, WinogradOperands operands, Views in, const TensorView& y, std::int64_t first_row,
                 std::size_t first_extra, const Worker& worker) const {
    TileOperand extras[kMaxExtras];
    place_operands(in, first_extra, y, first_row, 0, extras, operands.out);
    operands.extras = extras;
    operands.extra_count = in.size() - first_extra;
    winograd.run(operands, worker);
  }

  const char* name_;
  Parameters p_;
  Epilogue epilogue_;
  const PackedProduct& product_;

 private:
  ImagePlan image_of(const Patches& patches, const TensorView& x) const {
    return product_.tiles && p_.order != Order::packed ? image_plan(patches, bytes_of(x.dtype), x.shape[0]) : ImagePlan{};
  }

  Patches patches_of(const Window& window, const TensorView& x, const Sizes& out, std::int64_t first) const {
    const int width = bytes_of(x.dtype);
    Patches patches{};
    patches.first = first;
    patches.image_stride = x.stride[0] * width;
    patches.channels = p_.group_channels();
    const Window over = window.over(x);
    for (int dim = 0; dim < kAxes; ++dim) {
      const int own = dim - (kAxes - window.axes) + 1;
      patches.x_stride[dim] = own < 1 ? 0 : x.stride[own] * width;
      patches.axis[dim] = over.axis[dim];
      patches.out[dim] = out[dim];
    }
    const bool together = window.axis[2].dilation == 1 && patches.x_stride[2] == patches.channels * width;
    patches.run = together ? window.axis[2].kernel : 1;
    patches.outside = p_.outside;
    return patches;
  }
};

class ConvPacked final : public Convolution {
 public:
  ConvPacked(const char* name, const Parameters& parameters, Epilogue epilogue, bool constant_weight)
      : Convolution(name, parameters, std::move(epilogue)) {
    if (p_.algorithm == Algorithm::direct || !constant_weight) return;
    const int tile = p_.algorithm == Algorithm::winograd_2 ? 2 : p_.algorithm == Algorithm::winograd_4 ? 4 : 0;
    if (p_.groups == 1 && p_.dtype != DType::int8 && Winograd::takes(p_.window)) {
      winograd_.emplace(p_.outputs, p_.channels, p_.dtype, p_.window, epilogue_, p_.level, tile);
      if (always_winograd()) return;
    }
    if (p_.groups == 1 && Narrow::suits(p_.channels, p_.outputs, p_.dtype, p_.window, p_.outside, product_.speed))
      narrow_.emplace(p_.channels, p_.outputs, p_.dtype, p_.window, epilogue_, p_.level);
    const GroupedProduct grouped = Grouped::suits(p_.groups, p_.group_channels(), p_.group_outputs(), p_.dtype, p_.level);
    if (grouped != nullptr)
      grouped_.emplace(p_.groups, p_.group_channels(), p_.group_outputs(), p_.dtype, p_.window, p_.outside, epilogue_, grouped);
  }

  Scratch plan(Views in, Views out, int threads) const override {
    check_operands(in, out, 2);
    check_panels(in[1], p_.window.positions());
    if (grouped_) {
      grouped_->prepare(in[1]);
      return grouped_->scratch();
    }
    if (narrow_) {
      narrow_->prepare(in[1]);
      return narrow_->scratch();
    }
    if (by_winograd(out[0])) {
      const TensorView y = with_lines(out[0]);
      winograd_->prepare(in[1], y);
      return winograd_->scratch(y, threads);
    }
    return {0, scratch(p_.window, in[0], pixels_of(out[0]), threads)};
  }

  std::optional<std::uint64_t> apart(Views in, Views out) const override { return 1 | apart_by_broadcast(in, out[0], 2); }

  bool replaces(std::size_t operand, Views, Views out) const override {
    return operand >= 2 && !grouped_ && !narrow_ && !by_winograd(out[0]) && ends_in_place(product_, out[0].dtype);
  }

  bool keeps(std::size_t operand) const override { return (winograd_ || grouped_ || narrow_) && operand == 1; }

  void run(Views in, Views out, const Worker& worker) const override {
    if (grouped_) return grouped_->run(in, out[0], worker);
    if (narrow_) return narrow_->run(in, out[0], worker);
    if (by_winograd(out[0])) {
      const TensorView y = with_lines(out[0]);
      const WinogradRows rows{y.shape[1] * y.shape[2], y.shape[2], 1};
      return transform(*winograd_, {with_lines(in[0]), in[1], y, rows}, in, out[0], 0, 2, worker);
    }
    multiply({&p_.window, &in[1], pixels_of(out[0]), 0, nullptr}, in, out[0], 2, worker);
  }

 private:
  bool always_winograd() const { return winograd_ && p_.algorithm != Algorithm::by_rules; }

  bool by_winograd(const TensorView& y) const {
    return always_winograd() || (winograd_ && winograd_->suits(with_lines(y), product_.speed));
  }

  std::optional<Winograd> winograd_;  // for the shapes that it suits, or for all shapes
  std::optional<Grouped> grouped_;    // for all shapes
  std::optional<Narrow> narrow_;      // for all shapes
};

/// A phase: the outputs o = phase (mod stride), whose window over x has stride 1; taps in ascending order of the input pixel.
struct Phase {
  Sizes phase;
  Window window;
  std::int64_t weight;  // operand, or -1: no tap reaches these outputs
  std::unique_ptr<Winograd> winograd{};  // for the shapes that it suits, or null
};

/// The phases along one axis that taps reach: output o reads at tap k the input (o + before - k * dilation) / stride, where that
/// is whole.
std::map<std::int64_t, WindowAxis> phases_along(const WindowAxis& whole) {
  const std::int64_t common = std::gcd(whole.stride, whole.dilation), apart = whole.stride / common;
  std::map<std::int64_t, WindowAxis> found;
  for (std::int64_t tap = 0; tap < std::min(whole.kernel, apart); ++tap) {
    const std::int64_t rest = (tap * whole.dilation - whole.before) % whole.stride, phase = rest < 0 ? rest + whole.stride : rest;
    const std::int64_t count = (whole.kernel - 1 - tap) / apart + 1, last = tap + (count - 1) * apart;
    const std::int64_t before = (last * whole.dilation - whole.before - phase) / whole.stride;
    found[phase] = {1, count, 1, before, 0, whole.dilation / common};
  }
  return found;
}

/// Those that taps reach, in row-major order, each with a weight; refused where the call has another number of these. The others,
/// which may be as many as the strides' product, are never listed.
std::vector<Phase> find_phases(const char* name, const Window& window, Types in, Types out) {
  const auto z = phases_along(window.axis[0]), y = phases_along(window.axis[1]), x = phases_along(window.axis[2]);
  const std::size_t weights = z.size() * y.size() * x.size();  // each at most 2^16
  require_operands(name, in, 1 + weights, weights + kMaxExtras, out, 1);
  std::vector<Phase> phases;
  for (const auto& [plane, over_planes] : z)
    for (const auto& [line, over_lines] : y)
      for (const auto& [column, over_columns] : x) {
        phases.push_back({{plane, line, column}, window, static_cast<std::int64_t>(phases.size()) + 1});
        WindowAxis* const axis = phases.back().window.axis;
        axis[0] = over_planes, axis[1] = over_lines, axis[2] = over_columns;
      }
  return phases;
}

class ConvTransposePacked final : public Convolution {
 public:
  ConvTransposePacked(const char* name, const Parameters& parameters, Epilogue epilogue, std::vector<Phase> phases, Types in)
      : Convolution(name, parameters, std::move(epilogue)), phases_(std::move(phases)) {
    if (p_.groups != 1 || p_.dtype == DType::int8) return;
    for (Phase& phase : phases_)
      if (in[phase.weight].constant && Winograd::takes_phase(phase.window))
        phase.winograd = std::make_unique<Winograd>(p_.outputs, p_.channels, p_.dtype, phase.window, epilogue_, p_.level, 0);
  }

  Scratch plan(Views in, Views out, int threads) const override {
    check_operands(in, out, 1 + phases_.size());
    std::size_t most = scratch(beyond({0, 0, 0}).window, in[0], sizes_of(beyond({0, 0, 0}), out[0]), threads);  // the first phase has the most outputs
    for (const Phase& phase : phases_) {
      check_panels(in[phase.weight], phase.window.positions());
      const TensorView y = pixels_of_phase(phase, out[0]);
      if (!by_winograd(phase, y)) {
        most = std::max(most, scratch(phase.window, in[0], sizes_of(phase, out[0]), threads));
        continue;
      }
      phase.winograd->prepare(in[phase.weight], y);
      most = std::max(most, phase.winograd->scratch(y, threads).per_thread);
    }
    return {0, most};
  }

  bool keeps(std::size_t operand) const override {
    return operand >= 1 && operand <= phases_.size() && phases_[operand - 1].winograd != nullptr;
  }

  std::optional<std::uint64_t> apart(Views in, Views out) const override { return 1 | apart_by_broadcast(in, out[0], 1 + phases_.size()); }

  void run(Views in, Views out, const Worker& worker) const override {
    const Sizes all = pixels_of(out[0]);
    Sizes count;  // of phases that have outputs
    for (int dim = 0; dim < 3; ++dim) count[dim] = std::min(p_.window.axis[dim].stride, all[dim]);
    std::size_t next = 0;
    for (std::int64_t z = 0; z < count[0]; ++z)
      for (std::int64_t y = 0; y < count[1]; ++y)
        for (std::int64_t x = 0; x < count[2]; ++x) {
          const Sizes at{z, y, x};
          while (next < phases_.size() && phases_[next].phase < at) ++next;
          const bool reached = next < phases_.size() && phases_[next].phase == at;
          if (reached) run_phase(phases_[next], in, out[0], worker);
          else run_phase(beyond(at), in, out[0], worker);
        }
  }

 private:
  /// A phase that no tap reaches.
  Phase beyond(const Sizes& at) const {
    Phase phase{at, p_.window, -1};
    std::fill_n(phase.window.axis, 3, WindowAxis{1, 0, 1, 0, 0, 1});
    return phase;
  }

  void run_phase(const Phase& phase, Views in, const TensorView& y, const Worker& worker) const {
    const Sizes all = pixels_of(y), rows{all[1] * all[2], all[2], 1}, sizes = sizes_of(phase, y);  // rows of y from pixel to pixel
    RowPlaces places{};
    places.image_step = all[0] * rows[0];
    std::int64_t first = 0;
    for (int dim = 0; dim < 3; ++dim) {
      places.size[dim] = sizes[dim];
      places.step[dim] = p_.window.axis[dim].stride * rows[dim];
      first += phase.phase[dim] * rows[dim];
    }
    const std::size_t first_extra = 1 + phases_.size();
    if (const TensorView outputs = pixels_of_phase(phase, y); by_winograd(phase, outputs)) {
      const WinogradRows apart{places.image_step, places.step[1], places.step[2]};
      return transform(*phase.winograd, {with_lines(in[0]), in[phase.weight], outputs, apart}, in, y, first, first_extra, worker);
    }
    const TensorView* weight = phase.weight < 0 ? nullptr : &in[phase.weight];
    multiply({&phase.window, weight, sizes, first, &places}, in, y, first_extra, worker);
  }

  bool by_winograd(const Phase& phase, const TensorView& outputs) const {
    return phase.winograd != nullptr && phase.winograd->suits(outputs, product_.speed);
  }

  /// The shape of a phase's outputs, with two spatial axes: what Winograd takes has no more.
  TensorView pixels_of_phase(const Phase& phase, const TensorView& y) const {
    const Sizes sizes = sizes_of(phase, y);
    TensorView outputs{};
    outputs.dtype = y.dtype;
    outputs.rank = 4;
    outputs.shape[0] = y.shape[0], outputs.shape[1] = sizes[1], outputs.shape[2] = sizes[2], outputs.shape[3] = p_.outputs;
    return outputs;
  }

  /// The outputs of a phase.
  Sizes sizes_of(const Phase& phase, const TensorView& y) const {
    Sizes sizes = pixels_of(y);
    for (int dim = 0; dim < 3; ++dim)
      sizes[dim] = sizes[dim] > phase.phase[dim] ? (sizes[dim] - phase.phase[dim] - 1) / p_.window.axis[dim].stride + 1 : 0;
    return sizes;
  }

  std::vector<Phase> phases_;  // that taps reach, in row-major order
};

Parameters read_parameters(Params& params, Types in, Types out, Level level,
                           std::int64_t least_padding) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 31, kFarthest = 1 << 16;
  const std::string_view kernel = params.kernel();
  const std::int64_t outputs = params.integer("outputs", 1, kLargest), channels = params.integer("channels", 1, kLargest);
  const std::int64_t groups = params.integer("groups", 1, kLargest);
  const Window window(params, in, out, {.dilation = true, .least_padding = least_padding, .most = kFarthest});
  require(outputs % groups == 0 && channels % groups == 0, kernel, "groups must divide channels and outputs");
  require(window.positions() <= kLargest / (channels / groups), kernel, "kernel positions times channels of a group must be at most 2^31");
  if (in[0].dtype != DType::int8) require_dtype(kernel, "x", in[0].dtype, kComputeFloats);
  else require(window.positions() * (channels / groups) <= kMostInt8, kernel, "sums of int8 fit into int32 up to 131071 products");
  require_dtype(kernel, "y", out[0].dtype, kEpilogueResults);
  return {outputs, channels, groups, window, in[0].dtype, level};
}

std::unique_ptr<Kernel> make_conv_packed(const nlohmann::json& json, Types in, Types out, Level level) {
  const char* name = "conv_packed";
  require_operands(name, in, 2, kMaxExtras, out, 1);
  Params params(name, json);
  Parameters p = read_parameters(params, in, out, level, 0);
  require_dtype(name, "the weight", in[1].dtype, {in[0].dtype});
  if (params.has("outside")) p.outside = read_outside(params, in[0].dtype);
  if (params.has("algorithm")) p.algorithm = static_cast<Algorithm>(params.choice("algorithm", {"direct", "winograd_2", "winograd_4"}));
  p.order = read_order(params);
  p.split = read_split(params);
  Epilogue epilogue(params, 1, in.subspan(2), out, level);
  params.done();
  return std::make_unique<ConvPacked>(name, p, std::move(epilogue), in[1].constant);
}

std::unique_ptr<Kernel> make_conv_transpose_packed(const nlohmann::json& json, Types in, Types out, Level level) {
  const char* name = "conv_transpose_packed";
  constexpr std::int64_t kLeastPadding = -(std::int64_t{1} << 31);  // negative: more outputs in front
  require_operands(name, in, 1, in.size(), out, 1);
  Params params(name, json);
  const Parameters p = read_parameters(params, in, out, level, kLeastPadding);
  std::vector<Phase> phases = find_phases(name, p.window, in, out);
  for (std::size_t i = 1; i <= phases.size(); ++i) require_dtype(name, "the weight", in[i].dtype, {in[0].dtype});
  Epilogue epilogue(params, 1, in.subspan(1 + phases.size()), out, level);
  params.done();
  return std::make_unique<ConvTransposePacked>(name, p, std::move(epilogue), std::move(phases), in);
}

constexpr KernelInfo kKernels[] = {
    {"conv_packed", 1, "x, weight, *extras -> y",
     "outputs: integer, channels: integer, groups: integer, kernel: integers, stride: integers, "
     "pre_padding: integers, dilation: integers, outside?: integer, algorithm?: direct | winograd_2 | winograd_4, "
     "order?: rows | weights | packed, split?: rows | outputs, epilogue: expression",
     make_conv_packed},
    {"conv_transpose_packed", 1, "x, *weights, *extras -> y",
     "outputs: integer, channels: integer, groups: integer, kernel: integers, stride: integers, "
     "pre_padding: integers, dilation: integers, epilogue: expression",
     make_conv_transpose_packed},
};

}  // namespace

std::span<const KernelInfo> conv_kernels() { return kKernels; }

}  // namespace ingot
