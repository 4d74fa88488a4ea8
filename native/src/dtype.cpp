// Names of the element types.
#include "dtype.h"

namespace ingot {
namespace {

// In the order of the enumeration.
constexpr std::string_view kNames[kDTypeCount] = {"float32", "bfloat16", "float16", "float64", "int8",   "int16", "int32",
                                                  "int64",   "uint8",    "uint16",  "uint32",  "uint64", "bool",  "float8_e4m3fn"};

}  // namespace

std::string_view name_of(DType dtype) noexcept { return kNames[static_cast<int>(dtype)]; }

bool dtype_from_name(std::string_view name, DType* out) noexcept {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kNames[i] == name) {
      *out = static_cast<DType>(i);
      return true;
    }
  }
  return false;
}

}  // namespace ingot
