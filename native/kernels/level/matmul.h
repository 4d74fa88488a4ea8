// Matrix products with packed weights: what the host half (kernels/matmul.cpp) hands to the level halves. Plain data only.
//
// Packed weights are panels of 32 outputs: float32 and float16 [panel][k][32], bfloat16 [panel][ceil(k / 2)][32][2], zero
// padded. With `parts` = 2 a *unit* is two panels, part 0 and part 1 of the same 32 output columns; otherwise one panel.
//
// The order of summation of an output is the same for every number of rows, block and thread: k runs upwards in one
// accumulator (float32, kept as it is between blocks of k), so a row's result does not depend on its company.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"
#include "tile.h"

namespace ingot {

constexpr int kPanel = 32;           // outputs of a panel
constexpr int kGroupOneRow = 16;     // units whose accumulators are finished by one epilogue; for more rows see Blocking
constexpr int kXStride = 512 + 64;   // bytes from row to row of a packed block of x: an odd number of cache lines
constexpr int kMaxExtras = kMaxInputs;

/// Most rows of one pass over the weights, how many k a block of packed x holds, and the units of a group, whose
/// accumulators are finished by one epilogue. A block of x and a group's accumulators share L2 (AMX: 2 MiB).
struct Blocking {
  int rows, depth, group;
};
constexpr Blocking kVectorBlocking = {128, 128, 8};  // x packed as float32
constexpr Blocking kPairBlocking = {512, 256, 4};    // bfloat16 dot products
constexpr Blocking kTileBlocking = {512, 256, 8};    // AMX

/// Rows of one worker times units of one worker.
struct MatmulJob {
  const std::byte* x;
  std::int64_t x_stride;       // bytes from row to row
  std::int64_t rows, k;
  const std::byte* w;          // the first unit
  std::int64_t units;
  int parts;
  std::int64_t columns;        // outputs from the first unit's first one on; the last unit may have fewer than 32
  const TileCode* code;        // operands: `parts` accumulators, then the extras
  RunTile run_tile;
  const TileOperand* extras;   // of row 0 and column 0
  int extra_count;
  TileOperand out;             // likewise
  std::byte* scratch;          // matmul_scratch() bytes, aligned to 64
  std::byte* tile_scratch;
};

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// Units of a group for that many rows.
constexpr int group_of(Blocking blocking, std::int64_t rows) { return rows == 1 ? kGroupOneRow : blocking.group; }

/// Sums from row to row of a group's accumulators: an odd number of cache lines.
constexpr int stride_of(Blocking blocking, std::int64_t rows) { return group_of(blocking, rows) * kPanel + 16; }

/// Bytes for the packed rows of x and the accumulators.
constexpr std::size_t matmul_scratch(Blocking blocking, std::int64_t rows, std::int64_t k, int parts) {
  const std::int64_t block = round_up(rows < blocking.rows ? rows : blocking.rows, 16);
  const std::int64_t accumulators = parts * block * stride_of(blocking, rows) * 4;
  return static_cast<std::size_t>((k + blocking.depth - 1) / blocking.depth * block * kXStride + accumulators);
}

using MatmulFunction = void (*)(const MatmulJob& job);

namespace portable {
void matmul_float32(const MatmulJob& job);
void matmul_float16(const MatmulJob& job);
void matmul_bfloat16(const MatmulJob& job);
}  // namespace portable
namespace avx2 {
void matmul_float32(const MatmulJob& job);
void matmul_float16(const MatmulJob& job);
void matmul_bfloat16(const MatmulJob& job);
}  // namespace avx2
namespace avx512 {
void matmul_float32(const MatmulJob& job);
void matmul_float16(const MatmulJob& job);
void matmul_bfloat16(const MatmulJob& job);
}  // namespace avx512
namespace avx512_bf16 {
void matmul_bfloat16(const MatmulJob& job);
}
namespace amx {
void matmul_bfloat16(const MatmulJob& job);
}

}  // namespace ingot
