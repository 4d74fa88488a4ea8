// The selective scan of state spaces: what every level provides to the host half (kernels/selective_scan.cpp).
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "dtype.h"

namespace ingot {

constexpr int kScanChannels = 16;  // channels that run side by side

/// Elements [step][channel] or [step][state]: where the first one lies, and how far apart they are.
struct ScanPlane {
  const void* data;
  std::int64_t step, across;
};

/// Up to 16 channels of one row, over all steps.
struct ScanJob {
  DType dtype;  // of all planes
  int channels;
  std::int64_t steps, states;
  ScanPlane x, delta, b, c, y;
  const float* a;     // [states, 16]
  const float* skip;  // [16]
  float* h;           // [states, 16], changed in place
};

struct SelectiveScanTable {
  void (*run)(const ScanJob& job);
  void (*convert)(const void* x, DType x_dtype, void* y, DType y_dtype, std::int64_t count);
};

INGOT_FAMILY(selective_scan, SelectiveScanTable)

}  // namespace ingot
