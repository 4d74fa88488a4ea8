// Windows whose extents meet are a cluster; clusters must follow one another without a gap. Where all windows of a cluster
// repeat with one period, a single period is compared; where they do not, the widest are cut into their steps.
#include "tiling.h"

#include <algorithm>

namespace ingot {
namespace {

struct Dim {
  std::int64_t size, stride;
};

/// Elements offset + sum of index * stride; dimensions from the largest stride to the smallest, none of size 1.
struct Piece {
  std::int64_t offset;
  std::vector<Dim> dims;

  std::int64_t last() const {
    std::int64_t place = offset;
    for (const Dim& dim : dims) place += (dim.size - 1) * dim.stride;
    return place;
  }
  std::int64_t elements() const {
    std::int64_t count = 1;
    for (const Dim& dim : dims) count *= dim.size;
    return count;
  }
};

/// Strides become positive and sorted, and neighbours that are one longer run are joined.
Piece piece_of(const Tile& window) {
  Piece piece{window.offset, {}};
  for (int i = 0; i < window.view.rank; ++i) {
    const std::int64_t size = window.view.shape[i], stride = window.view.stride[i];
    if (size == 1) continue;
    if (stride < 0) piece.offset += (size - 1) * stride;
    piece.dims.push_back({size, stride < 0 ? -stride : stride});
  }
  std::sort(piece.dims.begin(), piece.dims.end(), [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  std::vector<Dim> joined;
  for (const Dim& dim : piece.dims) {
    if (!joined.empty() && joined.back().stride == dim.size * dim.stride)
      joined.back() = {joined.back().size * dim.size, dim.stride};
    else
      joined.push_back(dim);
  }
  piece.dims = std::move(joined);
  return piece;
}

/// Takes the outermost dimension off, or the part of it that has this period; false when it has no such part.
bool take_period(Piece& piece, std::int64_t period, std::int64_t times) {
  if (piece.dims.empty()) return false;
  Dim& outer = piece.dims.front();
  if (period % outer.stride != 0) return false;
  const std::int64_t within = period / outer.stride;
  if (outer.size % within != 0 || outer.size / within != times) return false;
  if (within == 1)
    piece.dims.erase(piece.dims.begin());
  else
    outer.size = within;
  return true;
}

/// Compares pieces with elements [begin, end), between which they lie. A file may not keep the planner busy: what it looks at
/// over all rounds is a multiple of the windows, and rounds lie in rounds only so deep.
class Comparison {
 public:
  explicit Comparison(std::size_t windows) : pieces_left_(kPieces + kRounds * static_cast<std::int64_t>(windows)) {}

  Tiling run(std::int64_t begin, std::int64_t end, std::vector<Piece> pieces, int depth = 0) {
    pieces_left_ -= static_cast<std::int64_t>(pieces.size());
    if (pieces_left_ < 0 || depth > kDeepest) return Tiling::unclear;
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    std::int64_t reached = begin;  // all before it is covered
    for (std::size_t first = 0, next; first < pieces.size(); first = next) {
      if (pieces[first].offset > reached) return Tiling::gap;
      std::int64_t last = pieces[first].last();
      for (next = first + 1; next < pieces.size() && pieces[next].offset <= last; ++next)
        last = std::max(last, pieces[next].last());
      const auto at = [&](std::size_t i) { return pieces.begin() + static_cast<std::ptrdiff_t>(i); };
      const Tiling found = run_cluster(reached, last + 1, {at(first), at(next)}, depth);
      if (found != Tiling::exact) return found;
      reached = last + 1;
    }
    return reached == end ? Tiling::exact : Tiling::gap;
  }

 private:
  /// Pieces whose extents meet, against the elements [begin, end) that they span.
  Tiling run_cluster(std::int64_t begin, std::int64_t end, const std::vector<Piece>& pieces, int depth) {
    __int128 elements = 0;
    std::int64_t period = 0;
    for (const Piece& piece : pieces) {
      elements += piece.elements();
      if (!piece.dims.empty()) period = std::max(period, piece.dims.front().stride);
    }
    if (elements < end - begin) return Tiling::gap;
    if (elements > end - begin) return Tiling::overlap;
    if (pieces.size() == 1) return Tiling::exact;  // as many as there are, none twice
    bool periodic = (end - begin) % period == 0;   // pieces that meet have dimensions
    std::vector<Piece> once = pieces;
    for (Piece& piece : once)
      periodic = periodic && take_period(piece, period, (end - begin) / period) && piece.last() < begin + period;
    return periodic ? run(begin, begin + period, std::move(once), depth + 1)
                    : run_in_steps(begin, end, pieces, period, depth);
  }

  /// Cuts the pieces of the largest stride into one for each of its steps.
  Tiling run_in_steps(std::int64_t begin, std::int64_t end, const std::vector<Piece>& pieces, std::int64_t largest, int depth) {
    std::vector<Piece> cut;
    for (const Piece& piece : pieces) {
      if (piece.dims.empty() || piece.dims.front().stride != largest) {
        cut.push_back(piece);
        continue;
      }
      const Dim outer = piece.dims.front();
      if (outer.size > pieces_left_ - static_cast<std::int64_t>(cut.size())) return Tiling::unclear;
      const std::vector<Dim> rest(piece.dims.begin() + 1, piece.dims.end());
      for (std::int64_t i = 0; i < outer.size; ++i) cut.push_back({piece.offset + i * outer.stride, rest});
    }
    return run(begin, end, std::move(cut), depth + 1);
  }

  static constexpr std::int64_t kPieces = 1 << 16, kRounds = 16;
  static constexpr int kDeepest = 256;
  std::int64_t pieces_left_;
};

}  // namespace

Tiling tiling_of(std::int64_t elements, const std::vector<Tile>& windows) {
  std::vector<Piece> pieces;
  for (const Tile& window : windows)
    if (window.view.elements() > 0) pieces.push_back(piece_of(window));
  return Comparison(windows.size()).run(0, elements, std::move(pieces));
}

}  // namespace ingot
