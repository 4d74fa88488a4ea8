// The frame that the matrix products of every level share: rows of x (or patches of it) packed by blocks of k, the loop over
// row blocks, groups of units and blocks of k, and the epilogue.
//
// Loop: for each block of rows (packed once, or a block of k at a time) { for each group of units { for each block of k and
// unit { the level's block product } epilogue } }. A unit's block of k (16 KiB) stays in L1 while all rows pass; x lies in L2.
#pragma once

#include "chain.h"
#include "matmul.h"
#include "matmul_patches.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// A block of k of one panel, or of two beside each other, for all rows of the row block.
struct BlockProduct {
  const std::byte* x;       // packed: row r at r * kXStride
  const std::byte* w;       // the panel's block
  const std::byte* ahead;   // what will be read next: the weights after this block
  int panels;               // 1 or 2
  std::int64_t w_apart;     // bytes to the second panel
  std::int64_t apart;       // from its accumulators to the first one's
  int rows;
  int k;                    // depth of this block
  float* accumulators;      // row r at r * stride
  std::int64_t stride;
  bool first;               // the first block of k: start from zero
};

/// Packs values [begin, begin + depth) of rows of x as [row][kXStride bytes], converted to what the product reads and zero
/// padded to whole steps of Kind::k_step values.
template <class Kind>
void pack_block(const MatmulJob& job, std::int64_t first_row, std::int64_t rows, std::int64_t padded_rows, std::int64_t begin,
                std::byte* packed) {
  typedef typename Kind::Source Source;
  typedef typename Kind::Packed Packed;
  const int depth = (int)smaller(job.k - begin, Kind::blocking.depth);
  const int over = ((int)round_up(depth, Kind::k_step) - depth) * (int)sizeof(Packed);
  if (job.patches != nullptr) {
    pack_patches<Source, Packed>(*job.patches, first_row, rows, begin, begin + depth, packed);
  } else {
    const std::byte* from = job.x + first_row * job.x_stride + begin * (int)sizeof(Source);
    constexpr int kAhead = 8;  // rows: each is a few lines somewhere else
    for (std::int64_t r = 0; r < rows; ++r) {
      if (r + kAhead < rows)
        for (int line = 0; line < depth * (int)sizeof(Source); line += 64) __builtin_prefetch(from + (r + kAhead) * job.x_stride + line);
      copy_values((const Source*)(from + r * job.x_stride), (Packed*)(packed + r * kXStride), depth);
    }
  }
  if (over != 0)
    for (std::int64_t r = 0; r < rows; ++r) __builtin_memset(packed + r * kXStride + depth * (int)sizeof(Packed), 0, over);
  if (Kind::pads_rows)
    for (std::int64_t r = rows; r < padded_rows; ++r)
      __builtin_memset(packed + r * kXStride, 0, depth * (int)sizeof(Packed) + over);
}

/// The rows of out and the extras that the job's rows from `row` on are: the first one, how far apart, how many like that.
struct Rows {
  std::int64_t first, apart, count;
};
INGOT_INLINE Rows rows_from(const MatmulJob& job, std::int64_t row) {
  if (job.places == nullptr) return {row, 1, job.rows - row};
  const RowPlaces& p = *job.places;
  std::int64_t pixel = p.first + row;
  const std::int64_t x = pixel % p.size[2], y = (pixel /= p.size[2]) % p.size[1], z = (pixel /= p.size[1]) % p.size[0];
  return {pixel / p.size[0] * p.image_step + z * p.step[0] + y * p.step[1] + x * p.step[2], p.step[2], p.size[2] - x};
}

/// Runs the expression over the finished accumulators [part][row][stride] of a group.
INGOT_INLINE void finish(const MatmulJob& job, float* accumulators, std::int64_t part_stride, std::int64_t stride,
                         std::int64_t first_row, std::int64_t rows, std::int64_t first_column, std::int64_t width) {
  TileOperand in[2 + kMaxExtras];
  for (int i = 0; i < job.extra_count; ++i) in[job.parts + i] = job.extras[i];
  Chain chain;
  const bool chained = job.parts == 1 && chain_of(*job.code, in, job.out, chain);
  const std::int64_t most = chained ? rows : width <= kNarrow ? kTile / width : 1;  // a wide row is read in place
  for (std::int64_t r = 0, count; r < rows; r += count) {
    const Rows place = rows_from(job, first_row + r);
    count = smaller(most, smaller(place.count, rows - r));
    for (int part = 0; part < job.parts; ++part)
      in[part] = {(std::byte*)(accumulators + part * part_stride + r * stride), DType::float32, stride, 1};
    const auto moved = [&](const TileOperand& o, int bytes) {
      return TileOperand{o.data + (place.first * o.row_stride + first_column * o.column_stride) * bytes, o.dtype,
                         o.row_stride * place.apart, o.column_stride};
    };
    for (int i = 0; i < job.extra_count; ++i) in[job.parts + i] = moved(job.extras[i], bytes_of(job.extras[i].dtype));
    const TileOperand out = moved(job.out, bytes_of(job.out.dtype));
    if (chained) run_chain(chain, in, out, count, width);
    else job.run_tile(*job.code, in, &out, (int)count, (int)width, job.tile_scratch);
  }
}

/// The passes' and groups' sizes of a job.
struct Frame {
  std::int64_t panel_bytes, block_bytes;  // of a panel of the weights, and of its blocks of k
  std::int64_t blocks;                    // of k
  std::int64_t padded_rows, part_stride, stride;
  float* accumulators;
};

/// All blocks of k of the panels from w on, for rows that are packed (kept) or get packed here.
template <class Kind>
INGOT_INLINE void multiply_group(const MatmulJob& job, const Frame& frame, const std::byte* w, std::int64_t panels,
                                 std::int64_t first_row, std::int64_t rows, bool kept) {
  const int taken = rows <= Kind::two_panels_rows ? 2 : 1;  // at a time
  const std::int64_t turns = (panels + taken - 1) / taken;
  const auto weights = [&](std::int64_t panel, std::int64_t block) { return w + panel * frame.panel_bytes + block * frame.block_bytes; };
  std::int64_t panel = 0, block = 0;
  for (std::int64_t left = turns * frame.blocks; left > 0; --left) {
    std::int64_t next_panel = panel, next_block = block + 1;
    if (kept ? next_block == frame.blocks : panel + taken < panels) {
      next_panel += taken;
      next_block = kept ? 0 : block;
    } else if (!kept) {
      next_panel = 0;
    }
    BlockProduct product;
    product.ahead = left > 1 ? weights(next_panel, next_block) : w + panels * frame.panel_bytes;
    product.w = weights(panel, block);
    product.x = job.scratch + (kept ? block * frame.padded_rows * kXStride : 0);
    if (!kept && panel == 0)
      pack_block<Kind>(job, first_row, rows, frame.padded_rows, block * Kind::blocking.depth, job.scratch);
    product.panels = (int)smaller(taken, panels - panel);
    product.w_apart = frame.panel_bytes;
    product.apart = job.parts == 2 ? frame.part_stride : kPanel;
    product.rows = (int)rows;
    product.k = (int)smaller(Kind::blocking.depth, job.k - block * Kind::blocking.depth);
    product.accumulators = frame.accumulators + panel % job.parts * frame.part_stride + panel / job.parts * kPanel;
    product.stride = frame.stride;
    product.first = block == 0;
    Kind::multiply(product);
    panel = next_panel, block = next_block;
  }
  if (frame.blocks == 0) __builtin_memset(frame.accumulators, 0, job.parts * frame.part_stride * 4);  // k = 0
}

template <class Kind>
INGOT_INLINE void run_job(const MatmulJob& job) {
  const int most = pass_rows(Kind::blocking, job.k);
  const std::int64_t passes = (job.rows + most - 1) / most;
  Frame frame;
  frame.panel_bytes = (job.k + Kind::w_depth - 1) / Kind::w_depth * Kind::w_bytes;
  frame.block_bytes = Kind::blocking.depth / Kind::w_depth * Kind::w_bytes;
  frame.blocks = (job.k + Kind::blocking.depth - 1) / Kind::blocking.depth;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    const std::int64_t first_row = job.rows * pass / passes;
    const std::int64_t rows = job.rows * (pass + 1) / passes - first_row;
    const bool kept = keeps_rows(Kind::blocking, rows, job.k);
    const std::int64_t group = smaller(group_of(Kind::blocking, job.rows, rows, job.k), job.units);
    frame.padded_rows = round_up(rows, 16);
    frame.stride = stride_of(group);
    frame.part_stride = frame.padded_rows * frame.stride;
    const std::int64_t packed_blocks = kept ? frame.blocks : 1, block_size = frame.padded_rows * kXStride;
    for (std::int64_t block = 0; kept && block < frame.blocks; ++block)
      pack_block<Kind>(job, first_row, rows, frame.padded_rows, block * Kind::blocking.depth, job.scratch + block * block_size);
    frame.accumulators = (float*)(job.scratch + packed_blocks * block_size);
    for (std::int64_t unit = 0; unit < job.units; unit += group) {
      const std::int64_t units = smaller(group, job.units - unit), column = unit * kPanel;
      multiply_group<Kind>(job, frame, job.w + unit * job.parts * frame.panel_bytes, units * job.parts, first_row, rows, kept);
      const std::int64_t width = smaller(units * kPanel, job.columns - column);
      for (std::int64_t at = 0; at < width; at += kTile)
        finish(job, frame.accumulators + at, frame.part_stride, frame.stride, first_row, rows, column + at, smaller(kTile, width - at));
    }
  }
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
