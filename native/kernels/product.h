// What the host halves of products share: the level's function, rows and batches of views, the split of the work.
#pragma once

#include <span>

#include "epilogue.h"
#include "packed_weight.h"

namespace ingot {

/// The parameter outside: what lies around x, which is int8.
int read_outside(Params& params, DType x);

/// What is dealt to workers, where a build has measured it.
enum class Split : std::uint8_t { by_rules, rows, outputs };

/// The parameters order and split, which may be missing.
Order read_order(Params& params);
Split read_split(Params& params);

/// For rows of that type; `weight`: a packed weight's elements (packed_weight.h).
const PackedProduct& product_for(Level level, DType dtype, DType weight);
inline const PackedProduct& product_for(Level level, DType dtype) { return product_for(level, dtype, dtype); }

/// A worker's memory for products with a packed weight. The product's own `bytes` lie last: only plan() has to say how many.
struct ProductMemory {
  std::byte *unpacked, *epilogue, *product;

  ProductMemory(Frame& frame, const PackedWeight& weight, const Epilogue& epilogue_of, std::size_t bytes = 0)
      : unpacked(weight.take(frame)), epilogue(epilogue_of.take(frame)), product(frame.take<std::byte>(static_cast<std::int64_t>(bytes))) {}
};

std::int64_t rows_of(const TensorView& y);

/// Refuses extras (in[first] onwards) that do not broadcast to [rows of y, n] with rows equally far apart.
void require_extras(std::string_view kernel, Views in, std::size_t first, const TensorView& y);
/// An operand of the expression, or y itself, from that row and column of y on.
TileOperand placed(const TensorView& view, const TensorView& y, std::int64_t row, std::int64_t column);
/// The same of all extras (in[first] onwards), and of y, whose rows are dense, as `out`.
void place_operands(Views in, std::size_t first, const TensorView& y, std::int64_t row, std::int64_t column, TileOperand* extras, TileOperand& out);

/// Refuses operands that are not a[..., m, k], b[..., k, n] -> y[..., m, n] with batch dimensions that broadcast to y's, and
/// rows of y that are not dense.
void require_batched_product(std::string_view kernel, const TensorView& a, const TensorView& b, const TensorView& y);
/// Where the matrix of an operand for that batch of y begins, in elements.
std::int64_t batch_offset(const TensorView& view, const TensorView& y, std::int64_t batch);

/// Most scratch of a worker that gets some of the rows.
std::size_t product_scratch(Blocking blocking, std::int64_t rows, std::int64_t units, std::int64_t k, int parts, int threads);

/// Most rows that a host half gives to one job, by the bytes of the panels that they meet. Panels that stay in L1 are as near to few
/// rows as to many, which would only take more memory.
constexpr std::int64_t rows_at_once(Blocking blocking, std::int64_t panels) {
  constexpr std::int64_t kNear = 16 << 10, kRows = 128;
  return panels <= kNear && blocking.rows > kRows ? kRows : blocking.rows;
}

/// Whether a product may end where an operand of its epilogue lies, which then is read a tile before the result is written. (Of
/// float32 an expression may compute within the result.) By tiles only: where caches are bound by the lines that they take, which this halves.
constexpr bool ends_in_place(const PackedProduct& product, DType y) { return product.tiles && y != DType::float32; }

/// Workers in a grid of rows by units.
struct Grid {
  int by_rows, by_units;
};

/// The split with the least work for the busiest worker. Few rows cost as much as 16: reading the weights dominates; and
/// packing rows of x again for every column of the grid costs `packing` of a unit. Rows are computed `step`
/// at a time (rows_step), and weights that few rows meet take as long as one step more. Or as `split` says.
Grid grid_of(Split split, std::int64_t rows, std::int64_t units, int workers, double packing, std::int64_t step);
constexpr std::int64_t rows_step(const PackedProduct& product) { return product.tiles ? 16 : 1; }
constexpr double kPackingRows = 1.0 / 16, kPackingPatches = 1.0 / 8, kPackingImage = 3;  // kPackingImage: by the number of taps
/// The same of pairs of rows, whose seven operands are made of four; few of them meet weights of 1.75 times as many bytes (three quarters as they are
/// and four sums of floats; of float16 2.75 times): kPairsStep.
constexpr double kPackingPairs = 1.5;
constexpr std::int64_t kPairsStep = 16;
/// The same of rows that tiles read beside weights that stay in L2: half of them come from the other core, whose tiles made them.
constexpr double kReadingRows = 3;
constexpr std::int64_t kWeightsOfCore = 1 << 20;

}  // namespace ingot
