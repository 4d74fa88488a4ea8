// reduce (sum, mean, max, min, prod) and argmax over any axes and strides.
//
// Floats accumulate in float32, float64 in float64, integers and booleans in 64 bits and wrap to the output's type. NaN
// propagates; of equal greatest elements the first is taken, and a NaN counts as greatest. Limits: the output is
// contiguous; mean is for floats. An output's order of additions depends on the sizes and strides of the reduced
// dimensions alone, not on other outputs nor on the workers. It is along the last of them when its elements lie side by
// side, or of float64; else position by position. Neighbours that lie one after the other in memory count as one
// dimension.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "check.h"
#include "level/frame.h"
#include "level/reduce.h"
#include "strided.h"

namespace ingot {

namespace {

/// x seen as kept dimensions and reduced ones. Reduced dimensions that are neighbours in x and in memory are joined.
struct Parts {
  TensorView kept, reduced;
};

Parts split(const TensorView& x, const bool (&is_reduced)[kMaxRank]) {
  Parts parts{x, x};
  parts.kept.rank = parts.reduced.rank = 0;
  for (int i = 0; i < x.rank; ++i) {
    TensorView& part = is_reduced[i] ? parts.reduced : parts.kept;
    const bool joined = is_reduced[i] && i > 0 && is_reduced[i - 1] && part.stride[part.rank - 1] == x.shape[i] * x.stride[i];
    if (joined) {
      part.shape[part.rank - 1] *= x.shape[i];
      part.stride[part.rank - 1] = x.stride[i];
    } else {
      part.shape[part.rank] = x.shape[i];
      part.stride[part.rank++] = x.stride[i];
    }
  }
  return parts;
}

/// Takes the last dimension off a view: the run along which kernels work.
struct Run {
  std::int64_t count = 1, stride = 1;
};
Run take_last(TensorView& view) {
  if (view.rank == 0) return {};
  --view.rank;
  return {view.shape[view.rank], view.stride[view.rank]};
}

/// Calls f with a value of the integer dtype's C++ type.
template <class F>
void with_integers(DType dtype, const F& f) {
  switch (dtype) {
    case DType::int8: return f(std::int8_t{});
    case DType::int16: return f(std::int16_t{});
    case DType::int32: return f(std::int32_t{});
    case DType::int64: return f(std::int64_t{});
    case DType::uint16: return f(std::uint16_t{});
    case DType::uint32: return f(std::uint32_t{});
    case DType::uint64: return f(std::uint64_t{});
    default: return f(std::uint8_t{});
  }
}

void store_integer(const TensorView& y, std::int64_t i, std::uint64_t value) {
  if (y.dtype == DType::boolean) return void(y.as<std::uint8_t>()[i] = value != 0);
  with_integers(y.dtype, [&](auto type) { y.as<decltype(type)>()[i] = static_cast<decltype(type)>(value); });
}

class Reduce final : public Kernel {
 public:
  Reduce(const ReduceTable& table, Reduction how, const std::vector<std::int64_t>& axes) : table_(table), how_(how) {
    for (const std::int64_t axis : axes) reduced_[axis] = true;
  }

  Scratch plan(Views in, Views out, int) const override {
    std::int64_t expected = 1;
    for (int i = 0; i < in[0].rank; ++i)
      if (!reduced_[i]) expected *= in[0].shape[i];
    require(out[0].elements() == expected, "reduce", "the output's shape must be x's without the reduced axes");
    require_contiguous("reduce", "the output", out[0]);
    return {0, bytes_of_layout<Columns>()};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0];
    const Parts parts = split(x, reduced_);
    if (x.dtype == DType::float64) return run_doubles(parts, y, worker);
    if (!is_float(x.dtype)) return run_integers(parts, y, worker);
    TensorView outer = parts.reduced;
    const Run last = take_last(outer);
    if (last.stride == 1 && last.count > 1)
      run_along(parts.kept, outer, last.count, y, worker);
    else
      run_down(parts, y, worker);
  }

 private:
  static constexpr std::int64_t kColumns = 1024;  // outputs that a vertical reduction has in hand
  struct Columns {
    float *total, *part, *dense;  // dense: a copy of a position's elements

    explicit Columns(Frame& frame)
        : total(frame.take<float>(kColumns)), part(frame.take<float>(kColumns)), dense(frame.take<float>(kColumns)) {}
  };
  static constexpr std::int64_t kBlock = 1024;    // positions added up before they join the total: bounds rounding errors

  float start() const {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    return how_ == Reduction::prod ? 1.0f : how_ == Reduction::max ? -kInfinity : how_ == Reduction::min ? kInfinity : 0.0f;
  }

  void finish(float* values, std::int64_t count, const TensorView& y, std::int64_t first, std::int64_t reduced) const {
    if (how_ == Reduction::mean)
      for (std::int64_t i = 0; i < count; ++i) values[i] /= static_cast<float>(reduced);
    table_.convert(values, DType::float32, y.at(first), y.dtype, count);
  }

  /// The last reduced dimension lies side by side: each output is a sequence of dense runs.
  void run_along(const TensorView& kept, const TensorView& outer, std::int64_t width, const TensorView& y,
                 const Worker& worker) const {
    const std::int64_t runs = outer.elements();
    const Share share = share_of(kept.elements(), worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const std::int64_t base = offset_of(kept, i);
      float value = start();
      for (std::int64_t r = 0; r < runs; ++r) {
        const float one = table_.run(outer.at(base + offset_of(outer, r)), outer.dtype, width, how_);
        table_.combine(&value, &one, DType::float32, 1, how_);
      }
      finish(&value, 1, y, i, runs * width);
    }
  }

  /// Position after position, over as many neighbouring outputs as the last kept dimension has.
  void run_down(const Parts& parts, const TensorView& y, const Worker& worker) const {
    TensorView rows = parts.kept;
    const Run across = take_last(rows);
    const std::int64_t blocks = (across.count + kColumns - 1) / kColumns, positions = parts.reduced.elements();
    const auto memory = layout_at<Columns>(worker.local);
    float *total = memory.total, *part = memory.part, *dense = memory.dense;
    const Share share = share_of(rows.elements() * blocks, worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const std::int64_t first = i % blocks * kColumns, count = std::min(kColumns, across.count - first);
      const std::int64_t base = offset_of(rows, i / blocks) + first * across.stride;
      std::fill(total, total + count, start());
      for (std::int64_t p0 = 0; p0 < positions; p0 += kBlock) {
        std::fill(part, part + count, start());
        for (std::int64_t p = p0; p < std::min(positions, p0 + kBlock); ++p) {
          const void* from = rows.at(base + offset_of(parts.reduced, p));
          if (across.stride != 1) {
            StridedCopy copy;
            copy.add(count, 1, across.stride);
            copy_strided(copy, dense, from, size_of(rows.dtype));
            from = dense;
          }
          table_.combine(part, from, rows.dtype, count, how_);
        }
        table_.combine(total, part, DType::float32, count, how_);
      }
      finish(total, count, y, i / blocks * across.count + first, positions);
    }
  }

  double combined(double a, double b) const {
    if (how_ == Reduction::sum || how_ == Reduction::mean) return a + b;
    if (how_ == Reduction::prod) return a * b;
    if (a != a || b != b) return a != a ? a : b;
    return how_ == Reduction::max ? std::max(a, b) : std::min(a, b);
  }

  /// Blocks of chains side by side bound the rounding error of long sums.
  double reduce_doubles(const double* x, const TensorView& outer, const Run& last) const {
    constexpr int kChains = 8;
    const std::int64_t runs = outer.elements();
    double total = start();
    for (std::int64_t r = 0; r < runs; ++r) {
      const double* from = x + offset_of(outer, r);
      for (std::int64_t first = 0; first < last.count; first += kBlock) {
        double chains[kChains];
        std::fill(chains, chains + kChains, static_cast<double>(start()));
        for (std::int64_t j = first; j < std::min(last.count, first + kBlock); ++j)
          chains[j % kChains] = combined(chains[j % kChains], from[j * last.stride]);
        for (int half = kChains / 2; half > 0; half /= 2)
          for (int c = 0; c < half; ++c) chains[c] = combined(chains[c], chains[c + half]);
        total = combined(total, chains[0]);
      }
    }
    return total;
  }

  void run_doubles(const Parts& parts, const TensorView& y, const Worker& worker) const {
    TensorView outer = parts.reduced;
    const Run last = take_last(outer);
    const Share share = share_of(parts.kept.elements(), worker.index, worker.count);
    const double* x = parts.kept.as<const double>();
    const double count = how_ == Reduction::mean ? static_cast<double>(parts.reduced.elements()) : 1.0;
    for (std::int64_t i = share.first; i < share.last; ++i)
      y.as<double>()[i] = reduce_doubles(x + offset_of(parts.kept, i), outer, last) / count;
  }

  template <class T>
  std::uint64_t reduce_integers(const T* x, const TensorView& outer, const Run& last) const {
    using Wide = std::conditional_t<std::is_unsigned_v<T>, std::uint64_t, std::int64_t>;
    Wide best = how_ == Reduction::max ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
    std::uint64_t value = how_ == Reduction::prod ? 1 : 0;
    const std::int64_t runs = outer.elements();
    for (std::int64_t r = 0; r < runs; ++r) {
      const T* from = x + offset_of(outer, r);
      for (std::int64_t j = 0; j < last.count; ++j) {
        const Wide one = from[j * last.stride];
        if (how_ == Reduction::sum)
          value += static_cast<std::uint64_t>(one);
        else if (how_ == Reduction::prod)
          value *= static_cast<std::uint64_t>(one);
        else
          best = how_ == Reduction::max ? std::max(best, one) : std::min(best, one);
      }
    }
    return how_ == Reduction::sum || how_ == Reduction::prod ? value : static_cast<std::uint64_t>(best);
  }

  /// Takes the dimensions that repeat an element off a view of integers; returns how often, modulo 2^64. Sizes that are
  /// data are sums of so many ones (a view with stride 0): they may be 2^46, and take no time.
  static std::uint64_t take_repeats(TensorView& view) {
    std::uint64_t times = 1;
    int kept = 0;
    for (int i = 0; i < view.rank; ++i) {
      if (view.stride[i] == 0 && view.shape[i] > 0) {
        times *= static_cast<std::uint64_t>(view.shape[i]);
        continue;
      }
      view.shape[kept] = view.shape[i];
      view.stride[kept++] = view.stride[i];
    }
    view.rank = kept;
    return times;
  }

  void run_integers(const Parts& parts, const TensorView& y, const Worker& worker) const {
    TensorView outer = parts.reduced;
    const std::uint64_t times = how_ == Reduction::prod ? 1 : take_repeats(outer);
    const Run last = take_last(outer);
    const Share share = share_of(parts.kept.elements(), worker.index, worker.count);
    with_integers(outer.dtype, [&](auto type) {
      const auto* x = parts.kept.as<const decltype(type)>();
      for (std::int64_t i = share.first; i < share.last; ++i)
        store_integer(y, i, reduce_integers(x + offset_of(parts.kept, i), outer, last) * (how_ == Reduction::sum ? times : 1));
    });
  }

  const ReduceTable& table_;
  Reduction how_;
  bool reduced_[kMaxRank] = {};
};

std::unique_ptr<Kernel> make_reduce(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("reduce", in, 1, 1, out, 1);
  Params params("reduce", json);
  const auto how = static_cast<Reduction>(params.choice("op", {"sum", "mean", "max", "min", "prod"}));
  const int rank = in[0].rank;
  std::vector<std::int64_t> axes = params.integers("axes", -rank, rank - 1);
  const bool keep = params.flag("keepdims");
  params.done();
  for (std::int64_t& axis : axes) axis += axis < 0 ? rank : 0;
  std::sort(axes.begin(), axes.end());
  require(std::adjacent_find(axes.begin(), axes.end()) == axes.end(), "reduce", "an axis is named twice");
  require_rank("reduce", "the output", out[0].rank, keep ? rank : rank - static_cast<int>(axes.size()));
  require_dtype("reduce", "x", in[0].dtype, kOrderedTypes);
  require_dtype("reduce", "the output", out[0].dtype, kOrderedTypes);
  require(is_float(in[0].dtype) == is_float(out[0].dtype), "reduce", "floats reduce to floats, integers to integers");
  require((in[0].dtype == DType::float64) == (out[0].dtype == DType::float64), "reduce", "float64 reduces to float64");
  require(is_float(in[0].dtype) || how != Reduction::mean, "reduce", "the mean of integers is not defined: cast first");
  return std::make_unique<Reduce>(half_for(reduce_halves, level), how, axes);
}

class Argmax final : public Kernel {
 public:
  Argmax(const ReduceTable& table, int axis) : table_(table), axis_(axis) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &x = in[0], &y = out[0];
    std::int64_t expected = 1;
    for (int i = 0; i < x.rank; ++i)
      if (i != axis_) expected *= x.shape[i];
    require(y.elements() == expected, "argmax", "the output's shape must be x's without the axis");
    require(x.shape[axis_] > 0 || expected == 0, "argmax", "the axis is empty");
    require_contiguous("argmax", "the output", y);
    return {0, is_float(x.dtype) && x.stride[axis_] != 1 ? static_cast<std::size_t>(x.shape[axis_]) * size_of(x.dtype) : 0};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView& x = in[0];
    bool reduced[kMaxRank] = {};
    reduced[axis_] = true;
    const TensorView kept = split(x, reduced).kept;
    const std::int64_t count = x.shape[axis_], stride = x.stride[axis_];
    const Share share = share_of(kept.elements(), worker.index, worker.count);
    StridedCopy gather;
    gather.add(count, 1, stride);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const std::int64_t base = offset_of(kept, i);
      std::int64_t best = 0;
      if (x.dtype == DType::float64) {
        const double* from = x.as<const double>() + base;
        for (std::int64_t j = 1; j < count && from[best * stride] == from[best * stride]; ++j)
          if (from[j * stride] > from[best * stride] || from[j * stride] != from[j * stride]) best = j;
      } else if (is_float(x.dtype)) {
        const void* from = x.at(base);
        if (stride != 1) {
          copy_strided(gather, worker.local, from, size_of(x.dtype));
          from = worker.local;
        }
        best = table_.argmax(from, x.dtype, count);
      } else {
        with_integers(x.dtype, [&](auto type) {
          const auto* from = x.as<const decltype(type)>() + base;
          for (std::int64_t j = 1; j < count; ++j)
            if (from[j * stride] > from[best * stride]) best = j;
        });
      }
      out[0].as<std::int64_t>()[i] = best;
    }
  }

 private:
  const ReduceTable& table_;
  int axis_;
};

std::unique_ptr<Kernel> make_argmax(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("argmax", in, 1, 1, out, 1);
  Params params("argmax", json);
  const int axis = params.axis("axis", in[0].rank);
  const bool keep = params.flag("keepdims", false);
  params.done();
  require_rank("argmax", "the output", out[0].rank, in[0].rank - (keep ? 0 : 1));
  require_dtype("argmax", "x", in[0].dtype, kOrderedTypes);
  require_dtype("argmax", "the output", out[0].dtype, {DType::int64});
  return std::make_unique<Argmax>(half_for(reduce_halves, level), axis);
}

constexpr KernelInfo kKernels[] = {
    {"reduce", 1, "x -> y", "op: sum | mean | max | min | prod, axes: integers, keepdims: flag", make_reduce},
    {"argmax", 1, "x -> y", "axis: integer, keepdims?: flag", make_argmax},
};

}  // namespace

std::span<const KernelInfo> reduce_kernels() { return kKernels; }

}  // namespace ingot
