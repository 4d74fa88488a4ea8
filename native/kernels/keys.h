// Every element as an unsigned key whose order is the wanted one: -0 equals 0, all NaN are equal and the greatest.
#pragma once

#include <cstdint>

#include "../src/dtype.h"

namespace ingot {

template <class Bits, Bits infinity>
struct FloatKey {
  using Stored = Bits;
  static Bits of(Bits bits) {
    constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
    const Bits magnitude = bits & static_cast<Bits>(~kSign);
    if (magnitude > infinity) return static_cast<Bits>(~Bits{0});
    if (magnitude == 0) return kSign;
    const Bits negative = static_cast<Bits>(Bits{0} - static_cast<Bits>(bits >> (8 * sizeof(Bits) - 1)));  // no branch: signs are random
    return static_cast<Bits>(bits ^ (negative | kSign));
  }
};

template <class Bits>
struct SignedKey {
  using Stored = Bits;
  static Bits of(Bits bits) { return static_cast<Bits>(bits ^ static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1))); }
};

template <class Bits>
struct UnsignedKey {
  using Stored = Bits;
  static Bits of(Bits bits) { return bits; }
};

/// Calls f with the kind of keys of that dtype.
template <class F>
void with_keys(DType dtype, const F& f) {
  switch (dtype) {
    case DType::float32: return f(FloatKey<std::uint32_t, 0x7f800000u>{});
    case DType::bfloat16: return f(FloatKey<std::uint16_t, 0x7f80>{});
    case DType::float16: return f(FloatKey<std::uint16_t, 0x7c00>{});
    case DType::float64: return f(FloatKey<std::uint64_t, 0x7ff0000000000000u>{});
    case DType::int8: return f(SignedKey<std::uint8_t>{});
    case DType::int16: return f(SignedKey<std::uint16_t>{});
    case DType::int32: return f(SignedKey<std::uint32_t>{});
    case DType::int64: return f(SignedKey<std::uint64_t>{});
    case DType::uint16: return f(UnsignedKey<std::uint16_t>{});
    case DType::uint32: return f(UnsignedKey<std::uint32_t>{});
    case DType::uint64: return f(UnsignedKey<std::uint64_t>{});
    default: return f(UnsignedKey<std::uint8_t>{});
  }
}

}  // namespace ingot
