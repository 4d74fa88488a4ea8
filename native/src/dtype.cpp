// Names and sizes of the element types.
#include "dtype.h"

namespace ingot {
namespace {

struct DTypeRow {
  std::string_view name;
  std::size_t size;
};

// In the order of the enumeration.
constexpr DTypeRow kRows[kDTypeCount] = {
    {"float32", 4}, {"bfloat16", 2}, {"float16", 2}, {"float64", 8}, {"int8", 1},   {"int16", 2}, {"int32", 4},
    {"int64", 8},   {"uint8", 1},    {"uint16", 2},  {"uint32", 4},  {"uint64", 8}, {"bool", 1},
};

}  // namespace

std::size_t size_of(DType dtype) noexcept { return kRows[static_cast<int>(dtype)].size; }

std::string_view name_of(DType dtype) noexcept { return kRows[static_cast<int>(dtype)].name; }

bool dtype_from_name(std::string_view name, DType* out) noexcept {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kRows[i].name == name) {
      *out = static_cast<DType>(i);
      return true;
    }
  }
  return false;
}

}  // namespace ingot
