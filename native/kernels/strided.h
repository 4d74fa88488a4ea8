// Copies between strided windows of memory, by element size. Plain C++: memory movement is the same at every level.
#pragma once

#include <cstdint>

#include "../src/kernel.h"

namespace ingot {

/// Where elements of one shape lie in two windows of memory.
struct StridedCopy {
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};
  std::int64_t to_stride[kMaxRank] = {};
  std::int64_t from_stride[kMaxRank] = {};

  void add(std::int64_t size, std::int64_t to, std::int64_t from);
};

/// Copies worker `index` of `workers`' part; element is 1, 2, 4 or 8 bytes.
void copy_strided(StridedCopy copy, void* to, const void* from, std::size_t element, int index = 0, int workers = 1);

/// Element offset of the element with that row-major number.
std::int64_t offset_of(const TensorView& view, std::int64_t number);

/// An int32 or int64 element.
inline std::int64_t integer_at(const TensorView& view, std::int64_t offset) {
  return view.dtype == DType::int32 ? view.as<const std::int32_t>()[offset] : view.as<const std::int64_t>()[offset];
}

}  // namespace ingot
