// Passes over a row of logits: what every level provides to kernels/sample.cpp.
#pragma once

#include <cstdint>

#include "dispatch.h"

namespace ingot {

constexpr int kWeightBlock = 256;  // elements whose weights are added up in float32

struct SampleTable {
  /// The greatest element; NaN if there is a NaN.
  float (*maximum)(const float* x, std::int64_t count);
  /// weights[i] = exp((x[i] - maximum) / temperature) unless weights is null; sums[b] = their sum over block b.
  void (*weigh)(const float* x, std::int64_t count, float maximum, float temperature, float* weights, float* sums);
};

INGOT_FAMILY(sample, SampleTable)

}  // namespace ingot
