// How the lines of a convolution with few outputs are divided among the workers, and the weight as they read it.
#include "narrow.h"

#include "packed_weight.h"
#include "product.h"

namespace ingot {

bool Narrow::suits(std::int64_t channels, std::int64_t outputs, DType dtype, const Window& window, int outside, int speed) {
  if (outputs > kNarrowOutputs) return false;
  // Sums of int8 are of floats, exact up to 2^24. A product takes 20 instructions for each row beside what is multiplied.
  if (dtype == DType::int8)
    return window.positions() == 1 && outside == 0 && channels <= kMostNarrowInt8 && ((channels + 15) / 16 + 12) * outputs <= channels / 4 + channels / 8 + 20;
  // In vector instructions for a pixel. Adding up an output's lanes and its epilogue count as twelve; packing a patch as 1/8 of its
  // values.
  const std::int64_t k = window.positions() * channels, taps = window.axis[2].dilation == 1 ? window.axis[2].kernel : 1;
  const std::int64_t vectors = window.positions() / taps * ((taps * channels + 15) / 16);
  return (vectors + 12) * outputs <= k / speed + k / 8;
}

Narrow::Narrow(std::int64_t channels, std::int64_t outputs, DType dtype, const Window& window, const Epilogue& epilogue, Level level)
    : channels_(channels), outputs_(outputs), dtype_(dtype), window_(window), epilogue_(epilogue),
      table_(half_for(narrow_halves, level)) {}

void Narrow::prepare(const TensorView& panels) const {
  std::call_once(once_, [&] {
    const std::int64_t line = window_.axis[2].kernel * channels_, lines = window_.axis[0].kernel * window_.axis[1].kernel;
    Pages pages(static_cast<std::size_t>(outputs_ * output_values()) * 4, "the weight of a convolution with few outputs");
    auto* const to = reinterpret_cast<float*>(pages.data());  // which is zero
    const PackedWeight weight(dtype_, lines * line);
    for (std::int64_t output = 0; output < outputs_; ++output)
      for (std::int64_t k = 0; k < lines * line; ++k) {
        const std::int64_t at = weight.begin(output) + (k / weight.depth() * kPanel) * weight.depth() + k % weight.depth();
        float* const value = to + output * output_values() + k / line * line_values() + k % line;
        if (dtype_ == DType::int8) *value = panels.as<std::int8_t>()[at];
        else table_.convert(panels.at(at), dtype_, value, DType::float32, 1);
      }
    pages_ = std::move(pages);
  });
}

Scratch Narrow::scratch() const { return {0, bytes_of_layout<EpilogueMemory>(epilogue_, kNarrowValues)}; }

void Narrow::run(Views in, const TensorView& y_view, const Worker& worker) const {
  if (y_view.elements() == 0) return;
  const Spatial x(in[0], window_.axes), y(y_view, window_.axes);
  const Window window = window_.over(in[0]);
  const std::int64_t width = static_cast<std::int64_t>(size_of(dtype_));
  const LineTasks tasks(y, worker.count, kTile);
  const auto memory = layout_at<EpilogueMemory>(worker.local, epilogue_, kNarrowValues);
  TileOperand extras[kMaxExtras];
  NarrowJob job{};
  for (int i = 0; i < kAxes; ++i) job.axis[i] = window.axis[i], job.x_step[i] = x.stride[1 + i] * width;
  job.dtype = dtype_;
  job.together = window.axis[2].dilation == 1;
  job.gathered = job.together && window.axis[2].kernel > 1 && job.x_step[2] != channels_ * width;
  job.w = reinterpret_cast<const float*>(pages_.data());
  job.w_output = output_values(), job.w_line = line_values();
  job.channels = channels_;
  job.outputs = static_cast<int>(outputs_);
  job.epilogue = epilogue_.job(extras, in.size() - 2, memory.epilogue);
  job.values = memory.values;
  const Share share = share_of(tasks.count(), worker.index, worker.count);
  for (std::int64_t task = share.first; task < share.last; ++task) {
    const auto [line, columns, channels] = tasks[task];
    job.x = in[0].as<std::byte>() + line.image * x.stride[0] * width;
    job.planes = span_of(job.axis[0], line.plane);
    job.lines = span_of(job.axis[1], line.line);
    job.first = columns.first, job.last = columns.last;
    place_operands(in, 2, y_view, y.pixel(line, columns.first), 0, extras, job.epilogue.out);
    table_.run(job);
  }
}

}  // namespace ingot
