#include "strided.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "check.h"

namespace ingot {

namespace {

// Tiles of transposing copies have few enough columns that their cache lines survive in one set of L1 when the stride
// is a power of two. They have enough rows to use whole lines.
constexpr std::int64_t kTileRows = 64, kTileColumns = 8;
constexpr std::int64_t kNearColumns = 256;  // of columns that share cache lines, which all rows of a tile find in L1
constexpr std::int64_t kLine = 64;

template <class T>
void copy_row(T* to, std::int64_t to_stride, const T* from, std::int64_t from_stride, std::int64_t count) {
  if (to_stride == 1 && from_stride == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
  } else if (to_stride == 1 && from_stride == 0) {
    std::fill(to, to + count, *from);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

/// Rows of so many bytes, without a call for each.
template <std::size_t Bytes>
void copy_short_rows(std::byte* to, std::int64_t to_stride, const std::byte* from, std::int64_t from_stride, std::int64_t rows) {
  for (std::int64_t i = 0; i < rows; ++i, to += to_stride, from += from_stride) std::memcpy(to, from, Bytes);
}

/// The last two dimensions; tiled when one side runs along the first of them, so that neither side thrashes the cache.
template <class T>
void copy_plane(const StridedCopy& copy, T* to, const T* from) {
  const int r = copy.rank - 2, c = copy.rank - 1;
  const std::int64_t rows = copy.shape[r], columns = copy.shape[c];
  const bool crossed = copy.from_stride[r] < copy.from_stride[c] || copy.to_stride[r] < copy.to_stride[c];
  const auto bytes = [](std::int64_t elements) { return elements * static_cast<std::int64_t>(sizeof(T)); };
  if (!crossed && copy.to_stride[c] == 1 && copy.from_stride[c] == 1 && (bytes(columns) == 32 || bytes(columns) == 64)) {
    const auto rows_of = bytes(columns) == 32 ? copy_short_rows<32> : copy_short_rows<64>;
    return rows_of(reinterpret_cast<std::byte*>(to), bytes(copy.to_stride[r]), reinterpret_cast<const std::byte*>(from),
                   bytes(copy.from_stride[r]), rows);
  }
  if (!crossed) {
    for (std::int64_t i = 0; i < rows; ++i)
      copy_row(to + i * copy.to_stride[r], copy.to_stride[c], from + i * copy.from_stride[r], copy.from_stride[c], columns);
    return;
  }
  const std::int64_t apart = bytes(std::max(std::abs(copy.from_stride[c]), std::abs(copy.to_stride[c])));
  const std::int64_t most = apart <= kLine / 2 ? kNearColumns : kTileColumns;
  for (std::int64_t i0 = 0; i0 < rows; i0 += kTileRows)
    for (std::int64_t j0 = 0; j0 < columns; j0 += most)
      for (std::int64_t i = i0; i < std::min(rows, i0 + kTileRows); ++i)
        copy_row(to + i * copy.to_stride[r] + j0 * copy.to_stride[c], copy.to_stride[c],
                 from + i * copy.from_stride[r] + j0 * copy.from_stride[c], copy.from_stride[c],
                 std::min(most, columns - j0));
}

template <class T>
void copy_outer(const StridedCopy& copy, int dim, T* to, const T* from) {
  if (dim == copy.rank - 2) return copy_plane(copy, to, from);
  for (std::int64_t i = 0; i < copy.shape[dim]; ++i)
    copy_outer(copy, dim + 1, to + i * copy.to_stride[dim], from + i * copy.from_stride[dim]);
}

template <class T>
void copy_as(const StridedCopy& copy, void* to, const void* from) {
  if (copy.rank == 0) return void(*static_cast<T*>(to) = *static_cast<const T*>(from));
  if (copy.rank == 1)
    return copy_row(static_cast<T*>(to), copy.to_stride[0], static_cast<const T*>(from), copy.from_stride[0], copy.shape[0]);
  copy_outer(copy, 0, static_cast<T*>(to), static_cast<const T*>(from));
}

}  // namespace

void StridedCopy::add(std::int64_t size, std::int64_t to, std::int64_t from) {
  if (size == 1) return;
  if (rank > 0 && to_stride[rank - 1] == size * to && from_stride[rank - 1] == size * from) {
    shape[rank - 1] *= size;
    to_stride[rank - 1] = to;
    from_stride[rank - 1] = from;
    return;
  }
  shape[rank] = size;
  to_stride[rank] = to;
  from_stride[rank] = from;
  ++rank;
}

void copy_strided(StridedCopy copy, void* to, const void* from, std::size_t element, int index, int workers) {
  if (copy.rank == 0 && index != 0) return;
  for (int i = 0; i < copy.rank; ++i)
    if (copy.shape[i] == 0) return;
  if (workers > 1 && copy.rank > 0) {
    const auto split = std::max_element(copy.shape, copy.shape + copy.rank) - copy.shape;
    const Share share = share_of(copy.shape[split], index, workers);
    if (share.first == share.last) return;
    to = static_cast<std::byte*>(to) + share.first * copy.to_stride[split] * static_cast<std::int64_t>(element);
    from = static_cast<const std::byte*>(from) + share.first * copy.from_stride[split] * static_cast<std::int64_t>(element);
    copy.shape[split] = share.last - share.first;
  }
  switch (element) {
    case 1: return copy_as<std::uint8_t>(copy, to, from);
    case 2: return copy_as<std::uint16_t>(copy, to, from);
    case 4: return copy_as<std::uint32_t>(copy, to, from);
    default: return copy_as<std::uint64_t>(copy, to, from);
  }
}

std::int64_t offset_of(const TensorView& view, std::int64_t number) {
  std::int64_t offset = 0;
  for (int i = view.rank - 1; i >= 0; --i) {
    offset += number % view.shape[i] * view.stride[i];
    number /= view.shape[i];
  }
  return offset;
}

}  // namespace ingot
