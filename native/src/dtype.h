// The element types that the native core stores. The list and its order are part of the engine format only by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ingot {

enum class DType : std::uint8_t { float32, bfloat16, float16, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64, boolean, float8_e4m3fn };

constexpr int kDTypeCount = 14;

/// Bytes of an element.
constexpr int bytes_of(DType dtype) noexcept {
  constexpr int bytes[kDTypeCount] = {4, 2, 2, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1, 1};
  return bytes[static_cast<int>(dtype)];
}
constexpr std::size_t size_of(DType dtype) noexcept { return static_cast<std::size_t>(bytes_of(dtype)); }
std::string_view name_of(DType dtype) noexcept;                 // "float32", …, "bool"
bool dtype_from_name(std::string_view name, DType* out) noexcept;

constexpr bool is_float(DType d) noexcept { return d == DType::float32 || d == DType::bfloat16 || d == DType::float16 || d == DType::float64; }

}  // namespace ingot
