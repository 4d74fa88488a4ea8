// A plain recursive copy, with memcpy where memory is contiguous.
#include "copy_strided.h"

#include <cstring>

namespace ingot {
namespace {

void copy_dim(const TensorView& from, const TensorView& to, int dim, const std::byte* source, std::byte* target,
              std::int64_t size) noexcept {
  if (dim == from.rank) {
    std::memcpy(target, source, static_cast<std::size_t>(size));
    return;
  }
  const bool dense = dim + 1 == from.rank && from.stride[dim] == 1 && to.stride[dim] == 1;
  if (dense) {
    std::memcpy(target, source, static_cast<std::size_t>(size * from.shape[dim]));
    return;
  }
  for (std::int64_t i = 0; i < from.shape[dim]; ++i) {
    copy_dim(from, to, dim + 1, source + i * from.stride[dim] * size, target + i * to.stride[dim] * size, size);
  }
}

}  // namespace

void copy_strided(const TensorView& from, const TensorView& to) noexcept {
  const auto size = static_cast<std::int64_t>(size_of(from.dtype));
  const std::int64_t elements = from.elements();
  if (elements == 0) return;
  if (from.contiguous() && to.contiguous()) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(elements * size));
  } else {
    copy_dim(from, to, 0, from.as<const std::byte>(), to.as<std::byte>(), size);
  }
}

void set_row_major(TensorView& view) noexcept {
  std::uint64_t stride = 1;  // unsigned: sizes that are about to be refused may overflow
  for (int i = view.rank - 1; i >= 0; --i) {
    view.stride[i] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(view.shape[i]);
  }
}

}  // namespace ingot
