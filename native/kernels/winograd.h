// 3x3 convolution with stride 1 by Winograd's F(4x4, 3x3) (Lavin and Gray, 2015), for the kernel `conv_packed`: an
// output tile of 4x4 pixels costs 36 products per pair of channels instead of 144. Small images take F(2x2, 3x3): 16
// instead of 36, and a transformed weight that is 1.8 times the plain one instead of 4 times. Sums are float32; x and the
// weight float32, bfloat16 or float16, channels-last; dilation 1, one group.
//
// Its limits, the error and the order of summation: level/winograd.h.
#pragma once

#include <mutex>
#include <span>

#include "../src/kernel.h"
#include "../src/memory.h"
#include "epilogue.h"
#include "level/winograd.h"

namespace ingot {

/// What one call of run() works on.
struct WinogradOperands {
  TensorView x;               // [N, H, W, C], the last dimension dense
  TensorView panels;          // the weight, for O outputs, k = (ky, kx, c)
  TensorView y;               // [N, H', W', O]: its shape
  std::int64_t top, left;     // padding in front
  const TileOperand* extras;  // of row 0 and column 0; rows are [N * H' * W']
  std::size_t extra_count;
  TileOperand out;            // likewise
};

class Winograd {
 public:
  /// Whether it is faster than the direct product, which is `speed` times as fast as one of float32 (PackedProduct). Does not
  /// depend on the number of images or threads, so that an image's bits do not depend on its company.
  static bool suits(std::int64_t channels, std::int64_t outputs, std::int64_t height, std::int64_t width, int speed);

  /// `dtype`: of x and the weight. `tile`: outputs of a tile each way, 2 or 4; 0: which of them, the output's size says.
  Winograd(std::int64_t outputs, std::int64_t channels, DType dtype, const Epilogue& epilogue, Level level, int tile);

  /// Transforms the weight's panels for outputs of y's shape, once; later calls do nothing. From any thread, before the first
  /// run() (in plan()). Throws Error("memory").
  void prepare(const TensorView& panels, const TensorView& y) const;
  /// `y` is the output's shape.
  Scratch scratch(const TensorView& y, int threads) const;
  /// One worker's part.
  void run(const WinogradOperands& operands, const Worker& worker) const;

 private:
  struct Split;
  struct Memory;
  struct Weight {
    std::once_flag once;
    Pages pages;
  };
  Weight& weight(int tile) const { return weights_[tile == 2]; }
  int tile_of(const TensorView& y) const;
  Split split(const TensorView& y, int workers) const;

  std::int64_t outputs_, channels_;
  int tile_;
  DType dtype_;
  const Epilogue& epilogue_;
  const WinogradTable& table_;
  mutable Weight weights_[2];  // for tiles of 4x4 and of 2x2 outputs
};

}  // namespace ingot
