// Reading a kernel's parameters and checking its operands, with refusals that say what, which value and the rule.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../src/kernel.h"

namespace ingot {

[[noreturn]] void refuse(std::string_view kernel, const std::string& message);
inline void require(bool rule, std::string_view kernel, const char* message) {
  if (!rule) refuse(kernel, message);
}

/// The parameters of one call. Every accessor marks its name as known; done() refuses the others.
class Params {
 public:
  Params(std::string_view kernel, const nlohmann::json& params);
  double number(const char* name, double low = -std::numeric_limits<double>::max(),
                double high = std::numeric_limits<double>::max());
  std::optional<double> number_or_null(const char* name, double low, double high);
  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high);
  std::optional<std::int64_t> integer_or_null(const char* name, std::int64_t low, std::int64_t high);
  std::vector<std::int64_t> integers(const char* name, std::int64_t low, std::int64_t high);
  bool flag(const char* name, std::optional<bool> otherwise = std::nullopt);
  /// The index of the parameter's text among the choices.
  std::size_t choice(const char* name, std::initializer_list<std::string_view> choices);
  /// As it stands in the JSON, for those who check it themselves.
  const nlohmann::json& value(const char* name) { return *find(name, true); }
  bool has(const char* name) const;
  std::string_view kernel() const { return kernel_; }
  /// An axis of a tensor of that rank, counted from the end when negative.
  int axis(const char* name, int rank, std::optional<int> otherwise = std::nullopt);
  void done() const;

 private:
  const nlohmann::json* find(const char* name, bool required);
  std::string_view kernel_;
  const nlohmann::json& json_;
  std::set<std::string, std::less<>> known_;
};

/// Refuses a call with another number of operands.
void require_operands(std::string_view kernel, Types in, std::size_t in_low, std::size_t in_high, Types out, std::size_t out_count);
void require_dtype(std::string_view kernel, const char* operand, DType dtype, std::initializer_list<DType> allowed);
void require_rank(std::string_view kernel, const char* operand, int rank, int expected);
/// Refuses a view whose last dimension has gaps.
void require_dense_rows(std::string_view kernel, const char* operand, const TensorView& view);
void require_contiguous(std::string_view kernel, const char* operand, const TensorView& view);
void require_shape(std::string_view kernel, const char* operand, const TensorView& view, std::initializer_list<std::int64_t> shape);
void require_same_shape(std::string_view kernel, const char* operand, const TensorView& a, const TensorView& b);

/// The floats that kernels compute in float32.
constexpr std::initializer_list<DType> kComputeFloats = {DType::float32, DType::bfloat16, DType::float16};
/// Elements that have an order: numbers, and false before true.
constexpr std::initializer_list<DType> kOrderedTypes = {DType::float32, DType::bfloat16, DType::float16, DType::int8,   DType::int16,
                                                        DType::int32,   DType::int64,    DType::uint8,   DType::uint16, DType::uint32,
                                                        DType::uint64,  DType::boolean,  DType::float64};
/// Whole numbers that say places.
constexpr std::initializer_list<DType> kIndexTypes = {DType::int32, DType::int64};

/// The part of `count` equal things that worker `index` of `workers` takes: [first, last).
struct Share {
  std::int64_t first;
  std::int64_t last;
};
inline Share share_of(std::int64_t count, int index, int workers) {
  const std::int64_t each = count / workers, rest = count % workers;
  const std::int64_t first = index * each + (index < rest ? index : rest);
  return {first, first + each + (index < rest ? 1 : 0)};
}

}  // namespace ingot
