// A constant weight in panels of 32 outputs (level/matmul.h), as the operands of a call give it. It says what they have
// to be, how many bytes a panel has, where it lies, and which scales belong to it.
#pragma once

#include <string_view>

#include "check.h"
#include "level/matmul.h"

namespace ingot {

/// Refuses a weight whose type rows of type x are not multiplied with; `group`: of k that share a scale, 0 without scales.
void require_weight(std::string_view kernel, const char* what, DType weight, DType x, std::int64_t group);

class PackedWeight {
 public:
  /// `stored`: the type of its elements, where uint8 stands for two values of 4 bits. `scales`: that of groups' scales.
  PackedWeight(DType stored, std::int64_t k, std::int64_t group = 0, DType scales = DType::float32);

  /// Its operands: the panels, and the scales of groups where it has any.
  std::size_t operands() const noexcept { return packing_ == Packing::int4 ? 2 : 1; }
  /// Refuses operands (the first is the panels) of other shapes, and gaps in them.
  void check(std::string_view kernel, const char* what, const TensorView* operands, std::int64_t panels) const;
  Packing packing() const noexcept { return packing_; }
  std::int64_t panel_bytes() const noexcept { return steps_ * kPanel * width_; }
  /// A worker's memory for it: where a block of k is unpacked.
  std::byte* take(Frame& frame) const { return frame.take<std::byte>(packing_ == Packing::same ? 0 : 2 * kUnpackedPanel); }
  /// Lets a job's first unit be that panel.
  void place(MatmulJob& job, const TensorView* operands, std::int64_t panel, std::byte* unpacked) const noexcept;
  /// Values of k that lie side by side, unless they have 4 bits; the next ones lie 32 times as many elements further.
  std::int64_t depth() const noexcept { return depth_; }
  /// Where an output's values begin, in elements.
  std::int64_t begin(std::int64_t output) const noexcept { return (output / kPanel * steps_ * kPanel + output % kPanel) * depth_; }

 private:
  Packing packing_;
  std::int64_t k_, group_;
  std::int64_t scale_bytes_;
  std::int64_t depth_;
  std::int64_t width_;  // bytes of depth_ values
  std::int64_t steps_;  // of depth_ values, in a panel
};

}  // namespace ingot
