// Convolutions in groups of at most 16 outputs by vectors of several groups (level/matmul_grouped.h), for the kernel `conv_packed`.
#pragma once

#include <mutex>

#include "../src/kernel.h"
#include "../src/memory.h"
#include "epilogue.h"
#include "level/matmul.h"
#include "window.h"

namespace ingot {

class Grouped {
 public:
  /// What runs such groups of that type at a level; null where the product over patches has to.
  static GroupedProduct suits(std::int64_t groups, std::int64_t group_channels, std::int64_t group_outputs, DType dtype, Level level);

  Grouped(std::int64_t groups, std::int64_t group_channels, std::int64_t group_outputs, DType dtype, const Window& window, int outside,
          const Epilogue& epilogue, GroupedProduct product);

  /// Lays out the weight's panels, once; later calls do nothing. From any thread, before the first run() (in plan()). Throws
  /// Error("memory").
  void prepare(const TensorView& panels) const;
  Scratch scratch() const;
  /// One worker's part; in: x, the weight, the epilogue's extras.
  void run(Views in, const TensorView& y, const Worker& worker) const;

 private:
  std::int64_t units() const { return (groups_ * group_outputs_ + 15) / 16; }
  std::int64_t unit_words() const { return window_.positions() * words_ * 16; }

  std::int64_t groups_, group_channels_, group_outputs_, words_;  // words_: of a group's channels
  DType dtype_;
  const Window& window_;
  int outside_;
  const Epilogue& epilogue_;
  GroupedProduct product_;
  mutable std::once_flag once_;
  mutable Pages pages_;  // [unit][position][word][16], then what sums begin with, [unit][16]
};

}  // namespace ingot
