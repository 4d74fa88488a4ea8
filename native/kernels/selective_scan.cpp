// selective_scan: the recurrence of a state space whose step, input and output depend on the data (Mamba).
//
// x, delta [N, T, D], a [D, S], b, c [N, T, G, S], skip [D], h0 [N, D, S] -> y [N, T, D], h [N, D, S]:
//   h_s = exp(delta a_s) h_s + delta x b_s;  y = sum over s of c_s h_s + skip x
// for every channel; D/G neighbouring channels share b and c. Operands and results may have any strides. The states stay in float32
// from the first step to the last; results are rounded. a, skip, h0 and h may be float32 beside narrower ones.
//
// Workers take blocks of 16 channels of a row. A sum is one chain over the states, so a row does not depend on its company.
#include <algorithm>

#include "check.h"
#include "level/frame.h"
#include "level/selective_scan.h"

namespace ingot {

namespace {

constexpr const char* kName = "selective_scan";

struct Sizes {
  std::int64_t rows, steps, channels, groups, states;

  std::int64_t of_group() const { return channels / groups; }
  std::int64_t blocks() const { return (of_group() + kScanChannels - 1) / kScanChannels; }  // of a group
};

struct Memory {
  float *a, *h, *skip;
  float* one;  // an element, converted

  Memory(Frame& frame, std::int64_t states)
      : a(frame.take<float>(states * kScanChannels)), h(frame.take<float>(states * kScanChannels)),
        skip(frame.take<float>(kScanChannels)), one(frame.take<float>(1)) {}
};

class SelectiveScan final : public Kernel {
 public:
  explicit SelectiveScan(const SelectiveScanTable& table) : table_(table) {}

  Scratch plan(Views in, Views out, int) const override {
    const Sizes s = sizes_of(in);
    require(s.groups > 0 && s.channels % s.groups == 0, kName, "the groups of b must divide the channels");
    require_shape(kName, "delta", in[1], {s.rows, s.steps, s.channels});
    require_shape(kName, "a", in[2], {s.channels, s.states});
    require_shape(kName, "b", in[3], {s.rows, s.steps, s.groups, s.states});
    require_shape(kName, "c", in[4], {s.rows, s.steps, s.groups, s.states});
    require_shape(kName, "skip", in[5], {s.channels});
    require_shape(kName, "h0", in[6], {s.rows, s.channels, s.states});
    require_same_shape(kName, "y", out[0], in[0]);
    require_same_shape(kName, "the last state", out[1], in[6]);
    require(s.states < std::int64_t{1} << 32, kName, "there are too many states");
    return {0, bytes_of_layout<Memory>(s.states)};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const Sizes s = sizes_of(in);
    const auto memory = layout_at<Memory>(worker.local, s.states);
    const Share share = share_of(s.rows * s.groups * s.blocks(), worker.index, worker.count);
    for (std::int64_t i = share.first; i < share.last; ++i) {
      const std::int64_t block = i % s.blocks() * kScanChannels, group = i / s.blocks() % s.groups;
      const int count = static_cast<int>(std::min<std::int64_t>(kScanChannels, s.of_group() - block));
      run_block(in, out, s, i / s.blocks() / s.groups, group, group * s.of_group() + block, count, memory);
    }
  }

 private:
  static Sizes sizes_of(Views in) {
    const TensorView &x = in[0], &b = in[3];
    return {x.shape[0], x.shape[1], x.shape[2], b.shape[2], b.shape[3]};
  }

  static ScanPlane plane(const TensorView& view, std::int64_t row, std::int64_t at) {
    return {view.at(row * view.stride[0] + at * view.stride[2]), view.stride[1], view.stride[view.rank - 1]};
  }

  float value(const TensorView& view, std::int64_t element, const Memory& memory) const {
    table_.convert(view.at(element), view.dtype, memory.one, DType::float32, 1);
    return *memory.one;
  }

  void run_block(Views in, Views out, const Sizes& s, std::int64_t row, std::int64_t group, std::int64_t channel, int count,
                 const Memory& memory) const {
    const TensorView &a = in[2], &skip = in[5], &h0 = in[6], &h = out[1];
    std::fill(memory.a, memory.a + s.states * kScanChannels, 0.0f);
    std::fill(memory.h, memory.h + s.states * kScanChannels, 0.0f);
    std::fill(memory.skip, memory.skip + kScanChannels, 0.0f);
    for (int i = 0; i < count; ++i) {
      memory.skip[i] = value(skip, (channel + i) * skip.stride[0], memory);
      for (std::int64_t state = 0; state < s.states; ++state) {
        memory.a[state * kScanChannels + i] = value(a, (channel + i) * a.stride[0] + state * a.stride[1], memory);
        const std::int64_t first = row * h0.stride[0] + (channel + i) * h0.stride[1] + state * h0.stride[2];
        memory.h[state * kScanChannels + i] = value(h0, first, memory);
      }
    }
    table_.run({in[0].dtype, count, s.steps, s.states, plane(in[0], row, channel), plane(in[1], row, channel), plane(in[3], row, group),
                plane(in[4], row, group), plane(out[0], row, channel), memory.a, memory.skip, memory.h});
    for (int i = 0; i < count; ++i)
      for (std::int64_t state = 0; state < s.states; ++state)
        table_.convert(memory.h + state * kScanChannels + i, DType::float32,
                       h.at(row * h.stride[0] + (channel + i) * h.stride[1] + state * h.stride[2]), h.dtype, 1);
  }

  const SelectiveScanTable& table_;
};

std::unique_ptr<Kernel> make_selective_scan(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands(kName, in, 7, 7, out, 2);
  Params params(kName, json);
  params.done();
  constexpr const char* kNames[] = {"x", "delta", "a", "b", "c", "skip", "h0"};
  constexpr int kRanks[] = {3, 3, 2, 4, 4, 1, 3};
  require_dtype(kName, "x", in[0].dtype, kComputeFloats);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (i == 2 || i > 4)
      require_dtype(kName, kNames[i], in[i].dtype, {in[0].dtype, DType::float32});
    else
      require_dtype(kName, kNames[i], in[i].dtype, {in[0].dtype});
    require_rank(kName, kNames[i], in[i].rank, kRanks[i]);
  }
  require_dtype(kName, "y", out[0].dtype, {in[0].dtype});
  require_dtype(kName, "the last state", out[1].dtype, {in[0].dtype, DType::float32});
  for (const OperandType& type : out) require_rank(kName, "a result", type.rank, 3);
  return std::make_unique<SelectiveScan>(half_for(selective_scan_halves, level));
}

constexpr KernelInfo kKernels[] = {
    {"selective_scan", 1, "x, delta, a, b, c, skip, h0 -> y, h", "", make_selective_scan},
};

}  // namespace

std::span<const KernelInfo> selective_scan_kernels() { return kKernels; }

}  // namespace ingot
