// Arrays of the fuzzer, their random values, and the random numbers themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "json.h"
#include "kernel.h"

namespace ingot::fuzz {

/// A row-major array without gaps.
struct Array {
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  Array() = default;
  Array(DType type, std::vector<std::int64_t> sizes);
  std::int64_t elements() const;
  TensorView view();
  std::int64_t integer(std::int64_t at) const;  // of an int32 or int64 array
  void set_integer(std::int64_t at, std::int64_t value);
  double number(std::int64_t at) const;  // of an array of floats
};

using Arrays = std::map<std::string, Array>;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  /// Independent numbers for each part of a case, so that leaving out one part changes no other.
  Random(std::uint64_t seed, std::uint64_t part) : engine_(seed * 0x9e3779b97f4a7c15u + part * 0xbf58476d1ce4e5b9u) {}

  std::uint64_t below(std::uint64_t count) { return engine_() % count; }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low) + 1));
  }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }
  template <class List>
  const auto& pick(const List& list) {
    return *(std::begin(list) + static_cast<std::ptrdiff_t>(below(std::size(list))));
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

/// Elements as `spec` has them: {"kind": "index", "low", "high"} for integers between those (and now and then outside),
/// {} for anything that the dtype holds (floats: small numbers, with infinities, NaN, huge ones and denormals in some
/// arrays); {"kind": "moderate"} leaves huge finite ones out, whose sums overflow in one order and not in another;
/// {"kind": "near_one"} has NaN and numbers so near to 1 or -1 that 65536 of them, multiplied in any order, neither
/// overflow nor underflow.
void fill_elements(Array& array, const Json& spec, Random& random);

/// Arrays whose elements depend on each other, filled after the others: "starts" (where each request's rows begin),
/// "contexts" (at least as long as the request's rows), "slots" (distinct places of a cache, or -1). True when `spec`
/// is of such a kind.
bool is_structured(const Json& spec);
void fill_structured(Array& array, const Json& spec, const Arrays& others, Random& random);

}  // namespace ingot::fuzz
