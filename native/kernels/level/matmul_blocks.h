// The frame that the matrix products of every level share. Rows of x, or patches of it, are packed by blocks of k.
// There is the loop over row blocks, groups of units and blocks of k, and the epilogue.
//
// Loop: for each block of rows (packed once, or a block of k at a time) { for each group of units { for each block of k and
// unit { the level's block product } epilogue } }. A unit's block of k (16 KiB) stays in L1 while all rows pass; x lies in L2.
// An epilogue that is a chain is run by the last block product, a few rows at a time, while their sums are in L1.
#pragma once

#include "chain.h"
#include "matmul.h"
#include "matmul_panels.h"
#include "matmul_patches.h"
#include "matmul_unpack.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// The epilogue of finished sums of a panel or two, a few rows at a time.
struct RowsEnd {
  const MatmulJob* job;
  Chain chain;
  std::int64_t first_row;      // of the pass
  std::int64_t column, width;  // of the panels
  // What most layers end with, for a register tile of a whole panel: all but `out` may be missing.
  bool direct;
  bool bytes;  // int8: the chain is what most such layers end with; then each panel says whether it is direct
  bool floats;  // the same of float32 or bfloat16, and every whole panel is
  bool normal;  // bfloat16: and no result of the panel is a denormal
  TileOperand bias, residual, out;
  const float* low;            // 16 times: values are at least this

  void run(const float* sums, std::int64_t stride, int first, int rows) const;
  void fetch(int first, int rows) const;
  const TileOperand* extra(int link) const { return link < 0 ? nullptr : &job->epilogue.extras[chain.links[link].operand - 1]; }
  /// Puts it at columns of the job's output.
  void place(std::int64_t from, std::int64_t columns) { column = from, width = smaller(columns, job->columns - from); }
  /// Of int8: whether tiles end the panel there in registers, and what they know of it.
  void look_at_panel();
};

struct PlacedRows;
struct PlacedTile;

/// A block of k of one panel, or of several beside each other, for all rows of the row block.
struct BlockProduct {
  const std::byte* x;       // packed: row r at r * kXStride
  const std::byte* w;       // the panel's block
  Packing packing;          // of w: `same` once it is unpacked
  const std::byte* scales;  // of the block's first group, or null: of sums of `group` values each
  int scales_step;          // bytes to the next group's
  std::int64_t scales_apart;  // to the next panel's
  int group;
  const std::byte* ahead;   // what will be read next: the weights after this block
  int panels;               // how many: at most what Kind::panels_at_once says of the rows
  std::int64_t w_apart;     // bytes from panel to panel
  std::int64_t apart;       // from the accumulators of the first panel to the second one's
  std::int64_t pairs_apart;  // and to the third one's
  int rows;
  int k;                    // depth of this block
  float* accumulators;      // row r at r * stride
  std::int64_t stride;
  bool first, last;         // block of k: the first starts from zero, the last makes floats of whole numbers
  const std::int32_t* starts;  // of int8: what is added to the sums of each output before, or null
  const RowsEnd* end;       // at the last block of k: takes the sums, which are not stored then; or null
  const PlacedRows* placed;  // of rows that are read from where they lie, and the tile of them (matmul_in_place.h)
  const PlacedTile* tile;
  bool unpacked;            // w lies in the job's scratch, not where `ahead` does
};

/// Where the block's sums lie: of a row and a vector of outputs, two to a panel.
INGOT_INLINE float* sum_at(const BlockProduct& p, int r, int c) {
  return p.accumulators + r * p.stride + c / 4 * p.pairs_apart + c / 2 % 2 * p.apart + c % 2 * kLanes;
}

/// Calls f for all panels of a block, Most at once as long as there are so many, then half of that; its template parameter is their vectors.
template <int Most, class F>
INGOT_INLINE void by_panels(BlockProduct p, const F& f) {
  int left = p.panels;
  for (p.panels = Most; left >= Most; left -= Most) {
    f.template operator()<2 * Most>(p);
    p.w += Most * p.w_apart;
    if constexpr (Most > 1) p.accumulators += Most / 2 * p.pairs_apart;
    if (p.scales != nullptr) p.scales += Most * p.scales_apart;
  }
  if constexpr (Most > 1) if (left > 0) {
    p.panels = left;
    by_panels<Most / 2>(p, f);
  }
}

/// A group's scales for C vectors of outputs, two to a panel. `scales`: those of the first vector, `step` bytes before the next group's.
template <int C>
INGOT_INLINE void load_scales(const std::byte* scales, int step, std::int64_t apart, Vec (&to)[C]) {
  const auto load_all = [&]<class T>(T) __attribute__((always_inline)) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) to[c] = load((const T*)(scales + c / 2 * apart) + c % 2 * kLanes);
  };
  if (step == kPanel * (int)sizeof(float16)) load_all(float16());
  else load_all(float());
}

/// The same of a block's panels; those of the next panels are fetched.
template <int C>
INGOT_INLINE void take_scales(const BlockProduct& p, const std::byte* scales, Vec (&to)[C]) {
  INGOT_UNROLL for (int panel = 0; panel < (C + 1) / 2; ++panel) {
    const std::byte* const ahead = scales + (panel + (C + 1) / 2) * p.scales_apart;
    __builtin_prefetch(ahead);
    __builtin_prefetch(ahead + p.scales_step / 2);  // of floats the other line
  }
  load_scales(scales, p.scales_step, p.scales_apart, to);
}

/// Values of k that a step takes at least: words of narrow weights are read whole, by one row as by many.
template <class Kind>
INGOT_INLINE std::int64_t step_of(const MatmulJob& job) {
  return job.packing == Packing::same ? Kind::k_step : larger(Kind::k_step, packed_depth(job.packing));
}

/// Packs values [begin, begin + depth) of rows of x as [row][kXStride bytes], converted to what the product reads and zero
/// padded to whole steps.
template <class Kind>
void pack_block(const MatmulJob& job, std::int64_t first_row, std::int64_t rows, std::int64_t padded_rows, std::int64_t begin,
                std::byte* packed) {
  typedef typename Kind::Source Source;
  typedef typename Kind::Packed Packed;
  const int depth = (int)smaller(job.k - begin, Kind::blocking.depth);
  const int over = ((int)round_up(depth, step_of<Kind>(job)) - depth) * (int)sizeof(Packed);
  if (job.patches != nullptr) {
    pack_patches<Source, Packed>(*job.patches, first_row, rows, begin, begin + depth, packed);
  } else if (job.runs.length != 0) {
    pack_strided<Source, Packed>(job, first_row, rows, begin, depth, packed);
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
  if constexpr (requires { &Kind::finish_row; })
    for (std::int64_t r = 0; r < rows; ++r) Kind::finish_row(job, packed + r * kXStride, depth);
  if constexpr (requires { &Kind::finish_rows; }) Kind::finish_rows(packed, rows, depth + over);
}

/// The rows of out and the extras that the job's rows from `row` on are: the first one, how far apart, how many like that.
struct Rows {
  std::int64_t first, apart, count;
};
INGOT_INLINE Rows rows_from(const MatmulJob& job, std::int64_t row) {
  if (job.places == nullptr) return {row, 1, job.rows - row};
  const RowPlaces& p = *job.places;
  const Pixel pixel = pixel_of(p.first + row, p.size);
  return {pixel.image * p.image_step + pixel.z * p.step[0] + pixel.y * p.step[1] + pixel.x * p.step[2], p.step[2], p.size[2] - pixel.x};
}

/// An operand from that row and column of the output on, for rows that lie `apart`.
INGOT_INLINE TileOperand operand_at(const TileOperand& o, const Rows& place, std::int64_t column) {
  return {o.data + (place.first * o.row_stride + column * o.column_stride) * bytes_of(o.dtype), o.dtype, o.row_stride * place.apart,
          o.column_stride};
}

inline void RowsEnd::run(const float* sums, std::int64_t stride, int first, int rows) const {
  TileOperand in[1 + kMaxExtras];
  for (std::int64_t r = 0, count; r < rows; r += count) {
    const Rows place = rows_from(*job, first_row + first + r);
    count = smaller(place.count, rows - r);
    in[0] = {(std::byte*)(sums + r * stride), DType::float32, stride, 1};
    for (int i = 0; i < job->epilogue.extra_count; ++i) in[1 + i] = operand_at(job->epilogue.extras[i], place, column);
    run_chain(chain, in, operand_at(job->epilogue.out, place, column), count, width);
  }
}

inline void RowsEnd::look_at_panel() {
  direct = normal = false;
  if (width != kPanel || !(bytes || floats)) return;  // tiles end one whole panel, and not two or four at once
  Vec scale[2], bias[2], shift[2];
  load_shared_rows(chain, column, [&](int link) { return extra(link); }, scale, bias, shift);
  direct = floats || is_bounded(chain, scale, bias, shift);
  const Link& last = chain.links[chain.count - 1];
  const Vec low = last.step == Step::max ? load(last.constant) : zero();
  normal = floats && chain.factor < 0 && chain.residual < 0 && is_normal(scale, bias, shift, low);
}

/// Fetches what the rows' epilogue reads, while their sums are made.
inline void RowsEnd::fetch(int first, int rows) const {
  if (job->places != nullptr) return;
  for (int i = 0; i < job->epilogue.extra_count; ++i) {
    const TileOperand& extra = job->epilogue.extras[i];
    if (extra.row_stride == 0 || extra.spacing() != Spacing::dense) continue;
    const int bytes = bytes_of(extra.dtype);
    const std::byte* from = extra.data + ((first_row + first) * extra.row_stride + column) * bytes;
    for (int r = 0; r < rows; ++r, from += extra.row_stride * bytes)
      for (std::int64_t at = 0; at < width * bytes; at += 64) __builtin_prefetch(from + at);
  }
}

/// Runs the expression over the finished accumulators [part][row][stride] of a group.
INGOT_INLINE void finish(const MatmulJob& job, float* accumulators, std::int64_t part_stride, std::int64_t stride,
                         std::int64_t first_row, std::int64_t rows, std::int64_t first_column, std::int64_t width) {
  TileOperand in[2 + kMaxExtras];
  for (int i = 0; i < job.epilogue.extra_count; ++i) in[job.parts + i] = job.epilogue.extras[i];
  Chain chain;
  const bool chained = job.parts == 1 && chain_of(job.epilogue.code, in, job.epilogue.out, chain);
  const std::int64_t most = chained ? rows : width <= kNarrow ? kTile / width : 1;  // a wide row is read in place
  for (std::int64_t r = 0, count; r < rows; r += count) {
    const Rows place = rows_from(job, first_row + r);
    count = smaller(most, smaller(place.count, rows - r));
    for (int part = 0; part < job.parts; ++part)
      in[part] = {(std::byte*)(accumulators + part * part_stride + r * stride), DType::float32, stride, 1};
    for (int i = 0; i < job.epilogue.extra_count; ++i) in[job.parts + i] = operand_at(job.epilogue.extras[i], place, first_column);
    const TileOperand out = operand_at(job.epilogue.out, place, first_column);
    if (chained) run_chain(chain, in, out, count, width);
    else job.epilogue.run_tile(job.epilogue.code, in, &out, (int)count, (int)width, job.epilogue.memory);
  }
}

/// The sizes of a job's passes and groups.
struct PassSizes {
  std::int64_t panel_bytes, block_bytes;  // of a panel of the weights, and of its blocks of k
  std::int64_t blocks;                    // of k
  std::int64_t padded_rows, part_stride, stride;
  float* accumulators;
};

/// Says where the scales of a block lie, and those of the panels beside it; `panel`: of the job.
INGOT_INLINE void place_scales(const MatmulJob& job, std::int64_t panel, std::int64_t begin, BlockProduct& product) {
  product.group = job.group;
  product.scales_step = kPanel * job.scale_bytes;
  product.scales_apart = ceil_div(job.k, job.group) * product.scales_step;
  product.scales = job.scales + panel * product.scales_apart + begin / job.group * product.scales_step;
}

/// Unpacks a product's block of the panels from that one of the job on, which begins at that k.
template <class Kind>
INGOT_INLINE void unpack_panels(const MatmulJob& job, std::int64_t panel, std::int64_t begin, BlockProduct& product) {
  for (int p = 0; p < product.panels; ++p)
    Kind::unpack(job, panel + p, product.w + p * product.w_apart, begin, product.k, job.unpacked + p * kUnpackedPanel);
  product.w = job.unpacked;
  product.w_apart = kUnpackedPanel;
  product.packing = Packing::same;
  product.unpacked = true;
}

/// All blocks of k of the panels from that number on, for rows that are packed (kept) or get packed here. `end`, or null, is the
/// epilogue that begins at the first panel's column.
template <class Kind>
INGOT_INLINE void multiply_group(const MatmulJob& job, const PassSizes& sizes, std::int64_t first_panel, std::int64_t panels,
                                 std::int64_t first_row, std::int64_t rows, bool kept, RowsEnd* end) {
  static_assert(Kind::blocking.depth * kPanel * sizeof(typename Kind::Source) <= kUnpackedPanel && Kind::blocking.depth % 8 == 0);
  const std::byte* w = job.w + first_panel * sizes.panel_bytes;
  const int taken = Kind::panels_at_once(job.packing, rows);
  const std::int64_t turns = ceil_div(panels, taken);
  const std::int64_t words = job.packing == Packing::same ? job.k : round_up(job.k, packed_depth(job.packing));
  const auto weights = [&](std::int64_t panel, std::int64_t block) { return w + panel * sizes.panel_bytes + block * sizes.block_bytes; };
  const std::int64_t column = end == nullptr ? 0 : end->column;
  std::int64_t panel = 0, block = 0;
  for (std::int64_t left = turns * sizes.blocks; left > 0; --left) {
    std::int64_t next_panel = panel, next_block = block + 1;
    if (kept ? next_block == sizes.blocks : panel + taken < panels) {
      next_panel += taken;
      next_block = kept ? 0 : block;
    } else if (!kept) {
      next_panel = 0;
    }
    const std::int64_t begin = block * Kind::blocking.depth;
    BlockProduct product;
    product.ahead = left > 1 ? weights(next_panel, next_block) : w + panels * sizes.panel_bytes;
    product.w = weights(panel, block);
    product.x = job.scratch + (kept ? packed_bytes(rows, block) : 0);
    if (!kept && panel == 0)
      pack_block<Kind>(job, first_row, rows, sizes.padded_rows, begin, job.scratch);
    product.panels = (int)smaller(taken, panels - panel);
    product.w_apart = sizes.panel_bytes;
    product.apart = job.parts == 2 ? sizes.part_stride : kPanel;
    product.pairs_apart = job.parts == 2 ? kPanel : 2 * kPanel;
    product.rows = (int)rows;
    product.k = (int)smaller(Kind::blocking.depth, words - begin);
    product.packing = job.packing;
    product.unpacked = false;
    product.scales = nullptr;
    if constexpr (Kind::scales_sums) if (job.packing == Packing::int4) place_scales(job, first_panel + panel, begin, product);
    if constexpr (!Kind::integers) if (job.packing != Packing::same && rows > Kind::unpacks_rows) unpack_panels<Kind>(job, first_panel + panel, begin, product);
    product.accumulators = sizes.accumulators + panel % job.parts * sizes.part_stride + panel / job.parts * kPanel;
    product.stride = sizes.stride;
    product.first = block == 0;
    product.last = block == sizes.blocks - 1;
    product.end = block == sizes.blocks - 1 ? end : nullptr;
    if (kept && end != nullptr) product.accumulators = sizes.accumulators;  // those before are finished
    if (product.end != nullptr) {
      end->place(column + panel * kPanel, product.panels * kPanel);
      if constexpr (Kind::integers) end->look_at_panel();
    }
    Kind::multiply(product);
    panel = next_panel, block = next_block;
  }
  if (sizes.blocks == 0) __builtin_memset(sizes.accumulators, 0, job.parts * sizes.part_stride * 4);  // k = 0
}

/// Whether a chain is ((sum + bias) + residual), at least `low`, and its operands are of type T (the bias maybe float32): finds them.
template <class T>
INGOT_INLINE bool is_direct(const MatmulJob& job, RowsEnd& end) {
  const Link *link = end.chain.links, *const last = link + end.chain.count;
  end.bias.data = end.residual.data = nullptr;
  end.low = nullptr;
  end.out = job.epilogue.out;
  const auto added = [&](bool rows) {
    return link < last && link->step == Step::add && link->operand > 0 && (job.epilogue.extras[link->operand - 1].row_stride != 0) == rows;
  };
  if (added(false)) end.bias = job.epilogue.extras[(link++)->operand - 1];
  if (added(true)) end.residual = job.epilogue.extras[(link++)->operand - 1];
  if (link < last && link->step == Step::max && link->constant != nullptr) end.low = (link++)->constant;
  constexpr DType dtype = __is_same(T, float) ? DType::float32 : __is_same(T, bfloat16) ? DType::bfloat16 : DType::float16;
  const auto suits = [](const TileOperand& o) { return o.data == nullptr || (o.dtype == dtype && o.spacing() == Spacing::dense); };
  const bool wide = end.bias.data != nullptr && end.bias.dtype == DType::float32 && end.bias.spacing() == Spacing::dense;
  return link == last && job.places == nullptr && (wide || suits(end.bias)) && suits(end.residual) && suits(end.out);
}

/// Whether a chain of sums of int8 is what scaled_rows has with a residual of int8, which nothing rounds, or without one, and gives int8.
INGOT_INLINE bool ends_bytes(const RowsEnd& end) {
  const Chain& chain = end.chain;
  return kEndsBounded && chain.rows != nullptr && chain.factor < 0 && !chain.gelu && end.job->epilogue.out.dtype == DType::int8 &&
         ends_in<std::int8_t>(chain.ending) && chain.ending.high + chain.ending.zero == most_of<std::int8_t> && end.job->places == nullptr &&
         (chain.residual < 0 || (end.extra(chain.residual)->dtype == DType::int8 && !chain.links[chain.residual].rounded));
}

/// The same with a number of each row and a residual of int8 or of the result's type, float32 or bfloat16.
INGOT_INLINE bool ends_floats(const RowsEnd& end) {
  const Chain& chain = end.chain;
  const DType out = end.job->epilogue.out.dtype;
  return kEndsBounded && chain.rows != nullptr && !chain.gelu && !chain.ending.present && (out == DType::float32 || out == DType::bfloat16) &&
         end.job->places == nullptr &&
         (chain.residual < 0 || end.extra(chain.residual)->dtype == out || end.extra(chain.residual)->dtype == DType::int8);
}

/// Whether the block products can end the job's rows: with a chain of the sums of one part.
template <class Kind>
INGOT_INLINE bool ends_rows(const MatmulJob& job, RowsEnd& end) {
  if (!Kind::ends_rows || job.parts != 1 || job.k == 0) return false;
  TileOperand in[1 + kMaxExtras];
  in[0] = {nullptr, DType::float32, 0, 1};
  for (int i = 0; i < job.epilogue.extra_count; ++i) in[1 + i] = job.epilogue.extras[i];
  end.job = &job;
  if (!chain_of(job.epilogue.code, in, job.epilogue.out, end.chain)) return false;
  if constexpr (Kind::integers) end.bytes = ends_bytes(end), end.floats = ends_floats(end), end.direct = false;
  else end.direct = sizeof(typename Kind::Source) > 1 && is_direct<typename Kind::Source>(job, end);
  return true;
}

/// Packs and multiplies rows [first, last) of a job. `ended`: whether `end` is what its block products end rows with.
template <class Kind>
INGOT_INLINE void run_rows(const MatmulJob& job, RowsEnd& end, bool ended, std::int64_t first, std::int64_t last) {
  PassSizes sizes;
  const Blocking blocking = blocking_of(Kind::blocking, job.order);
  const bool same = job.packing == Packing::same;
  const std::int64_t depth = same ? Kind::w_depth : packed_depth(job.packing), bytes = same ? Kind::w_bytes : kPackedBytes;
  sizes.panel_bytes = ceil_div(job.k, depth) * bytes;
  sizes.block_bytes = Kind::blocking.depth / depth * bytes;
  sizes.blocks = ceil_div(job.k, Kind::blocking.depth);
  const int most = pass_rows(blocking, job.k, job.units * job.parts * sizes.panel_bytes);
  const std::int64_t all_rows = last - first, passes = ceil_div(all_rows, most);
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    const std::int64_t first_row = first + all_rows * pass / passes;
    const std::int64_t rows = first + all_rows * (pass + 1) / passes - first_row;
    const bool kept = keeps_rows(blocking, rows, job.k);
    // Kept rows whose products end them need sums for the panels of one product only.
    const bool all = kept && ended;
    const std::int64_t group = all ? job.units : smaller(group_of(blocking, job.rows, rows, job.k), job.units);
    sizes.padded_rows = round_up(rows, 16);
    sizes.stride = all ? smaller(Kind::panels_at_once(job.packing, rows), job.units) * kPanel : stride_of(group);
    sizes.part_stride = part_bytes(rows, sizes.stride) / 4;
    for (std::int64_t block = 0; kept && !job.packed && block < sizes.blocks; ++block)
      pack_block<Kind>(job, first_row, rows, sizes.padded_rows, block * Kind::blocking.depth, job.scratch + packed_bytes(rows, block));
    sizes.accumulators = (float*)(job.scratch + packed_bytes(rows, kept ? sizes.blocks : 1));
    for (std::int64_t unit = 0; unit < job.units; unit += group) {
      const std::int64_t units = smaller(group, job.units - unit), column = unit * kPanel;
      end.first_row = first_row;
      end.column = column;
      multiply_group<Kind>(job, sizes, unit * job.parts, units * job.parts, first_row, rows, kept,
                           ended ? &end : nullptr);
      if (ended) continue;
      const std::int64_t width = smaller(units * kPanel, job.columns - column);
      for (std::int64_t at = 0; at < width; at += kTile)
        finish(job, sizes.accumulators + at, sizes.part_stride, sizes.stride, first_row, rows, column + at, smaller(kTile, width - at));
    }
  }
}

template <class Kind>
INGOT_INLINE void run_job(const MatmulJob& job) {
  RowsEnd end;
  const bool ended = ends_rows<Kind>(job, end);
  run_rows<Kind>(job, end, ended, 0, job.rows);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
