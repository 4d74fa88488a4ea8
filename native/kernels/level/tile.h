// A compiled scalar expression and the tile it runs on: what the host half (kernels/expression.cpp) hands to the level
// halves of elementwise and matmul. Plain data only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch.h"
#include "dtype.h"

namespace ingot {

constexpr int kTile = 512;  // most elements of a tile: a float32 register of 2 KiB, so that a handful stays in L1

/// The class a step computes in.
enum class Class : std::uint8_t { float32, int64, boolean, float64, uint64 };
constexpr int kClasses = 5;

enum class Step : std::uint8_t {
  load,
  // float32
  add, sub, mul, div, pow, max, min, neg, abs, exp, log, sqrt, rsqrt, sin, cos, tanh, sigmoid, erf, floor, ceil, round, recip,
  silu, silu_mul, mish, gelu, floordiv, mod, fmod, round_bfloat16, round_float16, replace_nan, to_float, select_float,
  // float64
  double_add, double_sub, double_mul, double_div, double_pow, double_max, double_min, double_neg, double_abs, double_exp,
  double_log, double_sqrt, double_rsqrt, double_sin, double_cos, double_tanh, double_sigmoid, double_erf, double_floor,
  double_ceil, double_round, double_recip, double_silu, double_floordiv, double_mod, double_fmod, to_double, select_double,
  // int64 and uint64
  int_add, int_sub, int_mul, int_floordiv, int_mod, int_fmod, int_max, int_min, int_neg, int_abs, int_and, int_or, int_xor, int_wrap,
  int_from_float, int_from_bool, int_from_int, select_int,
  // comparisons of two values of Instruction::cls, giving booleans
  equal, not_equal, less, less_equal,
  // booleans
  bool_and, bool_or, bool_xor, bool_not, bool_from_float, bool_from_int, select_bool,
};

/// One step; a, b and c are registers (load: a is the operand; int_wrap: b is the dtype; int_from_float: b is the register).
/// replace_nan is b where a is a NaN. A float32 step may load 8-bit integers, and be stored as such when it is in their range.
struct Instruction {
  Step step;
  Class cls;  // of the result; of the arguments for comparisons and conversions
  std::uint16_t to, a, b, c;
};

/// Where a register's values lie: a slot of the scratch memory, or the pool of constants (one value, 16 times).
struct Place {
  std::uint32_t offset;
  bool constant;
};

struct TileCode {
  const Instruction* steps;
  int step_count;
  const Place* places;         // one per register
  int register_count;
  const std::uint16_t* outputs;  // the register of each output; its slot is shared with no other register
  const Class* output_classes;
  int output_count;
  const std::byte* constants;  // aligned to 64
};

/// How the elements of a row follow one another. Fast paths choose by this and never compare a stride themselves.
/// Whatever is neither one value repeated nor side by side, a negative stride included, is `strided` and goes the
/// general way.
enum class Spacing : std::uint8_t { repeated, dense, strided };
constexpr Spacing spacing_of(std::int64_t stride) {
  return stride == 0 ? Spacing::repeated : stride == 1 ? Spacing::dense : Spacing::strided;
}

/// An operand's part of a tile: `rows` segments of `width` elements. Strides count elements and may be negative.
struct TileOperand {
  std::byte* data;
  DType dtype;
  std::int64_t row_stride, column_stride;
  constexpr Spacing spacing() const { return spacing_of(column_stride); }
};

/// Computes a tile of rows * width <= kTile elements. scratch: Expression::scratch() bytes, aligned to 64.
using RunTile = void (*)(const TileCode& code, const TileOperand* in, const TileOperand* out, int rows, int width,
                         std::byte* scratch);

constexpr int kMaxSteps = 256;
constexpr int kMaxInputs = 64;
constexpr int kMaxOutputs = 16;

/// Computes any number of rows of any width in registers, if the expression is a chain (chain.h) from operand 0, whose values are dense: the
/// same bits. False, with nothing computed, if it is none; which says the same for every part of the operands.
using RunChain = bool (*)(const TileCode& code, const TileOperand* in, const TileOperand& out, std::int64_t rows, std::int64_t width);

struct ElementwiseTable {
  RunTile run_tile;
  RunChain run_chain;
};

INGOT_FAMILY(elementwise, ElementwiseTable)

}  // namespace ingot
