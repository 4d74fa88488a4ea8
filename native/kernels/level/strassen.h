// Products of floats, in float32, by one step of Strassen's algorithm, in Winograd's form: what the host half
// (kernels/strassen.cpp) hands to the level halves. Plain data only.
//
// Two rows of x, two blocks of k beside each other and two panels of outputs are the halves of 2x2 matrices A B = C. Seven products of half
// the size make C, with sums T of B that are made once, and sums S of A that are packed:
//   S1 = A21 + A22, S2 = S1 - A11, S3 = A11 - A21, S4 = A12 - S2;  T1 = B12 - B11, T2 = B22 - T1, T3 = B22 - B12, T4 = T2 - B21
//   P = A11 B11                     C11 += P + A12 B21
//   U = P + S2 T2, V = U + S1 T1    C12 += V + S4 B22
//   Q = S3 T3                       C22 += V + Q
//                                   C21 += U + Q - A22 T4
// Only Q is added to two sums; the other products go on where sums of registers before them ended. The order of summation of an output
// depends on k alone: blocks of k come one after the other.
#pragma once

#include "matmul.h"

namespace ingot {

constexpr int kStrassenProducts = 7, kStrassenSums = 4;
constexpr std::int64_t kPairDepth = 128;    // most values of k of a half
constexpr std::int64_t kPairRows = 64;      // most pairs of rows of a pass
constexpr std::int64_t kKeptDepth = 384;    // of a half: rows of so many are packed once for all outputs
constexpr std::int64_t kPairUnits = 12;     // pairs of panels of a group, of longer rows

/// What is greater in x or the weight is left to the direct product: sums of smaller numbers are finite. Rows: by sums of weighed squares. Where
/// those are less than kLeastSquares squares of values may have underflowed, so such a row is left to it too, unless it and its partner are zero.
constexpr float kMostSquares = 0x1p120f, kLeastSquares = 0x1p-100f, kMostOfWeights = 0x1p40f;

/// How great the values of a row or of its partner may be, as their root mean square, each weighed by the height of its input (StrassenWeight): so
/// many times what a quarter of the row's values that are not zero reach. What meets in a sum shares its rounding errors.
constexpr float kMostApart = 128;
/// The least height, whatever the weights are, so that a partner is at most kMostApart / kLeastHeight = 10.7 times as large: where all values have one
/// sign errors add up as k does, and weights that are all alike have heights of 1. Normal weights have heights of 4 to 8.
constexpr float kLeastHeight = 12;
/// A weight with greater heights, as their root mean square, is left to the direct product: rows of equal values stay four times below their limit.
constexpr float kMostHeights = 32;
/// Bounds a loop: what a quarter of an output's weights reach is looked for in so many halvings of its greatest one. One further from it
/// is a height of 4096, which kMostHeights allows to no weight of less than 32768 inputs.
constexpr int kHalvings = 12;

/// Pairs of blocks of k, and the depth of the halves of one.
constexpr std::int64_t pairs_of_blocks(std::int64_t k) { return (k + 2 * kPairDepth - 1) / (2 * kPairDepth); }
constexpr std::int64_t half_depth(std::int64_t k, std::int64_t block) {
  const std::int64_t left = k / 2 - block * kPairDepth;
  return left < kPairDepth ? left : kPairDepth;
}
constexpr bool keeps_pairs(std::int64_t k) { return k / 2 <= kKeptDepth; }
/// Pairs of panels that a block of k meets before the next one does.
constexpr std::int64_t units_at_once(std::int64_t k, std::int64_t units) {
  const std::int64_t most = keeps_pairs(k) ? 1 : kPairUnits;
  return units < most ? units : most;
}

/// A worker's memory of a pass: packed rows, sums of the outputs, two that are used between products, and a block of weights that become floats.
struct StrassenMemory {
  std::byte* packed;
  float *sums, *u, *v, *panel;

  StrassenMemory() = default;
  StrassenMemory(Frame& frame, std::int64_t k, std::int64_t units) {
    packed = frame.take<std::byte>((keeps_pairs(k) ? pairs_of_blocks(k) : 1) * kStrassenProducts * kPairRows * kXStride);
    sums = frame.take<float>(units_at_once(k, units) * 4 * kPairRows * kPanel);
    u = frame.take<float>(kPairRows * kPanel);
    v = frame.take<float>(kPairRows * kPanel);
    panel = frame.take<float>(kPairDepth * kPanel);
  }
};

struct StrassenJob {
  MatmulJob product;             // rows: up to the last one's partner; w: the panels; units: pairs of panels; scratch is `memory`
  std::int64_t pairs;            // of rows that follow one another, at most kPairRows
  std::int64_t partner_row;      // rows from one of a pair to the other
  std::int64_t partner_column;   // outputs from one panel of a pair to the other
  const float* sums;             // of the first unit: for each block of k kStrassenSums panels of `half_depth`, in the order of the products
  const float* squared_heights;  // (StrassenWeight), with kPanel zeros behind them
  StrassenMemory memory;
  bool (*taken)[2];              // the pass sets it: whether the sums of a pair's rows are as exact as they may be beside their partners
};

/// A pair of panels, and what is made of it once.
struct StrassenWeight {
  const std::byte *left, *right;  // panels
  std::int64_t k;
  int columns;                    // outputs of the right one
  float* sums;
  float* heights;  // of each two values of k that are added, k / 2: raised to the greatest weight there, in quartiles of its output or its partner
};

/// What a level does with operands of one type, or nothing where its direct product is faster.
struct StrassenProduct {
  void (*run)(const StrassenJob& job) = nullptr;
  /// Returns whether no weight is too great, or not a number, and a quarter of an output is near its greatest value.
  bool (*prepare)(const StrassenWeight& weight) = nullptr;
};

struct StrassenTable {
  StrassenProduct float32, float16, bfloat16 = {};
};

INGOT_FAMILY(strassen, StrassenTable)

}  // namespace ingot
