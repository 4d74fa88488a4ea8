// Convolution by Winograd's minimal filtering (Lavin and Gray, 2015), for conv_packed and the phases of conv_transpose_packed.
// 3x3 with stride 1 by F(4x4, 3x3): an output tile of 4x4 pixels costs 36 products per pair of channels instead of 144. Small
// images take F(2x2, 3x3): 16 instead of 36, and a transformed weight that is 1.8 times the plain one instead of 4 times. Taps
// along one axis, kx1 and 1xk, with stride 1 or 2 by F(4, 5), of five taps at a time: for nine 15 products instead of 36. Where
// the level has dot products of bfloat16, that type takes F(2x2, 3x3) and F(2, 3), whose products they are. Phases of two taps
// along one axis or both take F(4, 2) and F(4x4, 2x2): 25 products instead of 64 for 2x2, and a transformed weight that is 6.25
// times the plain one. Sums are float32; x and the weight float32, bfloat16 or float16, channels-last; dilation 1, one group.
//
// Its limits, the error and the order of summation: level/winograd.h.
#pragma once

#include <mutex>
#include <optional>
#include <span>

#include "../src/kernel.h"
#include "../src/memory.h"
#include "epilogue.h"
#include "level/winograd.h"
#include "packed_weight.h"
#include "window.h"

namespace ingot {

/// How many rows of the output and the extras, each of a pixel, lie from an image, a line or a pixel of a convolution to the next.
struct WinogradRows {
  std::int64_t image, line, pixel;
};

/// What one call of run() works on.
struct WinogradOperands {
  TensorView x;               // [N, H, W, C], the last dimension dense
  TensorView panels;          // the weight, for O outputs, k = (ky, kx, c)
  TensorView y;               // [N, H', W', O]: its shape
  WinogradRows rows;
  const TileOperand* extras = nullptr;  // of the first pixel and column 0
  std::size_t extra_count = 0;
  TileOperand out{};                    // likewise
};

class Winograd {
 public:
  /// Whether it can compute a convolution by that window, of one or two axes.
  static bool takes(const Window& window);
  /// The same of a phase of a transposed convolution: two taps along one axis or both.
  static bool takes_phase(const Window& window);

  /// `dtype`: of x and the weight. `tile`: outputs of a tile each way, 2 or 4; 0: which of them, rules say.
  Winograd(std::int64_t outputs, std::int64_t channels, DType dtype, const Window& window, const Epilogue& epilogue, Level level, int tile);

  /// Whether it is faster for outputs of y's shape than the direct product, which is `speed` times as fast as one of float32
  /// (PackedProduct). Does not depend on the number of images or threads, so that an image's bits do not depend on its company.
  bool suits(const TensorView& y, int speed) const;

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
  Weight& weight(WinogradTile tile) const { return weights_[tile == WinogradTile::square_2]; }
  WinogradTile tile_of(const TensorView& y) const;
  PackedWeight packed() const;
  bool paired(WinogradTile tile) const { return table_.pairs && dtype_ == DType::bfloat16 && size_of(tile) == 2; }
  /// Of a line that many of its blocks.
  std::int64_t depth_of(WinogradTile tile, std::int64_t blocks) const {
    const std::int64_t rows = is_line(tile) ? blocks * block_depth(channels_) : channels_;
    return paired(tile) ? (rows + 1) / 2 : rows;
  }
  std::int64_t depth_of(WinogradTile tile) const { return depth_of(tile, taps_.blocks()); }
  Split split(const TensorView& y, int workers) const;

  std::int64_t outputs_, channels_;
  DType dtype_;
  WinogradTaps taps_;
  std::int64_t top_, left_;            // padding in front
  std::optional<WinogradTile> tile_;  // none: 4x4 or 2x2, by y's size
  const Epilogue& epilogue_;
  const WinogradTable& table_;
  mutable Weight weights_[2];  // [1]: for tiles of 2x2 outputs
};

}  // namespace ingot
