// The frame that the matrix products of every level share: rows of x packed by blocks of k, the loop over row blocks,
// groups of units and blocks of k, and the epilogue. Include after simd.h.
//
// Loop: for each block of rows (packed once) { for each group of units { for each block of k and unit { the level's block
// product } epilogue } }. A unit's block of k (16 KiB) stays in L1 while all rows pass; x lies in L2.
#pragma once

#include "matmul.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

INGOT_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

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

/// Copies rows of x into blocks of Kind::blocking.depth values, [block][row][kXStride bytes], converted to what the product reads
/// and zero padded to whole steps of Kind::k_step values.
template <class Kind>
void pack_rows(const MatmulJob& job, std::int64_t first_row, std::int64_t rows, std::int64_t padded_rows, std::byte* packed) {
  typedef typename Kind::Source Source;
  typedef typename Kind::Packed Packed;
  for (std::int64_t begin = 0; begin < job.k; begin += Kind::blocking.depth, packed += padded_rows * kXStride) {
    const int depth = (int)smaller(job.k - begin, Kind::blocking.depth);
    const int padded = (int)round_up(depth, Kind::k_step);
    for (std::int64_t r = 0; r < rows; ++r) {
      const Source* from = (const Source*)(job.x + (first_row + r) * job.x_stride) + begin;
      Packed* to = (Packed*)(packed + r * kXStride);
      if constexpr (sizeof(Source) == sizeof(Packed)) {
        __builtin_memcpy(to, from, depth * sizeof(Source));
      } else {
        int i = 0;
        for (; i + kLanes <= depth; i += kLanes) store(to + i, load(from + i));
        if (i < depth) store_partial(to + i, load_partial(from + i, depth - i), depth - i);
      }
      __builtin_memset((void*)(to + depth), 0, (padded - depth) * sizeof(Packed));
    }
    if (Kind::pads_rows)
      for (std::int64_t r = rows; r < padded_rows; ++r) __builtin_memset(packed + r * kXStride, 0, padded * sizeof(Packed));
  }
}

/// Runs the expression over the finished accumulators [part][row][stride] of a group.
INGOT_INLINE void finish(const MatmulJob& job, float* accumulators, std::int64_t part_stride, std::int64_t stride,
                         std::int64_t first_row, std::int64_t rows, std::int64_t first_column, std::int64_t width) {
  TileOperand in[2 + kMaxExtras];
  const std::int64_t step = width < 64 ? smaller(kTile / width, rows) : 1;  // a wide row is read in place
  for (std::int64_t r = 0; r < rows; r += step) {
    for (int part = 0; part < job.parts; ++part)
      in[part] = {(std::byte*)(accumulators + part * part_stride + r * stride), DType::float32, stride, 1};
    const auto moved = [&](const TileOperand& o, int bytes) {
      return TileOperand{o.data + ((first_row + r) * o.row_stride + first_column * o.column_stride) * bytes, o.dtype,
                         o.row_stride, o.column_stride};
    };
    for (int i = 0; i < job.extra_count; ++i) in[job.parts + i] = moved(job.extras[i], bytes_of(job.extras[i].dtype));
    const TileOperand out = moved(job.out, bytes_of(job.out.dtype));
    job.run_tile(*job.code, in, &out, (int)smaller(step, rows - r), (int)width, job.tile_scratch);
  }
}

template <class Kind>
INGOT_INLINE void run_job(const MatmulJob& job) {
  const std::int64_t passes = (job.rows + Kind::blocking.rows - 1) / Kind::blocking.rows;
  const std::int64_t panel_bytes = (job.k + Kind::w_depth - 1) / Kind::w_depth * Kind::w_bytes;
  const std::int64_t block_bytes = Kind::blocking.depth / Kind::w_depth * Kind::w_bytes;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    const std::int64_t first_row = job.rows * pass / passes;
    const std::int64_t rows = job.rows * (pass + 1) / passes - first_row;
    const std::int64_t padded_rows = round_up(rows, 16);
    pack_rows<Kind>(job, first_row, rows, padded_rows, job.scratch);
    float* accumulators =
        (float*)(job.scratch + (job.k + Kind::blocking.depth - 1) / Kind::blocking.depth * padded_rows * kXStride);
    const int group = group_of(Kind::blocking, job.rows);
    const std::int64_t stride = stride_of(Kind::blocking, job.rows), part_stride = padded_rows * stride;
    for (std::int64_t unit = 0; unit < job.units; unit += group) {
      const std::int64_t units = smaller(group, job.units - unit);
      const std::byte* w = job.w + unit * job.parts * panel_bytes;
      const std::int64_t panels = units * job.parts;
      const int taken = rows <= Kind::two_panels_rows ? 2 : 1;  // at a time
      const std::int64_t turns = (panels + taken - 1) / taken;
      const bool k_outside = rows * job.k > Kind::k_outside;  // x does not stay in L2: take a block of it for all panels
      const std::int64_t blocks = (job.k + Kind::blocking.depth - 1) / Kind::blocking.depth;
      const auto place = [&](std::int64_t i, std::int64_t* panel, std::int64_t* block) {
        *panel = (k_outside ? i % turns : i / blocks) * taken;
        *block = k_outside ? i / turns : i % blocks;
        return w + *panel * panel_bytes + *block * block_bytes;
      };
      for (std::int64_t i = 0; i < turns * blocks; ++i) {
        std::int64_t panel, block, unused;
        BlockProduct product;
        product.ahead = i + 1 < turns * blocks ? place(i + 1, &unused, &unused) : w + panels * panel_bytes;
        product.w = place(i, &panel, &block);
        product.x = job.scratch + block * padded_rows * kXStride;
        product.panels = (int)smaller(taken, panels - panel);
        product.w_apart = panel_bytes;
        product.apart = job.parts == 2 ? part_stride : kPanel;
        product.rows = (int)rows;
        product.k = (int)smaller(Kind::blocking.depth, job.k - block * Kind::blocking.depth);
        product.accumulators = accumulators + panel % job.parts * part_stride + panel / job.parts * kPanel;
        product.stride = stride;
        product.first = block == 0;
        Kind::multiply(product);
      }
      if (blocks == 0) __builtin_memset(accumulators, 0, job.parts * part_stride * 4);  // k = 0
      const std::int64_t column = unit * kPanel;
      finish(job, accumulators, part_stride, stride, first_row, rows, column, smaller(units * kPanel, job.columns - column));
    }
  }
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
