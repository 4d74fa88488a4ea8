// Random values that reach the corners of each dtype.
#include "array.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace ingot::fuzz {
namespace {

constexpr float kSpecial[] = {INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f, 0.0f, -0.0f, 1e-7f, 3e38f, -3e38f, 6e4f};
constexpr std::uint64_t kModerate = 8;  // of those

float any_float(Random& random, int flavour, const std::string& kind) {
  if (kind == "near_one") {
    constexpr float kNear[] = {1.0f, -1.0f, 1.0625f, -1.0625f, 0.94140625f, -0.94140625f};
    return flavour == 2 && random.chance(64) ? NAN : random.pick(kNear);
  }
  const bool moderate = kind == "moderate";
  if (flavour == 2 && random.chance(16)) return kSpecial[random.below(moderate ? kModerate : std::size(kSpecial))];
  if (flavour == 3) return 1.0f;
  const float small = static_cast<float>(random.between(-32, 32)) / 16.0f;
  // Full mantissas in some arrays; in others sums of them are exact.
  return flavour == 1 ? small + static_cast<float>(random.between(-1000, 1000)) * 1.1e-3f : small;
}

void store_float(DType dtype, float value, std::byte* to) {
  if (dtype == DType::float64) {
    const double wide = value;
    std::memcpy(to, &wide, 8);
  } else if (dtype == DType::float32) {
    std::memcpy(to, &value, 4);
  } else if (dtype == DType::float16) {
    const auto half = static_cast<_Float16>(value);
    std::memcpy(to, &half, 2);
  } else {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    const auto high = static_cast<std::uint16_t>(bits >> 16);
    std::memcpy(to, &high, 2);
  }
}

}  // namespace

Array::Array(DType type, std::vector<std::int64_t> sizes) : dtype(type), shape(std::move(sizes)) {
  bytes.resize(static_cast<std::size_t>(elements()) * size_of(dtype));
}

std::int64_t Array::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

TensorView Array::view() {
  TensorView view;
  view.data = bytes.data();
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = shape[static_cast<std::size_t>(i)];
    view.stride[i] = stride;
    stride *= std::max<std::int64_t>(view.shape[i], 1);
  }
  return view;
}

std::int64_t Array::integer(std::int64_t at) const {
  std::int64_t value = 0;
  std::int32_t narrow = 0;
  if (dtype == DType::int64) {
    std::memcpy(&value, bytes.data() + at * 8, 8);
    return value;
  }
  std::memcpy(&narrow, bytes.data() + at * 4, 4);
  return narrow;
}

void Array::set_integer(std::int64_t at, std::int64_t value) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  std::memcpy(bytes.data() + at * size, &value, static_cast<std::size_t>(size));
}

double Array::number(std::int64_t at) const {
  const std::byte* from = bytes.data() + static_cast<std::size_t>(at) * size_of(dtype);
  if (dtype == DType::float64) {
    double value = 0;
    std::memcpy(&value, from, 8);
    return value;
  }
  if (dtype == DType::float16) {
    _Float16 value = 0;
    std::memcpy(&value, from, 2);
    return static_cast<double>(value);
  }
  float value = 0;  // of bfloat16 the upper half
  if (dtype == DType::float32) std::memcpy(&value, from, 4);
  else std::memcpy(reinterpret_cast<std::byte*>(&value) + 2, from, 2);
  return value;
}

void fill_elements(Array& array, const Json& spec, Random& random) {
  const std::size_t size = size_of(array.dtype);
  const std::int64_t count = array.elements();
  const auto at = [&](std::int64_t i) { return array.bytes.data() + static_cast<std::size_t>(i) * size; };
  if (is_float(array.dtype)) {
    const int flavour = random.chance(8) ? 2 : random.chance(16) ? 3 : static_cast<int>(random.below(2));
    const std::string kind = spec.value("kind", "");
    for (std::int64_t i = 0; i < count; ++i) store_float(array.dtype, any_float(random, flavour, kind), at(i));
  } else if (spec.value("kind", "") == "index") {
    const auto low = spec["low"].get<std::int64_t>(), high = spec["high"].get<std::int64_t>();
    const bool wild = random.chance(32);
    for (std::int64_t i = 0; i < count; ++i) {
      const bool outside = high < low || (wild && random.chance(8));
      array.set_integer(i, outside ? random.between(-3, high + 70000) : random.between(low, high));
    }
  } else {
    const bool wild = random.chance(4);
    const std::int64_t least = random.chance(2) ? 0 : -3;  // rows without a negative value are read in another way
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint64_t value = array.dtype == DType::boolean ? random.below(2)
                                  : wild                        ? random.engine()()
                                                                : static_cast<std::uint64_t>(random.between(least, 9));
      std::memcpy(at(i), &value, size);
    }
  }
}

bool is_structured(const Json& spec) {
  const std::string kind = spec.value("kind", "");
  return kind == "starts" || kind == "contexts" || kind == "slots";
}

void fill_structured(Array& array, const Json& spec, const Arrays& others, Random& random) {
  const std::string kind = spec["kind"];
  const std::int64_t count = array.elements();
  if (kind == "starts") {
    const auto rows = spec["rows"].get<std::int64_t>();
    std::vector<std::int64_t> starts(static_cast<std::size_t>(count));
    for (std::int64_t& start : starts) start = random.between(0, rows);
    std::sort(starts.begin(), starts.end());
    if (!starts.empty()) starts[0] = 0;
    for (std::int64_t i = 0; i < count; ++i) array.set_integer(i, starts[static_cast<std::size_t>(i)]);
  } else if (kind == "contexts") {
    const Array& starts = others.at(spec["starts"].get<std::string>());
    const auto most = spec["most"].get<std::int64_t>();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t rows = starts.integer(i + 1) - starts.integer(i);
      array.set_integer(i, rows == 0 ? 0 : random.between(std::min(rows, most), most));
    }
  } else {  // slots
    const auto limit = spec["limit"].get<std::int64_t>();
    std::vector<std::int64_t> slots(static_cast<std::size_t>(std::max(limit, count)));
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random.engine());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t slot = slots[static_cast<std::size_t>(i)];
      array.set_integer(i, slot >= limit || random.chance(10) ? -1 : slot);
    }
  }
  if (random.chance(40) && count > 0) array.set_integer(random.between(0, count - 1), random.between(-9, 90000));
}

}  // namespace ingot::fuzz
