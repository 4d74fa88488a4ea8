// Steps of recurrent layers: what every level provides to the host half (kernels/recurrent.cpp).
//
// Units are computed sixteen at a time, one vector of each gate beside the other. Weights lie in panels of 32 units, every gate
// beginning a panel (level/matmul.h says how a panel lies). Those of int8 are widened in registers, or for more rows block by block.
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "dtype.h"

namespace ingot {

/// `reset` and `fresh` are a GRU that multiplies its weight by the state after the reset: first the gates, then the new state.
enum class Cell : std::uint8_t { lstm, gru, reset, fresh, tanh, relu, linear };

/// What a step's product takes a block of, in a worker's scratch: rows, and vectors of 16 units of every gate.
constexpr int kRecurrentRows = 24;
constexpr int kRecurrentVectors = 8;
constexpr std::int64_t kRecurrentBlock = 24 << 10;  // bytes of float32 weights that stay in L1 beside the state

struct RecurrentWeight {
  const void* panels;        // [panels of one gate for every gate, k, 32]
  DType dtype;
  int first_gate, gates;     // the gates that are computed, of all that lie there
  std::int64_t k;            // width of the state that it multiplies
  std::int64_t gate_panels;  // of one gate
  const float* bias;         // [32 * gate_panels] for every gate: what is added to the sums
  const float* scales;       // of int8, as many: what the sums are multiplied by before
};

/// A row's new state, of units [16 * first, 16 * (first + count)).
struct CellRow {
  const float* sums;   // [count, gates, 16]
  const void* x;       // the row's part of the sums that does not depend on the state: [gates, units]; none for `linear`
  void* y;             // the row of the result, or null
  DType dtype;         // of both
  std::int64_t units;  // of the layer
  std::int64_t first;
  int count;
  const float* state;  // before, from unit 0 on
  float* next;         // and after; of `reset` the state times the reset gate
  float* memory;       // an LSTM's cell state, changed in place; the update gate, which `reset` leaves for `fresh`
};

struct RecurrentTable {
  /// c[rows][count][gates][16] = bias + weight * a: one chain over k for each output. rows <= kRecurrentRows,
  /// count * gates <= kRecurrentVectors. wide: kRecurrentBlock bytes where the weight is int8.
  void (*product)(const RecurrentWeight& weight, std::int64_t first, int count, const float* a, std::int64_t a_stride, int rows,
                  float* wide, float* c);
  void (*cell)(Cell cell, const CellRow& row);
  void (*convert)(const void* x, DType x_dtype, void* y, DType y_dtype, std::int64_t count);
};

INGOT_FAMILY(recurrent, RecurrentTable)

}  // namespace ingot
