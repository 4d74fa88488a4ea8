// Convolutions with few outputs by vectors along the patches (level/narrow.h), for the kernel `conv_packed`: a panel of 32 outputs
// would stay nearly empty.
#pragma once

#include <mutex>

#include "../src/kernel.h"
#include "../src/memory.h"
#include "epilogue.h"
#include "level/narrow.h"
#include "window.h"

namespace ingot {

class Narrow {
 public:
  /// Whether it is faster than the product over patches, which is `speed` times as fast as one of float32 (PackedProduct). One group.
  /// `outside`: what lies around x.
  static bool suits(std::int64_t channels, std::int64_t outputs, DType dtype, const Window& window, int outside, int speed);

  Narrow(std::int64_t channels, std::int64_t outputs, DType dtype, const Window& window, const Epilogue& epilogue, Level level);

  /// Lays out the weight's panels, once; later calls do nothing. From any thread, before the first run() (in plan()). Throws
  /// Error("memory").
  void prepare(const TensorView& panels) const;
  Scratch scratch() const;
  /// One worker's part; in: x, the weight, the epilogue's extras.
  void run(Views in, const TensorView& y, const Worker& worker) const;

 private:
  std::int64_t line_values() const { return (window_.axis[2].kernel * channels_ + 15) / 16 * 16; }
  std::int64_t output_values() const { return window_.axis[0].kernel * window_.axis[1].kernel * line_values(); }

  std::int64_t channels_, outputs_;
  DType dtype_;
  const Window& window_;
  const Epilogue& epilogue_;
  const NarrowTable& table_;
  mutable std::once_flag once_;
  mutable Pages pages_;  // as NarrowJob::w
};

}  // namespace ingot
