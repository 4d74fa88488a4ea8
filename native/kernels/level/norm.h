// Normalisation of one row: what every level provides to the host half (kernels/norm.cpp).
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "dtype.h"
#include "epilogue.h"

namespace ingot {

/// A row of elements that lie side by side.
struct Row {
  void* data;
  DType dtype;
};

/// Rows of channels, as many groups of equally many. Strides count elements.
struct GroupRows {
  const void* x;
  DType dtype;
  std::int64_t rows, stride, channels, groups;
};

struct NormTable {
  void (*rms_norm)(Row x, const float* weight, Row y, std::int64_t width, float eps);  // weight and bias: null where absent
  void (*layer_norm)(Row x, const float* weight, const float* bias, Row y, std::int64_t width, float eps);
  void (*softmax)(Row x, Row y, std::int64_t width, bool log, float* scratch);  // scratch: width floats

  /// Rounds a row to -127 to 127 of its largest magnitude / 127, which is what comes back.
  float (*quantize_row)(Row x, std::int8_t* y, std::int64_t width);

  void (*widen)(Row x, float* y, std::int64_t width);
  /// [3][groups]: each group's mean, what rounding took from it, and the sum of squared distances from the mean; scratch:
  /// 3 * channels floats.
  void (*group_statistics)(const GroupRows& rows, float* statistics, float* scratch);
  /// (x - center) * scale + shift, each of them one per channel, finished; scratch: kTile floats.
  void (*group_normalise)(const GroupRows& rows, const float* center, const float* scale, const float* shift,
                          const EpilogueJob& epilogue, float* scratch);
};

INGOT_FAMILY(norm, NormTable)

}  // namespace ingot
