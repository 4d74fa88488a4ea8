// How the lines of a convolution in groups are divided among the workers, and the weight as they read it.
#include "grouped.h"

#include <bit>
#include <cstring>

#include "packed_weight.h"
#include "product.h"

namespace ingot {

namespace {

std::int64_t values_of_word(DType dtype) { return 4 / static_cast<std::int64_t>(size_of(dtype)); }

}  // namespace

GroupedProduct Grouped::suits(std::int64_t groups, std::int64_t group_channels, std::int64_t group_outputs, DType dtype, Level level) {
  if (groups == 1 || dtype == DType::float16) return nullptr;
  const std::int64_t each = values_of_word(dtype), words = group_channels / each;
  const auto power = [](std::int64_t n) { return n <= 16 && std::has_single_bit(static_cast<std::uint64_t>(n)); };
  // The channels of a vector's groups lie in one vector.
  if (group_channels % each != 0 || !power(group_outputs) || !power(words) || words > group_outputs) return nullptr;
  GroupedProduct MatmulTable::*const member = dtype == DType::float32    ? &MatmulTable::grouped_float32
                                              : dtype == DType::bfloat16 ? &MatmulTable::grouped_bfloat16
                                                                         : &MatmulTable::grouped_int8;
  return member_for(matmul_halves, level, member);
}

Grouped::Grouped(std::int64_t groups, std::int64_t group_channels, std::int64_t group_outputs, DType dtype, const Window& window,
                 int outside, const Epilogue& epilogue, GroupedProduct product)
    : groups_(groups), group_channels_(group_channels), group_outputs_(group_outputs), words_(group_channels / values_of_word(dtype)),
      dtype_(dtype), window_(window), outside_(outside), epilogue_(epilogue), product_(product) {}

void Grouped::prepare(const TensorView& panels) const {
  std::call_once(once_, [&] {
    const std::int64_t taps = window_.positions(), steps = taps * words_;
    Pages pages(static_cast<std::size_t>(units() * (unit_words() + 16)) * 4, "the weight of a convolution in groups");
    auto* const to = reinterpret_cast<std::uint32_t*>(pages.data());  // which is zero
    auto* const start = reinterpret_cast<std::int32_t*>(to + units() * unit_words());
    const auto* const from = panels.as<std::byte>();  // of int8 it may begin anywhere
    for (std::int64_t output = 0; output < groups_ * group_outputs_; ++output) {
      const std::byte* const panel = from + (output / group_outputs_ * steps * kPanel + output % group_outputs_) * 4;
      std::int64_t sum = 0;
      for (std::int64_t step = 0; step < steps; ++step) {
        std::uint32_t word;
        std::memcpy(&word, panel + step * kPanel * 4, 4);
        to[output / 16 * unit_words() + step * 16 + output % 16] = word;
        for (int byte = 0; byte < 4; ++byte) sum += static_cast<std::int8_t>(word >> 8 * byte & 255);
      }
      if (dtype_ == DType::int8) start[output] = static_cast<std::int32_t>(-128 * sum);
    }
    pages_ = std::move(pages);
  });
}

Scratch Grouped::scratch() const { return {0, bytes_of_layout<EpilogueMemory>(epilogue_, kGroupedValues)}; }

void Grouped::run(Views in, const TensorView& y_view, const Worker& worker) const {
  if (y_view.elements() == 0) return;
  const Spatial x(in[0], window_.axes), y(y_view, window_.axes);
  const Window window = window_.over(in[0]);
  const std::int64_t width = static_cast<std::int64_t>(size_of(dtype_));
  const LineTasks tasks(y, worker.count, kTile);
  const auto memory = layout_at<EpilogueMemory>(worker.local, epilogue_, kGroupedValues);
  const auto* const weight = reinterpret_cast<const std::uint32_t*>(pages_.data());
  TileOperand extras[kMaxExtras];
  GroupedJob job{};
  for (int i = 0; i < kAxes; ++i) job.axis[i] = window.axis[i], job.x_step[i] = x.stride[1 + i] * width;
  job.w_unit = unit_words() * 4;
  job.words = static_cast<int>(words_);
  job.log_outputs = std::countr_zero(static_cast<std::uint64_t>(group_outputs_));
  job.outside = outside_;
  job.epilogue = epilogue_.job(extras, in.size() - 2, memory.epilogue);
  job.values = memory.values;
  const Share share = share_of(tasks.count(), worker.index, worker.count);
  for (std::int64_t task = share.first; task < share.last; ++task) {
    const auto [line, columns, channels] = tasks[task];
    const std::int64_t group = channels.first / group_outputs_, unit = channels.first / 16;
    job.x = in[0].as<std::byte>() + (line.image * x.stride[0] + group * group_channels_) * width;
    job.plane = line.plane * window.axis[0].stride - window.axis[0].before;
    job.line = line.line * window.axis[1].stride - window.axis[1].before;
    job.w = reinterpret_cast<const std::byte*>(weight + unit * unit_words());
    job.start = reinterpret_cast<const float*>(weight + units() * unit_words()) + unit * 16;
    job.outputs = channels.last - channels.first;
    job.units = (job.outputs + 15) / 16;
    job.groups = job.outputs / group_outputs_;
    job.first = columns.first, job.last = columns.last;
    place_operands(in, 2, y_view, y.pixel(line, columns.first), channels.first, extras, job.epilogue.out);
    product_(job);
  }
}

}  // namespace ingot
