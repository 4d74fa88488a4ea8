// cumsum, cumprod, logcumsumexp: all elements up to each along an axis in one. cummax, cummin: the greatest or smallest of them.
//
// float32 accumulates in float64, float16 and bfloat16 in float32, and every result is rounded once; float64 accumulates in
// float64, and integers wrap to their type. A scan is one chain along the axis, whatever the strides and the number of workers, so
// several rows go abreast: each waits for its own last result only. cummax and cummin compare as sort does, and NaN stays; of equal
// elements they give the last place. Operands and results may have any strides.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "check.h"
#include "keys.h"
#include "level/frame.h"
#include "level/reduce.h"
#include "strided.h"

namespace ingot {

namespace {

constexpr std::initializer_list<DType> kNumbers = {DType::float32, DType::bfloat16, DType::float16, DType::int8,
                                                   DType::int16,   DType::int32,    DType::int64,   DType::uint8,
                                                   DType::uint16,  DType::uint32,   DType::uint64,  DType::float64};
constexpr std::initializer_list<DType> kFloats = {DType::float32, DType::bfloat16, DType::float16, DType::float64};
constexpr std::int64_t kColumns = 256;  // scans that run side by side
constexpr std::int64_t kBlock = 256;    // elements of a row of 16-bit floats that are converted at once
constexpr int kAbreast = 8;             // rows that are scanned at once

// ---- what is accumulated ----

struct Sum {
  template <class T>
  static T start() {
    return 0;
  }
  template <class T>
  static T next(T so_far, T x) {
    return static_cast<T>(so_far + x);
  }
};

struct Product {
  template <class T>
  static T start() {
    return 1;
  }
  template <class T>
  static T next(T so_far, T x) {
    if constexpr (std::is_floating_point_v<T>)
      return so_far * x;
    else
      return static_cast<T>(static_cast<std::uint64_t>(so_far) * static_cast<std::uint64_t>(x));
  }
};

struct LogSumExp {
  template <class T>
  static T start() {
    return -std::numeric_limits<T>::infinity();
  }
  template <class T>
  static T next(T so_far, T x) {
    if (so_far == x && std::isinf(x)) return x;
    const T apart = x - so_far;  // NaN if one is
    if (apart > 0) return x + std::log1p(std::exp(-apart));
    return apart <= 0 ? so_far + std::log1p(std::exp(apart)) : apart;
  }
};

// ---- lines along an axis ----

/// A view without the axis: where its lines along it begin.
TensorView lines_of(TensorView view, int axis) {
  std::copy(view.shape + axis + 1, view.shape + view.rank, view.shape + axis);
  std::copy(view.stride + axis + 1, view.stride + view.rank, view.stride + axis);
  --view.rank;
  return view;
}

/// Neighbouring lines whose elements lie closer together than those along them: at most kColumns.
struct Plane {
  std::int64_t x, y;  // offsets of the first elements
  std::int64_t rows, x_across, y_across;
};

/// Lines that lie anyhow.
struct Lines {
  int count;
  std::array<std::int64_t, kAbreast> x, y;  // offsets of their first elements
};

/// Calls `plane` or `lines` for this worker's part.
template <class P, class L>
void each(const TensorView& x, const TensorView& y, int axis, const Worker& worker, const P& plane, const L& lines) {
  TensorView x_lines = lines_of(x, axis), y_lines = lines_of(y, axis);
  const int last = x_lines.rank - 1;
  if (last >= 0 && std::abs(x_lines.stride[last]) < std::abs(x.stride[axis])) {
    const std::int64_t across = x_lines.shape[last], blocks = (across + kColumns - 1) / kColumns;
    const std::int64_t x_across = x_lines.stride[last], y_across = y_lines.stride[last];
    --x_lines.rank;
    --y_lines.rank;
    const Share share = share_of(x_lines.elements() * blocks, worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const std::int64_t first = i % blocks * kColumns;
      plane(Plane{offset_of(x_lines, i / blocks) + first * x_across, offset_of(y_lines, i / blocks) + first * y_across,
                  std::min(kColumns, across - first), x_across, y_across});
    }
    return;
  }
  const Share share = share_of(x_lines.elements(), worker.index, worker.count);
  for (std::int64_t i = share.first; i < share.last;) {
    Lines some{share.last - i >= kAbreast ? kAbreast : 1, {}, {}};
    for (std::size_t r = 0; r < static_cast<std::size_t>(some.count); ++r, ++i) {
      some.x[r] = offset_of(x_lines, i);
      some.y[r] = offset_of(y_lines, i);
    }
    lines(some);
  }
}

struct Memory {
  std::uint64_t* sums;    // of the widest type
  float* wide;            // 16-bit floats, converted
  std::uint16_t* narrow;  // the same, side by side

  explicit Memory(Frame& frame)
      : sums(frame.take<std::uint64_t>(kColumns)),
        wide(frame.take<float>(std::max(kColumns, kAbreast * kBlock))),
        narrow(frame.take<std::uint16_t>(std::max(kColumns, kBlock))) {}
};

template <class How>
class Scan final : public Kernel {
 public:
  Scan(const char* name, const ReduceTable& table, int axis) : name_(name), table_(table), axis_(axis) {}

  Scratch plan(Views in, Views out, int) const override {
    require_same_shape(name_, "the output", out[0], in[0]);
    return {0, bytes_of_layout<Memory>()};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const auto memory = layout_at<Memory>(worker.local);
    switch (in[0].dtype) {
      case DType::float32: return run_as<float, double>(in[0], out[0], worker, memory);
      case DType::float64: return run_as<double, double>(in[0], out[0], worker, memory);
      case DType::bfloat16:
      case DType::float16: return run_narrow(in[0], out[0], worker, memory);
      default: break;
    }
    if constexpr (!std::is_same_v<How, LogSumExp>) {
      switch (size_of(in[0].dtype)) {
        case 1: return run_as<std::uint8_t, std::uint8_t>(in[0], out[0], worker, memory);
        case 2: return run_as<std::uint16_t, std::uint16_t>(in[0], out[0], worker, memory);
        case 4: return run_as<std::uint32_t, std::uint32_t>(in[0], out[0], worker, memory);
        default: return run_as<std::uint64_t, std::uint64_t>(in[0], out[0], worker, memory);
      }
    }
  }

 private:
  template <class T, class Wide>
  void run_as(const TensorView& x, const TensorView& y, const Worker& worker, const Memory& memory) const {
    const std::int64_t positions = x.shape[axis_], x_step = x.stride[axis_], y_step = y.stride[axis_];
    const auto plane = [&](const Plane& at) {
      const T* from = x.as<const T>() + at.x;
      T* to = y.as<T>() + at.y;
      Wide* const sums = reinterpret_cast<Wide*>(memory.sums);
      std::fill(sums, sums + at.rows, How::template start<Wide>());
      const bool dense = at.x_across == 1 && at.y_across == 1;
      for (std::int64_t p = 0; p < positions; ++p, from += x_step, to += y_step)
        dense ? add_row(from, to, sums, at.rows, 1, 1) : add_row(from, to, sums, at.rows, at.x_across, at.y_across);
    };
    each(x, y, axis_, worker, plane, [&](const Lines& at) {
      if (at.count == 1) return abreast<1, T, Wide>(x, y, at);
      abreast<kAbreast, T, Wide>(x, y, at);
    });
  }

  /// One step of neighbouring lines; where they are dense, inlined with steps of 1, as vectors.
  template <class T, class Wide>
  [[gnu::always_inline]] static void add_row(const T* __restrict__ from, T* __restrict__ to, Wide* __restrict__ sums,
                                             std::int64_t rows, std::int64_t x_across, std::int64_t y_across) {
    for (std::int64_t r = 0; r < rows; ++r) {
      sums[r] = How::next(sums[r], static_cast<Wide>(from[r * x_across]));
      to[r * y_across] = static_cast<T>(sums[r]);
    }
  }

  /// So many lines at once, that the chains of their sums overlap.
  template <std::size_t count, class T, class Wide>
  void abreast(const TensorView& x, const TensorView& y, const Lines& at) const {
    const std::int64_t positions = x.shape[axis_], x_step = x.stride[axis_], y_step = y.stride[axis_];
    std::array<const T*, count> from;
    std::array<T*, count> to;
    std::array<Wide, count> sums;
    for (std::size_t r = 0; r < count; ++r) {
      from[r] = x.as<const T>() + at.x[r];
      to[r] = y.as<T>() + at.y[r];
      sums[r] = How::template start<Wide>();
    }
    for (std::int64_t p = 0; p < positions; ++p)
      for (std::size_t r = 0; r < count; ++r) {
        sums[r] = How::next(sums[r], static_cast<Wide>(from[r][p * x_step]));
        to[r][p * y_step] = static_cast<T>(sums[r]);
      }
  }

  static void move(const void* from, std::int64_t from_step, void* to, std::int64_t to_step, std::int64_t count) {
    StridedCopy copy;
    copy.add(count, to_step, from_step);
    copy_strided(copy, to, from, sizeof(std::uint16_t));
  }
  void widen(const std::uint16_t* from, std::int64_t step, DType dtype, float* to, const Memory& memory, std::int64_t count) const {
    move(from, step, memory.narrow, 1, count);
    table_.convert(memory.narrow, dtype, to, DType::float32, count);
  }
  void round(const float* from, std::uint16_t* to, std::int64_t step, DType dtype, const Memory& memory, std::int64_t count) const {
    table_.convert(from, DType::float32, memory.narrow, dtype, count);
    move(memory.narrow, 1, to, step, count);
  }

  void run_narrow(const TensorView& x, const TensorView& y, const Worker& worker, const Memory& memory) const {
    const std::int64_t positions = x.shape[axis_], x_step = x.stride[axis_], y_step = y.stride[axis_];
    float* const sums = reinterpret_cast<float*>(memory.sums);
    const auto plane = [&](const Plane& at) {
      const std::uint16_t* from = x.as<const std::uint16_t>() + at.x;
      std::uint16_t* to = y.as<std::uint16_t>() + at.y;
      std::fill(sums, sums + at.rows, How::template start<float>());
      for (std::int64_t p = 0; p < positions; ++p, from += x_step, to += y_step) {
        widen(from, at.x_across, x.dtype, memory.wide, memory, at.rows);
        for (std::int64_t r = 0; r < at.rows; ++r) memory.wide[r] = sums[r] = How::next(sums[r], memory.wide[r]);
        round(memory.wide, to, at.y_across, y.dtype, memory, at.rows);
      }
    };
    each(x, y, axis_, worker, plane, [&](const Lines& at) {
      std::fill(sums, sums + at.count, How::template start<float>());
      for (std::int64_t first = 0; first < positions; first += kBlock) {
        const std::int64_t count = std::min(kBlock, positions - first);
        for (int r = 0; r < at.count; ++r)
          widen(x.as<const std::uint16_t>() + at.x[static_cast<std::size_t>(r)] + first * x_step, x_step, x.dtype,
                memory.wide + r * kBlock, memory, count);
        for (std::int64_t p = 0; p < count; ++p)
          for (int r = 0; r < at.count; ++r) {
            float& one = memory.wide[r * kBlock + p];
            one = sums[r] = How::next(sums[r], one);
          }
        for (int r = 0; r < at.count; ++r)
          round(memory.wide + r * kBlock, y.as<std::uint16_t>() + at.y[static_cast<std::size_t>(r)] + first * y_step, y_step, y.dtype,
                memory, count);
      }
    });
  }

  const char* name_;
  const ReduceTable& table_;
  int axis_;
};

// ---- the greatest, the smallest ----

class Extreme final : public Kernel {
 public:
  Extreme(const char* name, int axis, bool greatest) : name_(name), axis_(axis), greatest_(greatest) {}

  Scratch plan(Views in, Views out, int) const override {
    require_same_shape(name_, "the output", out[0], in[0]);
    require_same_shape(name_, "places", out[1], in[0]);
    return {};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0], &places = out[1];
    const TensorView x_lines = lines_of(x, axis_), y_lines = lines_of(y, axis_), place_lines = lines_of(places, axis_);
    const Share share = share_of(x_lines.elements(), worker.index, worker.count);
    with_keys(x.dtype, [&](auto key) {
      using Stored = typename decltype(key)::Stored;
      constexpr Stored kNan = static_cast<Stored>(~Stored{0});  // of floats; the greatest integer has it too
      const bool turn = !greatest_, floats = is_float(x.dtype);
      for (std::int64_t i = share.first; i < share.last; ++i) {
        const Stored* const from = x.as<const Stored>() + offset_of(x_lines, i);
        Stored* const to = y.as<Stored>() + offset_of(y_lines, i);
        std::int64_t* const at = places.as<std::int64_t>() + offset_of(place_lines, i);
        Stored best = 0;
        std::int64_t place = 0;
        for (std::int64_t p = 0; p < x.shape[axis_]; ++p) {
          Stored one = decltype(key)::of(from[p * x.stride[axis_]]);
          if (turn && !(floats && one == kNan)) one = static_cast<Stored>(~one);
          if (p == 0 || one >= best) {
            best = one;
            place = p;
          }
          to[p * y.stride[axis_]] = from[place * x.stride[axis_]];
          at[p * places.stride[axis_]] = place;
        }
      }
    });
  }

 private:
  const char* name_;
  int axis_;
  bool greatest_;
};

// ---- making them ----

int axis_of(const char* name, const nlohmann::json& json, Types in, Types out, std::size_t results, std::initializer_list<DType> types) {
  require_operands(name, in, 1, 1, out, results);
  Params params(name, json);
  const int axis = params.axis("axis", in[0].rank);
  params.done();
  require_dtype(name, "x", in[0].dtype, types);
  require_dtype(name, "the output", out[0].dtype, {in[0].dtype});
  return axis;
}

template <class How>
std::unique_ptr<Kernel> make_scan(const char* name, const nlohmann::json& json, Types in, Types out, Level level) {
  const int axis = axis_of(name, json, in, out, 1, std::is_same_v<How, LogSumExp> ? kFloats : kNumbers);
  return std::make_unique<Scan<How>>(name, half_for(reduce_halves, level), axis);
}

std::unique_ptr<Kernel> make_cumsum(const nlohmann::json& json, Types in, Types out, Level level) {
  return make_scan<Sum>("cumsum", json, in, out, level);
}

std::unique_ptr<Kernel> make_cumprod(const nlohmann::json& json, Types in, Types out, Level level) {
  return make_scan<Product>("cumprod", json, in, out, level);
}

std::unique_ptr<Kernel> make_logcumsumexp(const nlohmann::json& json, Types in, Types out, Level level) {
  return make_scan<LogSumExp>("logcumsumexp", json, in, out, level);
}

std::unique_ptr<Kernel> make_extreme(const char* name, const nlohmann::json& json, Types in, Types out, bool greatest) {
  const int axis = axis_of(name, json, in, out, 2, kOrderedTypes);
  require_dtype(name, "places", out[1].dtype, {DType::int64});
  return std::make_unique<Extreme>(name, axis, greatest);
}

std::unique_ptr<Kernel> make_cummax(const nlohmann::json& json, Types in, Types out, Level) {
  return make_extreme("cummax", json, in, out, true);
}

std::unique_ptr<Kernel> make_cummin(const nlohmann::json& json, Types in, Types out, Level) {
  return make_extreme("cummin", json, in, out, false);
}

constexpr KernelInfo kKernels[] = {
    {"cumsum", 1, "x -> y", "axis: integer", make_cumsum},
    {"cumprod", 1, "x -> y", "axis: integer", make_cumprod},
    {"logcumsumexp", 1, "x -> y", "axis: integer", make_logcumsumexp},
    {"cummax", 1, "x -> y, places", "axis: integer", make_cummax},
    {"cummin", 1, "x -> y, places", "axis: integer", make_cummin},
};

}  // namespace

std::span<const KernelInfo> scan_kernels() { return kKernels; }

}  // namespace ingot
