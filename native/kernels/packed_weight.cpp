// What the operands of a packed weight have to be.
#include "packed_weight.h"

#include <algorithm>
#include <string>

namespace ingot {

namespace {

Packing packing_of(DType stored) {
  switch (stored) {
    case DType::int8: return Packing::int8;
    case DType::float8_e4m3fn: return Packing::float8;
    case DType::uint8: return Packing::int4;
    default: return Packing::same;
  }
}

}  // namespace

void require_weight(std::string_view kernel, const char* what, DType weight, DType x, std::int64_t group) {
  if (x == DType::int8) require_dtype(kernel, what, weight, {DType::int8, DType::uint8});
  else require_dtype(kernel, what, weight, {x, DType::int8, DType::uint8, DType::float8_e4m3fn});
  const bool grouped = packing_of(weight) == Packing::int4;
  if (grouped != (group != 0)) refuse(kernel, std::string(what) + " of 4 bits, and no other, has scales of groups");
  require(group == 0 || std::ranges::find(kGroups, group) != std::end(kGroups), kernel, "group must be 32, 64 or 128");
}

PackedWeight::PackedWeight(DType stored, std::int64_t k, std::int64_t group, DType scales)
    : packing_(packing_of(stored)), k_(k), group_(group), scale_bytes_(static_cast<std::int64_t>(size_of(scales))),
      depth_(packing_ == Packing::same ? (stored == DType::bfloat16 ? 2 : 1) : packed_depth(packing_)),
      width_(packing_ == Packing::same ? depth_ * static_cast<std::int64_t>(size_of(stored)) : kPackedBytes / kPanel),
      steps_((k + depth_ - 1) / depth_) {}

void PackedWeight::check(std::string_view kernel, const char* what, const TensorView* operands, std::int64_t panels) const {
  const TensorView& w = operands[0];
  const std::int64_t inner = packing_ == Packing::int4 ? width_ : depth_;
  if (inner == 1)
    require_shape(kernel, what, w, {panels, steps_, kPanel});
  else
    require_shape(kernel, what, w, {panels, steps_, kPanel, inner});
  require_contiguous(kernel, what, w);
  if (packing_ != Packing::int4) return;
  require_shape(kernel, "the scales", operands[1], {panels, (k_ + group_ - 1) / group_, kPanel});
  require_contiguous(kernel, "the scales", operands[1]);
}

void PackedWeight::place(MatmulJob& job, const TensorView* operands, std::int64_t panel, std::byte* unpacked) const noexcept {
  job.w = operands[0].as<std::byte>() + panel * panel_bytes();
  job.packing = packing_;
  job.unpacked = unpacked;
  if (packing_ != Packing::int4) return;
  job.group = static_cast<int>(group_);
  job.scale_bytes = static_cast<int>(scale_bytes_);
  job.scales = operands[1].as<const std::byte>() + panel * ((k_ + group_ - 1) / group_) * kPanel * scale_bytes_;
}

}  // namespace ingot
