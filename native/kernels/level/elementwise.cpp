// The interpreter of compiled scalar expressions: one pass over a tile per step, everything in L1; what is a chain, in registers.
#include "chain.h"
#include "simd.h"
#include "tile.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// A register's values in this tile: step 1, one per element; step 0, one value (float32: 16 times) for all elements.
struct Register {
  std::byte* data;
  int step;
};

struct Tile {
  const TileOperand* in;
  Register* registers;
  int rows, width, count;
  int padded;  // count rounded up to whole vectors: float32 slots have room for it, and its last lanes hold anything

  template <class T>
  T* at(int index) const {
    return (T*)registers[index].data;
  }
};

// ---- float32

template <class F>
INGOT_INLINE void map1(const Tile& tile, const Instruction& s, const F& f) {
  const float* a = tile.at<float>(s.a);
  float* to = tile.at<float>(s.to);
  const int step = tile.registers[s.a].step * kLanes;
  for (int i = 0; i < tile.padded; i += kLanes, a += step) store(to + i, f(load(a)));
}

template <class F>
INGOT_INLINE void map2(const Tile& tile, const Instruction& s, const F& f) {
  const float* a = tile.at<float>(s.a);
  const float* b = tile.at<float>(s.b);
  float* to = tile.at<float>(s.to);
  const int step_a = tile.registers[s.a].step * kLanes, step_b = tile.registers[s.b].step * kLanes;
  for (int i = 0; i < tile.padded; i += kLanes, a += step_a, b += step_b) store(to + i, f(load(a), load(b)));
}

void power(const Tile& tile, const Instruction& s) {
  const float* a = tile.at<float>(s.a);
  const float* b = tile.at<float>(s.b);
  float* to = tile.at<float>(s.to);
  const int step_a = tile.registers[s.a].step, step_b = tile.registers[s.b].step;
  for (int i = 0; i < tile.count; ++i) to[i] = __builtin_powf(a[i * step_a], b[i * step_b]);
}

// ---- any class, element by element; a repeated value keeps its step of 0

template <class To, class From, class F>
INGOT_INLINE void each1(const Tile& tile, const Instruction& s, const F& f) {
  const From* a = tile.at<From>(s.a);
  To* to = tile.at<To>(s.to);
  if (tile.registers[s.a].step != 0) {
    for (int i = 0; i < tile.count; ++i) to[i] = f(a[i]);
  } else {
    const To value = f(a[0]);
    for (int i = 0; i < tile.count; ++i) to[i] = value;
  }
}

template <class To, class From, class F>
INGOT_INLINE void each2(const Tile& tile, const Instruction& s, const F& f) {
  const From* a = tile.at<From>(s.a);
  const From* b = tile.at<From>(s.b);
  To* to = tile.at<To>(s.to);
  const int step_a = tile.registers[s.a].step, step_b = tile.registers[s.b].step;
  if (step_a & step_b) {
    for (int i = 0; i < tile.count; ++i) to[i] = f(a[i], b[i]);
  } else if (step_a) {
    const From right = b[0];
    for (int i = 0; i < tile.count; ++i) to[i] = f(a[i], right);
  } else {
    for (int i = 0; i < tile.count; ++i) to[i] = f(a[0], b[i * step_b]);
  }
}

template <class T>
INGOT_INLINE void select(const Tile& tile, const Instruction& s) {
  const std::uint8_t* c = tile.at<std::uint8_t>(s.a);
  const T* a = tile.at<T>(s.b);
  const T* b = tile.at<T>(s.c);
  T* to = tile.at<T>(s.to);
  const int step_c = tile.registers[s.a].step, step_a = tile.registers[s.b].step, step_b = tile.registers[s.c].step;
  if (step_c & step_a & step_b) {
    for (int i = 0; i < tile.count; ++i) to[i] = c[i] ? a[i] : b[i];
  } else {
    for (int i = 0; i < tile.count; ++i) to[i] = c[i * step_c] ? a[i * step_a] : b[i * step_b];
  }
}

template <class T>
void compare(const Tile& tile, const Instruction& s) {
  if (s.step == Step::equal)
    each2<std::uint8_t, T>(tile, s, [](T a, T b) { return (std::uint8_t)(a == b); });
  else if (s.step == Step::not_equal)
    each2<std::uint8_t, T>(tile, s, [](T a, T b) { return (std::uint8_t)(a != b); });
  else if (s.step == Step::less)
    each2<std::uint8_t, T>(tile, s, [](T a, T b) { return (std::uint8_t)(a < b); });
  else
    each2<std::uint8_t, T>(tile, s, [](T a, T b) { return (std::uint8_t)(a <= b); });
}

// ---- int64 and uint64: arithmetic wraps; division rounds down, and by zero gives zero

typedef std::int64_t Int;
INGOT_INLINE Int wrapped(std::uint64_t v) { return (Int)v; }
INGOT_INLINE Int floordiv(Int a, Int b) {
  if (b == 0) return 0;
  if (b == -1) return wrapped(0 - (std::uint64_t)a);
  const Int q = a / b;
  return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}
INGOT_INLINE std::uint64_t floordiv(std::uint64_t a, std::uint64_t b) { return b == 0 ? 0 : a / b; }
INGOT_INLINE std::uint64_t modulo(std::uint64_t a, std::uint64_t b) { return b == 0 ? 0 : a % b; }
INGOT_INLINE Int modulo(Int a, Int b) {
  if (b == 0 || b == -1) return 0;
  const Int r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/// Towards zero into a register of 32 or 64 bits; what it does not hold, NaN too, becomes its smallest number.
template <class Register, class Float>
INGOT_INLINE Int truncated(Float v) {
  constexpr Float limit = sizeof(Register) == 4 ? (Float)2147483648.0 : (Float)9223372036854775808.0;
  constexpr Int least = sizeof(Register) == 4 ? (Int)INT32_MIN : INT64_MIN;
  // Between -limit - 1 and -limit a number still truncates to -limit, which is also what it becomes outside.
  return v >= -limit && v < limit ? (Int)(Register)v : least;
}

/// To uint64, a register of 64 bits likewise: 2^63 is taken off from 2^63 on and put back.
template <class Float>
INGOT_INLINE std::uint64_t truncated_unsigned(Float v) {
  constexpr Float half = (Float)9223372036854775808.0;
  const bool upper = v >= half;
  return (std::uint64_t)truncated<Int>(upper ? v - half : v) ^ ((std::uint64_t)upper << 63);
}

template <class Float>
void truncate(const Tile& tile, const Instruction& s) {
  if ((DType)s.b == DType::uint64)
    each1<std::uint64_t, Float>(tile, s, [](Float a) { return truncated_unsigned(a); });
  else if ((DType)s.b == DType::int32)
    each1<Int, Float>(tile, s, [](Float a) { return truncated<std::int32_t>(a); });
  else
    each1<Int, Float>(tile, s, [](Float a) { return truncated<Int>(a); });
}

template <class T>
INGOT_INLINE void wrap_to(const Tile& tile, const Instruction& s) {
  each1<Int, Int>(tile, s, [](Int a) { return (Int)(T)a; });
}

void wrap(const Tile& tile, const Instruction& s) {
  switch ((DType)s.b) {
    case DType::int8: return wrap_to<std::int8_t>(tile, s);
    case DType::int16: return wrap_to<std::int16_t>(tile, s);
    case DType::int32: return wrap_to<std::int32_t>(tile, s);
    case DType::uint8: return wrap_to<std::uint8_t>(tile, s);
    case DType::uint16: return wrap_to<std::uint16_t>(tile, s);
    case DType::uint32: return wrap_to<std::uint32_t>(tile, s);
    default: return wrap_to<Int>(tile, s);
  }
}

// ---- memory

template <class To, class From>
void load_each(const Tile& tile, To* to, const TileOperand& from) {
  const From* row = (const From*)from.data;
  for (int r = 0; r < tile.rows; ++r, row += from.row_stride, to += tile.width) {
    if (from.spacing() == Spacing::dense) {
      for (int i = 0; i < tile.width; ++i) to[i] = (To)row[i];
    } else {
      for (int i = 0; i < tile.width; ++i) to[i] = (To)row[i * from.column_stride];
    }
  }
}

/// Three planes as the inner dimension of so many rows, a multiple of 16.
INGOT_INLINE void load_colours([[maybe_unused]] float* to, [[maybe_unused]] const float* from, [[maybe_unused]] std::int64_t plane,
                               [[maybe_unused]] int rows) {
#if defined(__AVX512F__)
  // Value g of 48 is number g / 3 of plane g % 3: those of the first two by one permutation, of the third by another.
  alignas(64) static constexpr int kFirst[48] = {0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5, 21, 0, 6, 22, 0, 7, 23, 0,
                                                 8, 24, 0, 9, 25, 0, 10, 26, 0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0};
  alignas(64) static constexpr int kThird[48] = {0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15, 0, 21, 2, 3, 22, 5, 6, 23,
                                                 8, 9, 24, 11, 12, 25, 14, 15, 26, 1, 2, 27, 4, 5, 28, 7, 8, 29, 10, 11, 30, 13, 14, 31};
  for (int r = 0; r < rows; r += kLanes, from += kLanes)
    _Pragma("GCC unroll 3") for (int i = 0; i < 3; ++i, to += kLanes) {
      const __m512 both = _mm512_permutex2var_ps(load(from).v, _mm512_load_si512(kFirst + 16 * i), load(from + plane).v);
      _mm512_storeu_ps(to, _mm512_permutex2var_ps(both, _mm512_load_si512(kThird + 16 * i), load(from + 2 * plane).v));
    }
#endif
}
#if defined(__AVX512F__)
constexpr bool kColours = true;
#else
constexpr bool kColours = false;
#endif

/// The float types that have vector loads.
template <class From>
void load_floats(const Tile& tile, float* to, const TileOperand& from) {
  const From* row = (const From*)from.data;
  if (from.row_stride == 1 && from.spacing() == Spacing::strided && tile.width < kLanes) {  // colours that become the inner dimension
    int first = 0;
    if constexpr (kColours && __is_same(From, float)) {
      if (tile.width == 3) load_colours(to, row, from.column_stride, first = tile.rows / kLanes * kLanes);
    }
    for (int i = 0; i < tile.width; ++i, row += from.column_stride)
      for (int r = first; r < tile.rows; ++r) to[r * tile.width + i] = load_one(row + r);
    return;
  }
  const bool dense = from.spacing() == Spacing::dense && (tile.rows == 1 || from.row_stride == tile.width);
  const int rows = dense ? 1 : tile.rows, width = dense ? tile.count : tile.width;
  for (int r = 0; r < rows; ++r, row += from.row_stride, to += width) {
    if (from.spacing() == Spacing::dense) {
      int i = 0;
      for (; i + kLanes <= width; i += kLanes) store(to + i, load(row + i));
      if (i < width) store_partial(to + i, load_partial(row + i, width - i), width - i);
    } else {
      for (int i = 0; i < width; ++i) to[i] = load_one(row + i * from.column_stride);
    }
  }
}

void load_any_float(const Tile& tile, float* to, const TileOperand& from) {
  if (from.dtype == DType::bfloat16) return load_floats<bfloat16>(tile, to, from);
  if (from.dtype == DType::float16) return load_floats<float16>(tile, to, from);
  if (from.dtype == DType::int8) return load_floats<std::int8_t>(tile, to, from);
  if (from.dtype == DType::uint8) return load_floats<std::uint8_t>(tile, to, from);
  load_floats<float>(tile, to, from);
}

void load_any_int(const Tile& tile, Int* to, const TileOperand& from) {
  switch (from.dtype) {
    case DType::int8: return load_each<Int, std::int8_t>(tile, to, from);
    case DType::int16: return load_each<Int, std::int16_t>(tile, to, from);
    case DType::int32: return load_each<Int, std::int32_t>(tile, to, from);
    case DType::uint8: return load_each<Int, std::uint8_t>(tile, to, from);
    case DType::uint16: return load_each<Int, std::uint16_t>(tile, to, from);
    case DType::uint32: return load_each<Int, std::uint32_t>(tile, to, from);
    default: return load_each<Int, Int>(tile, to, from);
  }
}

void load_operand(const Tile& tile, const Instruction& s) {
  const TileOperand& from = tile.in[s.a];
  Register& to = tile.registers[s.to];
  const bool same = from.spacing() == Spacing::repeated && (tile.rows == 1 || from.row_stride == 0);
  const bool dense = from.spacing() == Spacing::dense && (tile.rows == 1 || from.row_stride == tile.width);
  const bool floats = s.cls == Class::float32 && from.dtype == DType::float32 && tile.count == tile.padded;
  if (dense && (floats || from.dtype == DType::int64 || from.dtype == DType::uint64 || from.dtype == DType::float64)) {
    to = {from.data, 1};  // read in place
    return;
  }
  Tile part = tile;
  TileOperand operand = from;
  if (same) {  // one value: 16 copies of it
    part.rows = 1;
    part.width = part.count = kLanes;
    to.step = 0;
    operand.row_stride = 0;
  }
  switch (s.cls) {
    case Class::float32: return load_any_float(part, (float*)to.data, operand);
    case Class::int64: return load_any_int(part, (Int*)to.data, operand);
    case Class::boolean: return load_each<std::uint8_t, std::uint8_t>(part, (std::uint8_t*)to.data, operand);
    case Class::float64: return load_each<double, double>(part, (double*)to.data, operand);
    case Class::uint64: return load_each<Int, Int>(part, (Int*)to.data, operand);
  }
}

template <class To>
void store_floats(const Tile& tile, const Register& from, const TileOperand& out) {
  To* row = (To*)out.data;
  const bool dense = tile.rows == 1 || out.row_stride == tile.width;
  const int rows = dense ? 1 : tile.rows, width = dense ? tile.count : tile.width;
  const float* values = (const float*)from.data;
  for (int r = 0; r < rows; ++r, row += out.row_stride, values += width * from.step) {
    int i = 0;
    for (; i + kLanes <= width; i += kLanes) store(row + i, load(values + i * from.step));
    if (i < width) store_partial(row + i, load_partial(values + i * from.step, width - i), width - i);
  }
}

template <class To, class From>
void store_each(const Tile& tile, const Register& from, const TileOperand& out) {
  To* row = (To*)out.data;
  const From* values = (const From*)from.data;
  for (int r = 0; r < tile.rows; ++r, row += out.row_stride, values += tile.width * from.step)
    for (int i = 0; i < tile.width; ++i) row[i] = (To)values[i * from.step];
}

void store_output(const Tile& tile, const Register& from, Class cls, const TileOperand& out) {
  if (cls == Class::float32 && out.dtype == DType::int8) return store_floats<std::int8_t>(tile, from, out);
  if (cls == Class::float32 && out.dtype == DType::uint8) return store_floats<std::uint8_t>(tile, from, out);
  switch (out.dtype) {
    case DType::float32: return store_floats<float>(tile, from, out);
    case DType::bfloat16: return store_floats<bfloat16>(tile, from, out);
    case DType::float16: return store_floats<float16>(tile, from, out);
    case DType::float64: return store_each<double, double>(tile, from, out);
    case DType::int8: case DType::uint8: return store_each<std::uint8_t, Int>(tile, from, out);
    case DType::int16: case DType::uint16: return store_each<std::uint16_t, Int>(tile, from, out);
    case DType::int32: case DType::uint32: return store_each<std::uint32_t, Int>(tile, from, out);
    case DType::int64: case DType::uint64: return store_each<Int, Int>(tile, from, out);
    case DType::boolean: return store_each<std::uint8_t, std::uint8_t>(tile, from, out);
    case DType::float8_e4m3fn: return;  // of stored weights alone: program.cpp refuses other buffers of it
  }
}

// ---- remainders of floats, exact by the C library's fmod; quotients from them, as Python and torch have it: 1 // 0.1 is 9

INGOT_INLINE float fmod_of(float a, float b) { return __builtin_fmodf(a, b); }
INGOT_INLINE double fmod_of(double a, double b) { return __builtin_fmod(a, b); }
template <class T>
INGOT_INLINE T remainder_of(T a, T b) {
  const T left = fmod_of(a, b);
  return left != 0 && (b < 0) != (left < 0) ? left + b : left;
}
template <class T>
INGOT_INLINE T floor_quotient(T a, T b) {
  if (b == 0) return a / b;
  const T left = fmod_of(a, b);
  const T quotient = (a - left) / b - (T)(left != 0 && (b < 0) != (left < 0));
  if (quotient == 0) return (T)__builtin_copysign(0.0, a / b);
  const T whole = (T)__builtin_floor(quotient);
  return quotient - whole > (T)0.5 ? whole + 1 : whole;
}

template <class T>
void divide_whole(const Tile& tile, const Instruction& s) {
  if (s.step == Step::fmod || s.step == Step::double_fmod)
    each2<T, T>(tile, s, [](T a, T b) { return fmod_of(a, b); });
  else if (s.step == Step::mod || s.step == Step::double_mod)
    each2<T, T>(tile, s, [](T a, T b) { return remainder_of(a, b); });
  else
    each2<T, T>(tile, s, [](T a, T b) { return floor_quotient(a, b); });
}

// ---- float64: plain loops over IEEE doubles; the functions are the C library's, the same at every level

INGOT_INLINE double sigmoid_of(double x) {
  const double e = __builtin_exp(-__builtin_fabs(x));
  return (x < 0 ? e : 1.0) / (1.0 + e);
}
INGOT_INLINE double greater_of(double a, double b) { return a != a ? a : a > b || b != b ? (b != b ? b : a) : b; }

/// to_float of either class: a float of the argument's value, rounded once.
template <class To>
void to_floats(const Tile& tile, const Instruction& s) {
  switch (s.cls) {
    case Class::float32: return each1<To, float>(tile, s, [](float a) { return (To)a; });
    case Class::float64: return each1<To, double>(tile, s, [](double a) { return (To)a; });
    case Class::int64: return each1<To, Int>(tile, s, [](Int a) { return (To)a; });
    case Class::uint64: return each1<To, std::uint64_t>(tile, s, [](std::uint64_t a) { return (To)a; });
    case Class::boolean: return each1<To, std::uint8_t>(tile, s, [](std::uint8_t a) { return (To)a; });
  }
}

void run_double(const Tile& tile, const Instruction& s) {
  const auto one = [&](auto f) { each1<double, double>(tile, s, f); };
  const auto two = [&](auto f) { each2<double, double>(tile, s, f); };
  switch (s.step) {
    case Step::double_add: return two([](double a, double b) { return a + b; });
    case Step::double_sub: return two([](double a, double b) { return a - b; });
    case Step::double_mul: return two([](double a, double b) { return a * b; });
    case Step::double_div: return two([](double a, double b) { return a / b; });
    case Step::double_pow: return two([](double a, double b) { return __builtin_pow(a, b); });
    case Step::double_max: return two([](double a, double b) { return greater_of(a, b); });
    case Step::double_min: return two([](double a, double b) { return -greater_of(-a, -b); });
    case Step::double_neg: return one([](double a) { return -a; });
    case Step::double_abs: return one([](double a) { return __builtin_fabs(a); });
    case Step::double_exp: return one([](double a) { return __builtin_exp(a); });
    case Step::double_log: return one([](double a) { return __builtin_log(a); });
    case Step::double_sqrt: return one([](double a) { return __builtin_sqrt(a); });
    case Step::double_rsqrt: return one([](double a) { return 1.0 / __builtin_sqrt(a); });
    case Step::double_sin: return one([](double a) { return __builtin_sin(a); });
    case Step::double_cos: return one([](double a) { return __builtin_cos(a); });
    case Step::double_tanh: return one([](double a) { return __builtin_tanh(a); });
    case Step::double_sigmoid: return one([](double a) { return sigmoid_of(a); });
    case Step::double_erf: return one([](double a) { return __builtin_erf(a); });
    case Step::double_floor: return one([](double a) { return __builtin_floor(a); });
    case Step::double_ceil: return one([](double a) { return __builtin_ceil(a); });
    case Step::double_round: return one([](double a) { return __builtin_rint(a); });
    case Step::double_recip: return one([](double a) { return 1.0 / a; });
    case Step::double_silu: return one([](double a) { return a * sigmoid_of(a); });
    case Step::double_floordiv: case Step::double_mod: case Step::double_fmod: return divide_whole<double>(tile, s);
    case Step::to_double: return to_floats<double>(tile, s);
    default: return select<double>(tile, s);
  }
}

/// What signed and unsigned integers do differently.
template <class T>
void run_ordered(const Tile& tile, const Instruction& s) {
  switch (s.step) {
    case Step::int_floordiv: return each2<T, T>(tile, s, [](T a, T b) { return floordiv(a, b); });
    case Step::int_mod: return each2<T, T>(tile, s, [](T a, T b) { return modulo(a, b); });
    case Step::int_max: return each2<T, T>(tile, s, [](T a, T b) { return a > b ? a : b; });
    default: return each2<T, T>(tile, s, [](T a, T b) { return a < b ? a : b; });
  }
}

// ---- steps

void run_other(const Tile& tile, const Instruction& s) {
  typedef std::uint8_t Bool;
  typedef std::uint64_t Word;
  switch (s.step) {
    case Step::pow: return power(tile, s);
    case Step::floordiv: case Step::mod: case Step::fmod: return divide_whole<float>(tile, s);
    case Step::to_float: return to_floats<float>(tile, s);
    case Step::select_float: return select<float>(tile, s);
    case Step::int_add: return each2<Int, Int>(tile, s, [](Int a, Int b) { return wrapped((Word)a + (Word)b); });
    case Step::int_sub: return each2<Int, Int>(tile, s, [](Int a, Int b) { return wrapped((Word)a - (Word)b); });
    case Step::int_mul: return each2<Int, Int>(tile, s, [](Int a, Int b) { return wrapped((Word)a * (Word)b); });
    case Step::int_floordiv: case Step::int_mod: case Step::int_max: case Step::int_min:
      return s.cls == Class::uint64 ? run_ordered<Word>(tile, s) : run_ordered<Int>(tile, s);
    case Step::int_fmod: return each2<Int, Int>(tile, s, [](Int a, Int b) { return b == 0 || b == -1 ? 0 : a % b; });
    case Step::int_neg: return each1<Int, Int>(tile, s, [](Int a) { return wrapped(0 - (Word)a); });
    case Step::int_abs:
      if (s.cls == Class::uint64) return each1<Int, Int>(tile, s, [](Int a) { return a; });
      return each1<Int, Int>(tile, s, [](Int a) { return a < 0 ? wrapped(0 - (Word)a) : a; });
    case Step::int_and: return each2<Int, Int>(tile, s, [](Int a, Int b) { return a & b; });
    case Step::int_or: return each2<Int, Int>(tile, s, [](Int a, Int b) { return a | b; });
    case Step::int_xor: return each2<Int, Int>(tile, s, [](Int a, Int b) { return a ^ b; });
    case Step::int_wrap: return wrap(tile, s);
    case Step::int_from_float: return s.cls == Class::float64 ? truncate<double>(tile, s) : truncate<float>(tile, s);
    case Step::int_from_int: return each1<Int, Int>(tile, s, [](Int a) { return a; });
    case Step::int_from_bool: return each1<Int, Bool>(tile, s, [](Bool a) { return (Int)a; });
    case Step::select_int: return select<Int>(tile, s);
    case Step::bool_and: return each2<Bool, Bool>(tile, s, [](Bool a, Bool b) { return (Bool)(a & b); });
    case Step::bool_or: return each2<Bool, Bool>(tile, s, [](Bool a, Bool b) { return (Bool)(a | b); });
    case Step::bool_xor: return each2<Bool, Bool>(tile, s, [](Bool a, Bool b) { return (Bool)(a ^ b); });
    case Step::bool_not: return each1<Bool, Bool>(tile, s, [](Bool a) { return (Bool)(a ^ 1); });
    case Step::bool_from_float:
      if (s.cls == Class::float64) return each1<Bool, double>(tile, s, [](double a) { return (Bool)(a != 0); });
      return each1<Bool, float>(tile, s, [](float a) { return (Bool)(a != 0); });
    case Step::bool_from_int: return each1<Bool, Int>(tile, s, [](Int a) { return (Bool)(a != 0); });
    case Step::select_bool: return select<Bool>(tile, s);
    case Step::equal: case Step::not_equal: case Step::less: case Step::less_equal:
      switch (s.cls) {
        case Class::float32: return compare<float>(tile, s);
        case Class::float64: return compare<double>(tile, s);
        case Class::int64: return compare<Int>(tile, s);
        case Class::uint64: return compare<Word>(tile, s);
        case Class::boolean: return compare<Bool>(tile, s);
      }
      return;
    default: return run_double(tile, s);
  }
}

void run_step(const Tile& tile, const Instruction& s) {
  const Vec one = broadcast(1.0f);
  switch (s.step) {
    case Step::load: return load_operand(tile, s);
    case Step::add: return map2(tile, s, [](Vec a, Vec b) { return a + b; });
    case Step::sub: return map2(tile, s, [](Vec a, Vec b) { return a - b; });
    case Step::mul: return map2(tile, s, [](Vec a, Vec b) { return a * b; });
    case Step::div: return map2(tile, s, [](Vec a, Vec b) { return a / b; });
    case Step::max: return map2(tile, s, [](Vec a, Vec b) { return max_nan(a, b); });
    case Step::min: return map2(tile, s, [](Vec a, Vec b) { return min_nan(a, b); });
    case Step::neg: return map1(tile, s, [](Vec a) { return negate(a); });
    case Step::abs: return map1(tile, s, [](Vec a) { return abs(a); });
    case Step::exp: return map1(tile, s, [](Vec a) { return exp(a); });
    case Step::log: return map1(tile, s, [](Vec a) { return log(a); });
    case Step::sqrt: return map1(tile, s, [](Vec a) { return sqrt(a); });
    case Step::rsqrt: return map1(tile, s, [=](Vec a) { return one / sqrt(a); });
    case Step::sin: return map1(tile, s, [](Vec a) { return sin(a); });
    case Step::cos: return map1(tile, s, [](Vec a) { return cos(a); });
    case Step::tanh: return map1(tile, s, [](Vec a) { return tanh(a); });
    case Step::sigmoid: return map1(tile, s, [](Vec a) { return sigmoid(a); });
    case Step::erf: return map1(tile, s, [](Vec a) { return erf(a); });
    case Step::floor: return map1(tile, s, [](Vec a) { return floor(a); });
    case Step::ceil: return map1(tile, s, [](Vec a) { return ceil(a); });
    case Step::round: return map1(tile, s, [](Vec a) { return round_even(a); });
    case Step::recip: return map1(tile, s, [=](Vec a) { return one / a; });
    case Step::silu: return map1(tile, s, [](Vec a) { return silu(a); });
    case Step::silu_mul: return map2(tile, s, [](Vec a, Vec b) { return silu(a) * b; });
    case Step::mish: return map1(tile, s, [](Vec a) { return mish(a); });
    case Step::gelu: return map1(tile, s, [](Vec a) { return gelu(a); });
    case Step::round_bfloat16: return map1(tile, s, [](Vec a) { return rounded_to<bfloat16>(a); });
    case Step::replace_nan: return map2(tile, s, [](Vec a, Vec b) { return select(is_nan(a), b, a); });
    case Step::round_float16: return map1(tile, s, [](Vec a) { return rounded_to<float16>(a); });
    default: return run_other(tile, s);
  }
}

void run_tile(const TileCode& code, const TileOperand* in, const TileOperand* out, int rows, int width, std::byte* scratch) {
  Register registers[kMaxSteps];
  const int count = rows * width;
  const Tile tile{in, registers, rows, width, count, (count + kLanes - 1) / kLanes * kLanes};
  for (int i = 0; i < code.register_count; ++i) {
    const Place place = code.places[i];
    registers[i] = place.constant ? Register{(std::byte*)code.constants + place.offset, 0} : Register{scratch + place.offset, 1};
  }
  // A float32 output that is dense is computed where it belongs. (A load that reads in place points elsewhere again.)
  for (int i = 0; i < code.output_count; ++i) {
    const std::uint16_t index = code.outputs[i];
    const bool dense = rows == 1 || out[i].row_stride == width;
    if (code.output_classes[i] == Class::float32 && out[i].dtype == DType::float32 && dense && count == tile.padded &&
        registers[index].step == 1)
      registers[index].data = out[i].data;
  }
  for (int i = 0; i < code.step_count; ++i) run_step(tile, code.steps[i]);
  for (int i = 0; i < code.output_count; ++i) {
    const Register& result = registers[code.outputs[i]];
    if (result.data != out[i].data || result.step == 0) store_output(tile, result, code.output_classes[i], out[i]);
  }
}

bool run_rows(const TileCode& code, const TileOperand* in, const TileOperand& out, std::int64_t rows, std::int64_t width) {
  if (in[0].spacing() != Spacing::dense || !(is_chain_float(in[0].dtype) || is_chain_byte(in[0].dtype))) return false;
  Chain chain;
  if (!chain_of(code, in, out, chain)) return false;
  run_chain(chain, in, out, rows, width);
  return true;
}

/// A single long row is taken as rows of two vectors, so that a step is of several at a time.
bool run_whole_chain(const TileCode& code, const TileOperand* in, const TileOperand& out, std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t kWidth = 2 * kLanes;
  if (rows != 1 || width < 2 * kWidth) return run_rows(code, in, out, rows, width);
  int operands = 1;
  for (int i = 0; i < code.step_count; ++i)
    if (code.steps[i].step == Step::load && code.steps[i].a >= operands) operands = code.steps[i].a + 1;
  TileOperand part[kMaxInputs];
  const auto taken = [&](const TileOperand& o, std::int64_t column) {
    return TileOperand{o.data + column * o.column_stride * bytes_of(o.dtype), o.dtype, kWidth * o.column_stride, o.column_stride};
  };
  for (int i = 0; i < operands; ++i) part[i] = taken(in[i], 0);
  if (!run_rows(code, part, taken(out, 0), width / kWidth, kWidth)) return false;
  const std::int64_t rest = width / kWidth * kWidth;
  if (rest == width) return true;
  for (int i = 0; i < operands; ++i) part[i] = taken(in[i], rest);
  return run_rows(code, part, taken(out, rest), 1, width - rest);
}

}  // namespace

const ElementwiseTable elementwise_table = {run_tile, run_whole_chain};

}  // namespace ingot::INGOT_LEVEL
