// The vector primitives on the compiler's own 4-lane vectors: for x86-64 without AVX2 and for every other processor.
// Included by simd.h only, inside namespace ingot::INGOT_LEVEL.

typedef float Lanes4 __attribute__((vector_size(16)));
typedef std::int32_t Ints4 __attribute__((vector_size(16)));
typedef std::uint32_t Words4 __attribute__((vector_size(16)));

struct Vec {
  Lanes4 a, b, c, d;
};
struct Ints {
  Ints4 a, b, c, d;
};
struct Mask {
  Ints4 a, b, c, d;  // 0 or -1
};

#define INGOT_EACH1(T, expr)                 \
  {                                          \
    T r;                                     \
    { const auto& X = x.a; r.a = (expr); }   \
    { const auto& X = x.b; r.b = (expr); }   \
    { const auto& X = x.c; r.c = (expr); }   \
    { const auto& X = x.d; r.d = (expr); }   \
    return r;                                \
  }
#define INGOT_EACH2(T, expr)                                     \
  {                                                              \
    T r;                                                         \
    { const auto& X = x.a; const auto& Y = y.a; r.a = (expr); }  \
    { const auto& X = x.b; const auto& Y = y.b; r.b = (expr); }  \
    { const auto& X = x.c; const auto& Y = y.c; r.c = (expr); }  \
    { const auto& X = x.d; const auto& Y = y.d; r.d = (expr); }  \
    return r;                                                    \
  }

INGOT_INLINE Lanes4 splat4(float v) { return Lanes4{v, v, v, v}; }
INGOT_INLINE Ints4 splat4i(std::int32_t v) { return Ints4{v, v, v, v}; }

INGOT_INLINE Vec broadcast(float v) { return Vec{splat4(v), splat4(v), splat4(v), splat4(v)}; }
INGOT_INLINE Ints broadcast_int(std::int32_t v) { return Ints{splat4i(v), splat4i(v), splat4i(v), splat4i(v)}; }

INGOT_INLINE Vec load(const float* p) {
  Vec r;
  __builtin_memcpy(&r, p, 64);
  return r;
}
INGOT_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, 64); }
INGOT_INLINE Vec load_partial(const float* p, int n) {
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
INGOT_INLINE void store_partial(float* p, Vec v, int n) {
  float lanes[16];
  store(lanes, v);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

INGOT_INLINE Vec operator+(Vec x, Vec y) INGOT_EACH2(Vec, X + Y)
INGOT_INLINE Vec operator-(Vec x, Vec y) INGOT_EACH2(Vec, X - Y)
INGOT_INLINE Vec operator*(Vec x, Vec y) INGOT_EACH2(Vec, X* Y)
INGOT_INLINE Vec operator/(Vec x, Vec y) INGOT_EACH2(Vec, X / Y)
INGOT_INLINE Vec max(Vec x, Vec y) INGOT_EACH2(Vec, X > Y ? X : Y)
INGOT_INLINE Vec min(Vec x, Vec y) INGOT_EACH2(Vec, X < Y ? X : Y)
INGOT_INLINE Vec fma(Vec x, Vec y, Vec z) { return x * y + z; }   // two roundings: there is no such instruction here
INGOT_INLINE Vec fnma(Vec x, Vec y, Vec z) { return z - x * y; }

INGOT_INLINE Mask operator<(Vec x, Vec y) INGOT_EACH2(Mask, X < Y)
INGOT_INLINE Mask operator<=(Vec x, Vec y) INGOT_EACH2(Mask, X <= Y)
INGOT_INLINE Mask operator==(Vec x, Vec y) INGOT_EACH2(Mask, X == Y)
INGOT_INLINE Mask is_nan(Vec x) INGOT_EACH1(Mask, X != X)
INGOT_INLINE Mask operator|(Mask x, Mask y) INGOT_EACH2(Mask, X | Y)
INGOT_INLINE Mask operator&(Mask x, Mask y) INGOT_EACH2(Mask, X & Y)
INGOT_INLINE bool any(Mask m) {
  const Ints4 all = m.a | m.b | m.c | m.d;
  return (all[0] | all[1] | all[2] | all[3]) != 0;
}
INGOT_INLINE Vec select(Mask m, Vec x, Vec y) {
  return Vec{m.a ? x.a : y.a, m.b ? x.b : y.b, m.c ? x.c : y.c, m.d ? x.d : y.d};
}

INGOT_INLINE Ints bits(Vec x) INGOT_EACH1(Ints, (Ints4)X)
INGOT_INLINE Vec from_bits(Ints x) INGOT_EACH1(Vec, (Lanes4)X)
INGOT_INLINE Ints operator+(Ints x, Ints y) INGOT_EACH2(Ints, (Ints4)((Words4)X + (Words4)Y))  // wraps
INGOT_INLINE Ints operator-(Ints x, Ints y) INGOT_EACH2(Ints, (Ints4)((Words4)X - (Words4)Y))
INGOT_INLINE Ints operator&(Ints x, Ints y) INGOT_EACH2(Ints, X & Y)
INGOT_INLINE Ints operator|(Ints x, Ints y) INGOT_EACH2(Ints, X | Y)
INGOT_INLINE Ints operator^(Ints x, Ints y) INGOT_EACH2(Ints, X ^ Y)
template <int N>
INGOT_INLINE Ints shift_left(Ints x) INGOT_EACH1(Ints, X << N)
template <int N>
INGOT_INLINE Ints shift_right(Ints x) INGOT_EACH1(Ints, X >> N)
INGOT_INLINE Vec to_float(Ints x) INGOT_EACH1(Vec, __builtin_convertvector(X, Lanes4))
INGOT_INLINE Ints truncate_to_int(Vec x) INGOT_EACH1(Ints, __builtin_convertvector(X, Ints4))
INGOT_INLINE void store_bytes(std::int8_t* p, Ints x) {
  std::int32_t lanes[16];
  __builtin_memcpy(lanes, &x, 64);
  for (int i = 0; i < 16; ++i) p[i] = (std::int8_t)(lanes[i] > 127 ? 127 : lanes[i] < -128 ? -128 : lanes[i]);
}

template <class Byte>
INGOT_INLINE Vec load_numbers(const Byte* p) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = (float)p[i];
  return load(lanes);
}
template <class Byte>
INGOT_INLINE void store_numbers(Byte* p, Vec v) {
  float lanes[16];
  store(lanes, v);
  for (int i = 0; i < 16; ++i) p[i] = (Byte)(std::int32_t)lanes[i];
}
INGOT_INLINE Vec load(const std::int8_t* p) { return load_numbers(p); }
INGOT_INLINE Vec load(const std::uint8_t* p) { return load_numbers(p); }
INGOT_INLINE void store(std::int8_t* p, Vec v) { store_numbers(p, v); }
INGOT_INLINE void store(std::uint8_t* p, Vec v) { store_numbers(p, v); }

INGOT_INLINE Lanes4 sqrt4(Lanes4 v) {
  return Lanes4{__builtin_sqrtf(v[0]), __builtin_sqrtf(v[1]), __builtin_sqrtf(v[2]), __builtin_sqrtf(v[3])};
}
INGOT_INLINE Vec sqrt(Vec x) INGOT_EACH1(Vec, sqrt4(X))

// Half to even by pushing the fraction out of the mantissa; values from 2^23 on are whole already (NaN passes through).
INGOT_INLINE Lanes4 round4(Lanes4 v) {
  const Ints4 sign = (Ints4)v & splat4i(INT32_MIN);
  const Lanes4 magnitude = (Lanes4)((Ints4)v & splat4i(INT32_MAX));
  const Lanes4 whole = (magnitude + splat4(8388608.0f)) - splat4(8388608.0f);
  const Lanes4 rounded = (Lanes4)((Ints4)whole | sign);
  return magnitude < splat4(8388608.0f) ? rounded : v;
}
INGOT_INLINE Lanes4 floor4(Lanes4 v) {
  const Lanes4 r = round4(v);
  const Lanes4 down = r - splat4(1.0f);
  return r > v ? down : r;
}
INGOT_INLINE Vec quotient(Vec x, Vec y) { return x / y; }
INGOT_INLINE Vec near_quotient(Vec x, Vec y) { return x / y; }
INGOT_INLINE Vec round_even(Vec x) INGOT_EACH1(Vec, round4(X))
INGOT_INLINE Vec floor(Vec x) INGOT_EACH1(Vec, floor4(X))
INGOT_INLINE Vec ceil(Vec x) INGOT_EACH1(Vec, -floor4(-X))

INGOT_INLINE Vec ldexp_rounded(Vec y, Vec n) {
  const Ints whole = truncate_to_int(n);
  const Ints half = shift_right<1>(whole);
  const Vec first = from_bits(shift_left<23>(half + broadcast_int(127)));
  const Vec second = from_bits(shift_left<23>(whole - half + broadcast_int(127)));
  return y * first * second;
}

INGOT_INLINE Ints4 round_bfloat16_4(Ints4 v) {
  const Ints4 up = splat4i(0x7fff) + ((v >> 16) & splat4i(1));
  const Ints4 rounded = (Ints4)(((Words4)v + (Words4)up) >> 16);
  const Ints4 quiet = (v >> 16) | splat4i(0x40);
  return (v & splat4i(INT32_MAX)) > splat4i(0x7f800000) ? quiet : rounded;
}
INGOT_INLINE Vec load(const bfloat16* p) {
  std::int32_t lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = (std::int32_t)((std::uint32_t)p[i].bits << 16);
  Vec r;
  __builtin_memcpy(&r, lanes, 64);
  return r;
}
INGOT_INLINE void store(bfloat16* p, Vec x) {
  const Ints4 parts[4] = {round_bfloat16_4((Ints4)x.a), round_bfloat16_4((Ints4)x.b), round_bfloat16_4((Ints4)x.c),
                          round_bfloat16_4((Ints4)x.d)};
  std::int32_t lanes[16];
  __builtin_memcpy(lanes, parts, 64);
  for (int i = 0; i < 16; ++i) p[i].bits = (std::uint16_t)lanes[i];
}

INGOT_INLINE float widen_float16(std::uint16_t h) {
  const std::uint32_t sign = (std::uint32_t)(h & 0x8000) << 16;
  const std::uint32_t magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) {  // infinity and NaN (made quiet, as the instruction does)
    const std::uint32_t quiet = magnitude > 0x7c00 ? 0x400000u : 0u;
    return __builtin_bit_cast(float, sign | 0x7f800000u | ((magnitude & 0x3ff) << 13) | quiet);
  }
  if (magnitude < 0x400) {  // denormal: a whole number of 2^-24
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(std::uint32_t, (float)magnitude * 0x1p-24f));
  }
  return __builtin_bit_cast(float, sign | ((magnitude << 13) + (112u << 23)));
}
INGOT_INLINE std::uint16_t round_float16(float v) {
  const std::uint32_t word = __builtin_bit_cast(std::uint32_t, v);
  const std::uint32_t sign = (word >> 16) & 0x8000u;
  const std::uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (std::uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return (std::uint16_t)(sign | 0x7c00u);  // from 65520 on: infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves units of 2^-24 in the last bits, rounded to even
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    return (std::uint16_t)(sign | (__builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000u));
  }
  return (std::uint16_t)(sign | ((magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13));
}
INGOT_INLINE Lanes4 widen_float16_4(Ints4 h) {  // by the same cases
  const Ints4 magnitude = h & splat4i(0x7fff), sign = (h & splat4i(0x8000)) << 16, shifted = magnitude << 13;
  const Ints4 quiet = magnitude > splat4i(0x7c00) ? splat4i(0x400000) : splat4i(0);
  const Ints4 large = shifted | splat4i(0x7f800000) | quiet, normal = shifted + splat4i(112 << 23);
  const Ints4 denormal = (Ints4)(__builtin_convertvector(magnitude, Lanes4) * splat4(0x1p-24f));
  return (Lanes4)(sign | (magnitude < splat4i(0x400) ? denormal : magnitude < splat4i(0x7c00) ? normal : large));
}
INGOT_INLINE Vec load(const float16* p) {
  std::int32_t lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = p[i].bits;
  Ints x;
  __builtin_memcpy(&x, lanes, 64);
  return {widen_float16_4(x.a), widen_float16_4(x.b), widen_float16_4(x.c), widen_float16_4(x.d)};
}
INGOT_INLINE void store(float16* p, Vec x) {
  float lanes[16];
  store(lanes, x);
  for (int i = 0; i < 16; ++i) p[i].bits = round_float16(lanes[i]);
}

// Fixed order: lane i with i + 8, then + 4, + 2, + 1. The other levels do the same.
INGOT_INLINE float reduce_add(Vec x) {
  const Lanes4 s = (x.a + x.c) + (x.b + x.d);
  return (s[0] + s[2]) + (s[1] + s[3]);
}
INGOT_INLINE float reduce_max(Vec x) {
  float lanes[16];
  store(lanes, x);
  float best = lanes[0];
  for (int i = 1; i < 16; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

#undef INGOT_EACH1
#undef INGOT_EACH2
