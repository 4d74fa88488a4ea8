// Matrix products with packed weights: what the host half (kernels/matmul.cpp) hands to the level halves. Plain data only.
//
// Packed weights are panels of 32 outputs, zero padded (Packing). With `parts` = 2 a *unit* is two panels, part 0 and part 1 of
// the same 32 output columns; otherwise one panel.
//
// The order of summation of an output is the same for every number of rows, block and thread: k runs upwards in one
// float32 accumulator, which is kept as it is between blocks of k. So a row's result does not depend on its company. Rows of int8
// are summed as int32, exactly (k is at most kMostInt8), and become float32, rounded once, before the epilogue; with weights of 4 bits
// each group by itself, whose sum times its scale is added in float32. (Pairs of bfloat16 by weights of 4 bits
// are values k and k + 4 of each eight: pair_halves. AMX takes 32 values of k at a time: matmul_amx_rows.h. It rounds small
// values of bfloat16 beside weights of 4 bits: matmul_amx_digits.h.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch.h"
#include "dtype.h"
#include "epilogue.h"
#include "frame.h"
#include "window.h"

namespace ingot {

constexpr int kPanel = 32;           // outputs of a panel
constexpr std::int64_t kUnpackedPanel = 16 << 10;  // bytes of a block of k of one panel, once it is unpacked
constexpr int kGroupOneRow = 16;     // units whose accumulators are finished by one epilogue; for more rows see Blocking
constexpr int kXStride = 512 + 64;   // bytes from row to row of a packed block of x: an odd number of cache lines
constexpr int kNarrow = 128;         // an epilogue of at most so many outputs takes several rows at a time
constexpr int kMaxExtras = kMaxInputs;

/// How panels hold their values. What is not stored as x is gets unpacked block by block into the panels that x is multiplied
/// with.
enum class Packing : std::uint8_t {
  same,  // as x: float32 and float16 [panel][k][32], bfloat16 [panel][ceil(k / 2)][32][2], int8 as below
  int8,  // [panel][ceil(k / 4)][32][4]: whole numbers; the scale of an output belongs to the epilogue
  float8,  // as int8, of float8 e4m3 without NaN, which is taken for 480
  int4,  // [panel][ceil(k / 8)][32][4 bytes], 8 values from the lowest bits up; with scales [panel][ceil(k / group)][32], of float32 or
         // float16, which give the same bits where they are the same numbers
};

/// Values of int4 that may share a scale: groups lie in one block of k.
constexpr std::int64_t kGroups[] = {32, 64, 128};

/// Values of k that lie side by side in a panel that is not `same`; with 32 outputs they take 128 bytes.
constexpr std::int64_t packed_depth(Packing packing) { return packing == Packing::int4 ? 8 : 4; }
constexpr std::int64_t kPackedBytes = kPanel * 4;

/// Most rows of one pass over the weights, how many k a block of packed x holds, and the units of a group, whose
/// accumulators are finished by one epilogue. What is packed of x and a group's accumulators share L2 (AMX: 2 MiB). Rows of up
/// to `kept` values in all are packed once for all groups; of more, a block at a time for each group, then of `wide` units. With
/// at most two blocks of k the epilogue weighs more: `shallow` units, whose accumulators it finds in L1.
/// With k over kLong a pass has fewer rows, `long_rows`, and its groups as many more units. With less k, but more than a line of values, and
/// weights that stay in L2, it has at most `near_rows`, if that is not 0: what is packed of them then stays in L1. With k over kLong it has
/// `kept_rows`, if that is not 0 and so many are kept: weights that become wider first do so once for them.
struct Blocking {
  int rows, long_rows, depth, shallow, group, wide;
  std::int64_t kept;
  int near_rows = 0;
  int few_rows = 56;  // of a pass by Order::rows: whole register tiles
  int kept_rows = 0;
};
constexpr Blocking kVectorBlocking = {128, 128, 128, 2, 8, 24, 1 << 17};  // x packed as float32
constexpr Blocking kPairBlocking = {512, 128, 256, 4, 4, 6, 1 << 18};     // bfloat16 dot products, and int8 without VNNI
constexpr Blocking kTileBlocking = {512, 512, 256, 8, 8, 16, 1 << 19, 0, 64};    // AMX
constexpr Blocking kQuadBlocking = {512, 128, 512, 4, 4, 6, 1 << 19, 56};  // int8
constexpr Blocking kTileQuadBlocking = {512, 512, 512, 8, 8, 8, 1 << 20, 0, 64};  // int8 on AMX
constexpr Blocking kNibbleBlocking = {512, 128, 512, 4, 4, 8, 3 << 19, 0, 56, 256};  // int8 with weights of 4 bits: sums of groups make packing dear
constexpr std::int64_t kLong = 640, kLine = 64, kNearWeights = 256 << 10;

/// The order of a product's loops, where a build has measured it; sums are the same in each. Rows are dealt to workers before.
enum class Order : std::uint8_t {
  by_rules,  // by sizes: this file, matmul_in_place.h and matmul_amx_tiles.h have the rules
  rows,      // few rows meet all panels before the next rows do, and stay near: Blocking::few_rows, of tiles 128
  weights,   // kManyRows pass a panel, which stays near, before they meet the next one
  packed,    // rows that could be read from where they lie are packed by blocks of k
};
constexpr int kManyRows = 512;

/// A level's blocking for that order. (Always inline: levels must not share a function.)
[[gnu::always_inline]] constexpr Blocking blocking_of(Blocking blocking, Order order) {
  if (order != Order::rows && order != Order::weights) return blocking;
  const int rows = order == Order::weights ? kManyRows : blocking.few_rows;
  if (rows > blocking.rows) {  // sums of a group take as much memory as before
    blocking.group = blocking.group * blocking.rows / rows;
    blocking.wide = blocking.wide * blocking.rows / rows;
  }
  blocking.rows = blocking.long_rows = rows;
  blocking.near_rows = blocking.kept_rows = 0;
  return blocking;
}

/// Most k of a product of int8: sums of so many products of -128 and -128 fit into int32.
constexpr std::int64_t kMostInt8 = (std::int64_t{1} << 31) / (128 * 128) - 1;
/// Where a packed block of a row of int8 has what its sums begin with, as int32: of groups (nibbles.h), or of few rows on AMX (quads.h).
constexpr std::int64_t kRowSum = 512;
/// Where the first row of a packed block of int8 says whether a value of any row is negative (quads.h).
constexpr std::int64_t kSigned = kRowSum + 4;

/// x as patches: a row of the product is an output pixel, k = (positions of the window row-major, channel), `outside` outside x.
/// Always three dimensions; leading ones may have size 1.
struct Patches {
  const std::byte* x;
  std::int64_t first;                      // output pixel of row 0, counted over all images
  std::int64_t image_stride, x_stride[3];  // bytes
  WindowAxis axis[3];
  std::int64_t out[3];                     // output pixels
  std::int64_t channels;
  std::int64_t run;                        // taps along the last dimension that lie side by side in x: 1 or those of a line
  int outside;                             // a byte: of int8 any number, else 0
};

/// Where the results lie among the rows of `out` and the extras, when they do not follow each other: pixel (image, p) of
/// the job's output is row image * image_step + sum(p * step) of them.
struct RowPlaces {
  std::int64_t first;           // pixel of row 0
  std::int64_t size[3];         // of an image
  std::int64_t image_step, step[3];
};

/// How the values of k lie in a computed operand: runs of `length`, `apart` bytes from one to the next, `step` bytes within one.
struct KRuns {
  std::int64_t length, step, apart;
};

/// Up to 32 columns of a computed b, to be packed as the panel that the level's product reads.
struct PanelJob {
  const std::byte* b;
  KRuns runs;
  std::int64_t k, columns, column_step;  // column_step: bytes
  std::byte* panel;
};

struct ImagePlan;  // image.h

/// Rows of one worker times units of one worker.
struct MatmulJob {
  const std::byte* x;
  std::int64_t x_stride;       // bytes from row to row
  KRuns runs;                  // of x; length 0: its rows are dense
  bool packed;                 // the last job's rows, which were kept, were the same: they still are in `scratch`
  const Patches* patches;      // or null: instead of x and x_stride
  const ImagePlan* image;      // or null: the image that the patches are read from; `scratch` is ImageMemory then
  const RowPlaces* places;     // or null: row r is row r
  std::int64_t rows, k;
  Order order;
  const std::byte* w;          // the first unit
  Packing packing;
  const std::byte* scales;     // int4: of the first unit
  int scale_bytes;             // of each: 4, or 2 of float16
  int group;                   // int4: values of k that share a scale, one of kGroups
  std::byte* unpacked;         // unless `same`: 2 * kUnpackedPanel bytes, aligned to 64
  std::int64_t units;
  int parts;
  std::int64_t columns;        // outputs from the first unit's first one on; the last unit may have fewer than 32
  EpilogueJob epilogue;        // values: `parts` accumulators
  std::byte* scratch;          // matmul_scratch() bytes, and at least those of raised lines; aligned to 64
};

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }
constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) { return ceil_div(value, unit) * unit; }

/// Most rows of a pass.
constexpr int pass_rows(Blocking blocking, std::int64_t k) {
  if (k <= kLong) return blocking.rows;
  return blocking.kept_rows != 0 && blocking.kept_rows * k <= blocking.kept ? blocking.kept_rows : blocking.long_rows;
}
/// The same beside weights of so many bytes, which may be fewer.
constexpr int pass_rows(Blocking blocking, std::int64_t k, std::int64_t weights) {
  return blocking.near_rows != 0 && k > kLine && k <= kLong && weights <= kNearWeights ? blocking.near_rows : pass_rows(blocking, k);
}

/// Whether the packed rows of a pass are kept for all groups.
constexpr bool keeps_rows(Blocking blocking, std::int64_t rows, std::int64_t k) { return rows * k <= blocking.kept; }

/// Units of a group of a job of that many rows, in a pass of `of_pass` of them.
constexpr int group_of(Blocking blocking, std::int64_t rows, std::int64_t of_pass, std::int64_t k) {
  if (rows == 1) return kGroupOneRow;
  const int more = blocking.rows / pass_rows(blocking, k);
  if (!keeps_rows(blocking, of_pass, k)) return more * blocking.wide;
  return k <= 2 * blocking.depth ? blocking.shallow : more * blocking.group;
}

/// Sums from row to row of the accumulators of that many units: an odd number of cache lines, or no gap where the epilogue takes
/// several rows at a time.
constexpr std::int64_t stride_of(std::int64_t units) { return units * kPanel + (units * kPanel <= kNarrow ? 0 : 16); }

/// Bytes of the packed rows of that many blocks of k, and of a part's accumulators.
constexpr std::int64_t packed_bytes(std::int64_t rows, std::int64_t blocks) { return round_up(rows, 16) * blocks * kXStride; }
constexpr std::int64_t part_bytes(std::int64_t rows, std::int64_t stride) { return round_up(rows, 16) * stride * 4; }

/// Bytes for the packed rows of x and the accumulators; it never falls as rows grow to two and more.
constexpr std::size_t matmul_scratch(Blocking blocking, std::int64_t rows, std::int64_t units, std::int64_t k, int parts) {
  const std::int64_t most = rows < pass_rows(blocking, k) ? rows : pass_rows(blocking, k);
  const std::int64_t blocks = ceil_div(k, blocking.depth);
  std::int64_t packed = packed_bytes(most, blocks < 1 ? blocks : 1);
  if (k > 0) {
    const std::int64_t kept = packed_bytes(blocking.kept / k < most ? blocking.kept / k : most, blocks);
    if (kept > packed) packed = kept;
  }
  const std::int64_t group = group_of(blocking, rows, most, k);
  return static_cast<std::size_t>(packed + parts * part_bytes(most, stride_of(group < units ? group : units)));
}

constexpr std::int64_t kSmallRows = 32, kSmallDepth = 256;

/// Working memory of small products: packed rows of a, a panel of b, and the accumulators.
struct SmallMemory {
  std::byte *rows, *panel;
  float* sums;

  SmallMemory() = default;
  explicit SmallMemory(Frame& frame)
      : rows(frame.take<std::byte>(kSmallRows * kXStride)), panel(frame.take<std::byte>(kSmallDepth * kPanel * 2)),
        sums(frame.take<float>(kSmallRows * kPanel)) {}
};

/// Matrices y = a b one after the other that are too small for the frame: m at most kSmallRows, k at most kSmallDepth, n a multiple
/// of 32, bfloat16 with dense rows. The same bits as by the frame.
struct SmallProducts {
  const std::byte *a, *b;
  std::byte* y;
  std::int64_t a_row, b_row, y_row;     // bytes from row to row
  std::int64_t a_step, b_step, y_step;  // bytes from matrix to matrix; 0: the same one
  std::int64_t count, m, n, k;
  DType out;                            // bfloat16 or float32
  SmallMemory memory;
};

/// How a level multiplies operands of one type.
struct PackedProduct {
  void (*run)(const MatmulJob& job) = nullptr;
  Blocking blocking = {};
  int speed = 1;  // products of a vector's instruction, or a tile's, beside those of float32
  void (*pack)(const PanelJob& job) = nullptr;
  void (*small)(const SmallProducts& job) = nullptr;  // null: small matrices go by run too
  bool tiles = false;  // whether run multiplies by tiles, and takes jobs with an image
  bool raises = false;  // whether run copies lines of x where values have signs (raised_lines.h)
  bool (*in_place)(const MatmulJob& job) = nullptr;  // whether run reads rows from where they lie, by a job's sizes; null: it packs all
  explicit operator bool() const { return run != nullptr; }
};

constexpr std::int64_t kGroupedValues = 12 * kTile;

/// A run of outputs of one line of a convolution in groups, for vectors of 16 outputs. Its weight: [vector][position][word][16 words],
/// a lane's words being those of its output's group: a float, two bfloat16 or four int8 each.
struct GroupedJob {
  const std::byte* x;            // of the image and the first group
  std::int64_t x_step[3];        // bytes along the axes
  WindowAxis axis[3];
  std::int64_t plane, line;      // where the windows begin
  const std::byte* w;
  std::int64_t w_unit;           // bytes from vector to vector
  const float* start;            // what sums begin with, 16 for each vector (of int8: int32)
  std::int64_t units, groups, outputs;
  int words, log_outputs;        // of a group
  int outside;                   // a byte: of int8 any number, else 0
  std::int64_t first, last;      // columns
  float* values;                 // kGroupedValues, aligned to 64
  EpilogueJob epilogue;          // row 0 is column `first`
};
typedef void (*GroupedProduct)(const GroupedJob& job);

/// A level leaves out what it does as the level that it extends; products in groups may be missing at all.
struct MatmulTable {
  PackedProduct float32 = {}, float16 = {}, bfloat16 = {}, int8 = {};
  PackedProduct int8_int4 = {};  // rows of int8 with weights of 4 bits; the others take all packings, int8 but `same` only
  GroupedProduct grouped_float32 = nullptr, grouped_bfloat16 = nullptr, grouped_int8 = nullptr;
};

INGOT_FAMILY(matmul, MatmulTable)

}  // namespace ingot
