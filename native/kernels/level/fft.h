// Discrete Fourier transforms of 16 rows side by side: what every level provides to the host half (kernels/fft.cpp).
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "dtype.h"

namespace ingot {

constexpr int kFftRows = 16;
constexpr int kMostStages = 32;
constexpr int kMostRadix = 31;

/// One stage of a transform by mixed radices: sums of `radix` points each.
struct FftStage {
  int radix;
  const float* roots;     // [radix, 2], exp(-2 pi i k / radix): of a radix above 5
  const float* twiddles;  // [points of the stage / radix, radix - 1, 2]
};

/// A complex transform of one length, with its tables; complex numbers are pairs.
struct FftPlan {
  std::int64_t points;
  std::int64_t padded;  // the points that stages transform: more than `points` where the transform is a convolution (Bluestein)
  int stage_count;
  FftStage stages[kMostStages];
  const float* chirp;     // [points, 2], exp(-pi i k^2 / points): of a convolution; else null
  const float* spectrum;  // [padded, 2]: what the chirp's conjugate transforms into, divided by `padded`
  const float* halves;    // [points + 1, 2], exp(-pi i k / points): of real transforms of 2 * points; else null
};

enum class FftKind : std::uint8_t {
  complex,        // [n, 2] -> [n, 2]
  to_spectrum,    // [n] -> [n, 2], or the first n / 2 + 1 of them
  from_spectrum,  // the first n / 2 + 1 of [n, 2] -> [n]
};

/// Up to 16 rows. Steps count elements.
struct FftJob {
  const FftPlan* plan;
  DType dtype;
  FftKind kind;
  bool inverse;  // of a complex transform
  std::int64_t n;
  std::int64_t given, wanted;  // points of x and of y; what x lacks is zero
  float scale;
  int rows;
  const void* x[kFftRows];
  void* y[kFftRows];
  std::int64_t x_step, x_pair, y_step, y_pair;
  float *a, *b;  // [padded + 1, 2, 16] each
};

struct FftTable {
  void (*run)(const FftJob& job);
};

INGOT_FAMILY(fft, FftTable)

}  // namespace ingot
