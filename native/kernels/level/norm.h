// Normalisation of one row: what every level provides to the host half (kernels/norm.cpp).
#pragma once

#include <cstdint>

#include "dtype.h"

namespace ingot {

/// A row of elements that lie side by side; data is null where an optional operand is absent.
struct Row {
  void* data;
  DType dtype;
};

struct NormTable {
  void (*rms_norm)(Row x, Row weight, Row y, std::int64_t width, float eps);
  void (*layer_norm)(Row x, Row weight, Row bias, Row y, std::int64_t width, float eps);
  void (*softmax)(Row x, Row y, std::int64_t width, bool log, float* scratch);  // scratch: width floats
};

namespace portable {
extern const NormTable norm_table;
}
#if INGOT_X86
namespace avx2 {
extern const NormTable norm_table;
}
namespace avx512 {
extern const NormTable norm_table;
}
#endif

}  // namespace ingot
