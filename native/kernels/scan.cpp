// cumsum: the sum of all elements up to each along an axis.
//
// float32 accumulates in float64, float16 and bfloat16 in float32, and every sum is rounded once; float64 accumulates in float64,
// and integers wrap to their type. A sum is one chain along the axis, whatever the strides and the number of workers. Operands and
// results may have any strides.
#include <algorithm>
#include <cstdlib>

#include "check.h"
#include "level/frame.h"
#include "level/reduce.h"
#include "strided.h"

namespace ingot {

namespace {

constexpr std::initializer_list<DType> kTypes = {DType::float32, DType::bfloat16, DType::float16, DType::int8,
                                                 DType::int16,   DType::int32,    DType::int64,   DType::uint8,
                                                 DType::uint16,  DType::uint32,   DType::uint64,  DType::float64};
constexpr std::int64_t kColumns = 256;  // sums that run side by side
constexpr std::int64_t kBlock = 256;    // elements of a row of 16-bit floats that are converted at once

struct Memory {
  std::uint64_t* sums;   // of the widest type
  float* wide;           // 16-bit floats, converted
  std::uint16_t* narrow;  // the same, side by side

  explicit Memory(Frame& frame)
      : sums(frame.take<std::uint64_t>(kColumns)),
        wide(frame.take<float>(std::max(kColumns, kBlock))),
        narrow(frame.take<std::uint16_t>(std::max(kColumns, kBlock))) {}
};

/// Where the elements of some neighbouring rows lie: positions along the axis, rows across it.
struct Plane {
  std::int64_t positions, x_step, y_step;  // along the axis
  std::int64_t rows, x_across, y_across;
};

class CumSum final : public Kernel {
 public:
  CumSum(const ReduceTable& table, int axis) : table_(table), axis_(axis) {}

  Scratch plan(Views in, Views out, int) const override {
    require_same_shape("cumsum", "the output", out[0], in[0]);
    return {0, bytes_of_layout<Memory>()};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const auto memory = layout_at<Memory>(worker.local);
    switch (in[0].dtype) {
      case DType::float32: return run_as<float, double>(in[0], out[0], worker, memory);
      case DType::float64: return run_as<double, double>(in[0], out[0], worker, memory);
      case DType::int8:
      case DType::uint8: return run_as<std::uint8_t, std::uint8_t>(in[0], out[0], worker, memory);
      case DType::int16:
      case DType::uint16: return run_as<std::uint16_t, std::uint16_t>(in[0], out[0], worker, memory);
      case DType::int32:
      case DType::uint32: return run_as<std::uint32_t, std::uint32_t>(in[0], out[0], worker, memory);
      case DType::int64:
      case DType::uint64: return run_as<std::uint64_t, std::uint64_t>(in[0], out[0], worker, memory);
      default: return run_narrow(in[0], out[0], worker, memory);
    }
  }

 private:
  /// Calls f(plane, offset in x, offset in y) for this worker's part: rows one by one where their elements lie closer together
  /// than neighbouring rows do, else up to kColumns rows at once.
  template <class F>
  void each(const TensorView& x, const TensorView& y, const Worker& worker, const F& f) const {
    TensorView x_rows = x, y_rows = y;
    for (TensorView* view : {&x_rows, &y_rows}) {
      std::copy(view->shape + axis_ + 1, view->shape + view->rank, view->shape + axis_);
      std::copy(view->stride + axis_ + 1, view->stride + view->rank, view->stride + axis_);
      --view->rank;
    }
    Plane plane{x.shape[axis_], x.stride[axis_], y.stride[axis_], 1, 0, 0};
    const int last = x_rows.rank - 1;
    const bool side_by_side = last >= 0 && std::abs(x_rows.stride[last]) < std::abs(plane.x_step);
    std::int64_t across = 1;
    if (side_by_side) {
      across = x_rows.shape[last];
      plane.x_across = x_rows.stride[last];
      plane.y_across = y_rows.stride[last];
      --x_rows.rank;
      --y_rows.rank;
    }
    const std::int64_t blocks = (across + kColumns - 1) / kColumns;
    const Share share = share_of(x_rows.elements() * blocks, worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const std::int64_t first = i % blocks * kColumns;
      plane.rows = std::min(kColumns, across - first);
      f(plane, offset_of(x_rows, i / blocks) + first * plane.x_across, offset_of(y_rows, i / blocks) + first * plane.y_across);
    }
  }

  template <class T, class Sum>
  void run_as(const TensorView& x, const TensorView& y, const Worker& worker, const Memory& memory) const {
    each(x, y, worker, [&](const Plane& plane, std::int64_t x_offset, std::int64_t y_offset) {
      const T* from = x.as<const T>() + x_offset;
      T* to = y.as<T>() + y_offset;
      if (plane.rows == 1) {
        Sum sum = 0;
        for (std::int64_t p = 0; p < plane.positions; ++p) {
          sum = static_cast<Sum>(sum + from[p * plane.x_step]);
          to[p * plane.y_step] = static_cast<T>(sum);
        }
        return;
      }
      Sum* const sums = reinterpret_cast<Sum*>(memory.sums);
      std::fill(sums, sums + plane.rows, Sum{0});
      for (std::int64_t p = 0; p < plane.positions; ++p, from += plane.x_step, to += plane.y_step)
        for (std::int64_t r = 0; r < plane.rows; ++r) {
          sums[r] = static_cast<Sum>(sums[r] + from[r * plane.x_across]);
          to[r * plane.y_across] = static_cast<T>(sums[r]);
        }
    });
  }

  static void move(const void* from, std::int64_t from_step, void* to, std::int64_t to_step, std::int64_t count) {
    StridedCopy copy;
    copy.add(count, to_step, from_step);
    copy_strided(copy, to, from, sizeof(std::uint16_t));
  }

  void run_narrow(const TensorView& x, const TensorView& y, const Worker& worker, const Memory& memory) const {
    each(x, y, worker, [&](const Plane& plane, std::int64_t x_offset, std::int64_t y_offset) {
      const std::uint16_t* from = x.as<const std::uint16_t>() + x_offset;
      std::uint16_t* to = y.as<std::uint16_t>() + y_offset;
      float* const sums = reinterpret_cast<float*>(memory.sums);
      std::fill(sums, sums + plane.rows, 0.0f);
      const bool row = plane.rows == 1;
      const std::int64_t step = row ? kBlock : 1;
      for (std::int64_t p = 0; p < plane.positions; p += step) {
        const std::int64_t count = row ? std::min(kBlock, plane.positions - p) : plane.rows;
        move(from + p * plane.x_step, row ? plane.x_step : plane.x_across, memory.narrow, 1, count);
        table_.convert(memory.narrow, x.dtype, memory.wide, DType::float32, count);
        for (std::int64_t j = 0; j < count; ++j) {
          float& sum = sums[row ? 0 : j];
          memory.wide[j] = sum = sum + memory.wide[j];
        }
        table_.convert(memory.wide, DType::float32, memory.narrow, y.dtype, count);
        move(memory.narrow, 1, to + p * plane.y_step, row ? plane.y_step : plane.y_across, count);
      }
    });
  }

  const ReduceTable& table_;
  int axis_;
};

std::unique_ptr<Kernel> make_cumsum(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("cumsum", in, 1, 1, out, 1);
  Params params("cumsum", json);
  const int axis = params.axis("axis", in[0].rank);
  params.done();
  require_dtype("cumsum", "x", in[0].dtype, kTypes);
  require_dtype("cumsum", "the output", out[0].dtype, {in[0].dtype});
  return std::make_unique<CumSum>(half_for(reduce_halves, level), axis);
}

constexpr KernelInfo kKernels[] = {
    {"cumsum", 1, "x -> y", "axis: integer", make_cumsum},
};

}  // namespace

std::span<const KernelInfo> scan_kernels() { return kKernels; }

}  // namespace ingot
