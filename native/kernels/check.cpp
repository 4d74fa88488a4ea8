#include "check.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace ingot {

void refuse(std::string_view kernel, const std::string& message) { throw Refused(std::string(kernel) + ": " + message); }

Params::Params(std::string_view kernel, const nlohmann::json& params) : kernel_(kernel), json_(params) {
  if (!params.is_object()) refuse(kernel, "params must be an object");
}

const nlohmann::json* Params::find(const char* name, bool required) {
  known_.insert(name);
  const auto at = json_.find(name);
  if (at != json_.end()) return &*at;
  if (required) refuse(kernel_, std::string("parameter ") + name + " is missing");
  return nullptr;
}

bool Params::has(const char* name) const { return json_.contains(name); }

namespace {

std::string shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

double as_number(std::string_view kernel, const char* name, const nlohmann::json& value, double low, double high) {
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(number >= low && number <= high))
    refuse(kernel, std::string("parameter ") + name + " is " + shown(value) + ", must be a number in [" +
                       nlohmann::json(low).dump() + ", " + nlohmann::json(high).dump() + "]");
  return number;
}

std::int64_t as_integer(std::string_view kernel, const char* name, const nlohmann::json& value, std::int64_t low,
                        std::int64_t high) {
  const bool representable =
      value.is_number_integer() && !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
  if (!representable || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high)
    refuse(kernel, std::string("parameter ") + name + " is " + shown(value) + ", must be an integer in [" +
                       std::to_string(low) + ", " + std::to_string(high) + "]");
  return value.get<std::int64_t>();
}

}  // namespace

double Params::number(const char* name, double low, double high) {
  return as_number(kernel_, name, *find(name, true), low, high);
}

std::optional<double> Params::number_or_null(const char* name, double low, double high) {
  const nlohmann::json* value = find(name, false);
  if (value == nullptr || value->is_null()) return std::nullopt;
  return as_number(kernel_, name, *value, low, high);
}

std::int64_t Params::integer(const char* name, std::int64_t low, std::int64_t high) {
  return as_integer(kernel_, name, *find(name, true), low, high);
}

std::optional<std::int64_t> Params::integer_or_null(const char* name, std::int64_t low, std::int64_t high) {
  const nlohmann::json* value = find(name, false);
  if (value == nullptr || value->is_null()) return std::nullopt;
  return as_integer(kernel_, name, *value, low, high);
}

std::vector<std::int64_t> Params::integers(const char* name, std::int64_t low, std::int64_t high) {
  const nlohmann::json* value = find(name, true);
  if (!value->is_array() || value->size() > kMaxRank)
    refuse(kernel_, std::string("parameter ") + name + " is " + shown(*value) + ", must be a list of at most " +
                        std::to_string(kMaxRank) + " integers");
  std::vector<std::int64_t> numbers;
  for (const auto& item : *value) numbers.push_back(as_integer(kernel_, name, item, low, high));
  return numbers;
}

bool Params::flag(const char* name, std::optional<bool> otherwise) {
  const nlohmann::json* value = find(name, !otherwise.has_value());
  if (value == nullptr) return *otherwise;
  if (!value->is_boolean()) refuse(kernel_, std::string("parameter ") + name + " is " + shown(*value) + ", must be true or false");
  return value->get<bool>();
}

std::size_t Params::choice(const char* name, std::initializer_list<std::string_view> choices) {
  const nlohmann::json* value = find(name, true);
  std::string rule;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const std::string_view choice = choices.begin()[i];
    if (value->is_string() && value->get_ref<const std::string&>() == choice) return i;
    rule += (i == 0 ? "" : ", ") + std::string(choice);
  }
  refuse(kernel_, std::string("parameter ") + name + " is " + shown(*value) + ", must be one of " + rule);
}

int Params::axis(const char* name, int rank, std::optional<int> otherwise) {
  const nlohmann::json* value = find(name, !otherwise.has_value());
  const std::int64_t axis = value == nullptr ? *otherwise : as_integer(kernel_, name, *value, -rank, rank - 1);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

void Params::done() const {
  for (const auto& item : json_.items())
    if (!known_.contains(item.key())) {
      std::string names;
      for (const auto& name : known_) names += (names.empty() ? "" : ", ") + name;
      refuse(kernel_, "unknown parameter " + shown(item.key()) + (names.empty() ? "; it has none" : "; it has " + names));
    }
}

void require_operands(std::string_view kernel, Types in, std::size_t in_low, std::size_t in_high, Types out, std::size_t out_count) {
  if (in.size() < in_low || in.size() > in_high)
    refuse(kernel, std::to_string(in.size()) + " operands, must be " + std::to_string(in_low) +
                       (in_low == in_high ? std::string() : " to " + std::to_string(in_high)));
  if (out.size() != out_count)
    refuse(kernel, std::to_string(out.size()) + " outputs, must be " + std::to_string(out_count));
}

void require_dtype(std::string_view kernel, const char* operand, DType dtype, std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), dtype) != allowed.end()) return;
  std::string names;
  for (const DType one : allowed) names += (names.empty() ? "" : ", ") + std::string(name_of(one));
  refuse(kernel, std::string(operand) + " is " + std::string(name_of(dtype)) + ", must be " +
                     (allowed.size() > 1 ? "one of " : "") + names);
}

void require_rank(std::string_view kernel, const char* operand, int rank, int expected) {
  if (rank != expected)
    refuse(kernel, std::string(operand) + " has rank " + std::to_string(rank) + ", must be " + std::to_string(expected));
}

void require_dense_rows(std::string_view kernel, const char* operand, const TensorView& view) {
  if (view.rank > 0 && view.shape[view.rank - 1] > 1 && view.stride[view.rank - 1] != 1)
    refuse(kernel, std::string("the last dimension of ") + operand + " has stride " +
                       std::to_string(view.stride[view.rank - 1]) + ", must be 1");
}

void require_contiguous(std::string_view kernel, const char* operand, const TensorView& view) {
  if (!view.contiguous()) refuse(kernel, std::string(operand) + " has gaps or permuted dimensions, must be contiguous");
}

namespace {

std::string shown(const std::int64_t* shape, int rank) {
  std::string text = "(";
  for (int i = 0; i < rank; ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

}  // namespace

void require_shape(std::string_view kernel, const char* operand, const TensorView& view,
                   std::initializer_list<std::int64_t> shape) {
  if (view.rank != static_cast<int>(shape.size()) || !std::equal(shape.begin(), shape.end(), view.shape))
    refuse(kernel, std::string(operand) + " has shape " + shown(view.shape, view.rank) + ", must be " +
                       shown(shape.begin(), static_cast<int>(shape.size())));
}

void require_same_shape(std::string_view kernel, const char* operand, const TensorView& a, const TensorView& b) {
  if (a.rank != b.rank || !std::equal(a.shape, a.shape + a.rank, b.shape))
    refuse(kernel, std::string(operand) + " has shape " + shown(a.shape, a.rank) + ", must be " + shown(b.shape, b.rank));
}

}  // namespace ingot
