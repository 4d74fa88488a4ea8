#include "broadcast.h"

namespace ingot {

bool broadcasts(const TensorView& view, const TensorView& y, int first, int last) {
  for (int dim = first; dim < last; ++dim) {
    const int own = dim - (y.rank - view.rank);
    if (own >= 0 && view.shape[own] != 1 && view.shape[own] != y.shape[dim]) return false;
  }
  return true;
}

std::optional<std::int64_t> row_stride(const TensorView& view, const TensorView& y, int first) {
  if (y.elements() == 0) return 0;  // no rows to be apart
  if (view.rank > y.rank || !broadcasts(view, y, first, y.rank - 1)) return std::nullopt;
  std::optional<std::int64_t> stride;
  std::int64_t next = 0;  // the stride with which another dimension continues those seen
  for (int dim = y.rank - 2; dim >= first; --dim) {
    if (y.shape[dim] == 1) continue;
    const std::int64_t own = broadcast_stride(view, y.rank, dim);
    if (stride && own != next) return std::nullopt;
    if (!stride) stride = own;
    next = own * y.shape[dim];
  }
  return stride.value_or(0);
}

std::uint64_t apart_by_broadcast(std::span<const TensorView> in, const TensorView& y, std::size_t first) {
  std::uint64_t found = 0;
  for (std::size_t i = first; i < in.size(); ++i)
    if (in[i].rank == y.rank && in[i].shape[0] == y.shape[0]) found |= std::uint64_t{1} << i;
  return found;
}

}  // namespace ingot
