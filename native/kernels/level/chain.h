// Expressions that are a chain, value = step(value, operand) from operand 0 on (bias, residual, relu, silu, rounding): computed
// in registers instead of a pass over the tile for each step. The same steps in the same order, so the same bits as run_tile.
// Operands may be int8 or uint8 that are dequantised, (q - zero) * scale; the result may be quantised to either.
// Include after simd.h.
#pragma once

#include "simd.h"
#include "tile.h"

namespace ingot::INGOT_LEVEL {

namespace {

struct Link {
  Step step;
  int operand;            // of the expression; none: -1
  const float* constant;  // 16 times the value, when there is no operand
  bool whole;             // the operand is (q - zero) * scale of whole numbers
  float zero, scale;
  bool rounded;           // and that is rounded to bfloat16
};

/// What quantises, the last steps of a chain to a byte: a product with a number, rounding, 0 in the place of a NaN, a zero point
/// and limits. Bounds are whole numbers, so limiting before rounding gives the same.
struct Ending {
  bool present;
  float factor, low, high, zero;  // low and high are those before the zero point is added
};

struct Chain;
typedef void (*ChainRows)(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t rows, std::int64_t column);

struct Chain {
  static constexpr int kMost = 16;
  int count;  // of the links before the ending
  bool streams;  // rows, which are whole lines, are written past the caches
  bool scaled;  // the first two are a product with one float32 row and a sum with another
  // What runs all rows of two vectors of a chain that begins with such a product, where little follows it, or that is a bias and GELU; or null.
  ChainRows rows;
  // What follows, by its link or -1: a product with a number for each row, sums with rows that all share, a residual.
  int factor, shifts[2], residual;
  bool gelu;  // comes behind these
  Link links[kMost];
  Ending ending;
};

INGOT_INLINE bool is_chain_float(DType d) { return d == DType::float32 || d == DType::bfloat16 || d == DType::float16; }
INGOT_INLINE bool is_chain_byte(DType d) { return d == DType::int8 || d == DType::uint8; }

/// What a register of the expression holds that is not the chain's value.
struct ChainOperand {
  int operand;  // -1: nothing that a link takes
  bool whole;   // whole numbers of 8 bits
  float zero, scale;
  bool rounded;  // to bfloat16, once scaled
};

/// Takes the last links of a chain to a byte as its ending, if they are one. A relu before them becomes a part of the lower limit.
inline void end_chain(Chain& chain) {
  const auto number = [&](int at, Step step) -> const float* {
    return at >= 0 && chain.links[at].step == step ? chain.links[at].constant : nullptr;
  };
  int at = chain.count - 1;
  const float *const high = number(at, Step::min), *const low = number(at - 1, Step::max);
  if (high == nullptr || low == nullptr) return;
  at -= 2;
  const float* const zero = number(at, Step::add);
  if (zero != nullptr) --at;
  const float* const nan = number(at, Step::replace_nan);
  if (nan == nullptr || *nan != 0 || at < 1 || chain.links[at - 1].step != Step::round) return;
  at -= 2;
  const float* const factor = number(at, Step::mul);
  if (factor != nullptr) --at;
  Ending ending{true, factor == nullptr ? 1.0f : *factor, *low, *high, zero == nullptr ? 0.0f : *zero};
  const auto is_small = [](float x) { return x >= -512 && x <= 512 && x == (float)(int)x; };
  if (!is_small(ending.low) || !is_small(ending.high) || !is_small(ending.zero) || !(ending.low <= ending.zero && ending.zero <= ending.high)) return;
  ending.low -= ending.zero, ending.high -= ending.zero;
  const float* const least = number(at, Step::max);
  if (least != nullptr && *least == 0 && ending.factor > 0) ending.low = 0, --at;
  const float* const nothing = number(at, Step::add);
  if (nothing != nullptr && *nothing == 0) --at;  // the sign of a zero is nothing that bytes show
  chain.count = at + 1;
  chain.ending = ending;
}

/// The operand of such a link, or null.
inline const TileOperand* taken_at(const Chain& chain, const TileOperand* in, int at, Step step) {
  const bool takes = at < chain.count && chain.links[at].step == step && chain.links[at].operand > 0;
  return takes ? &in[chain.links[at].operand] : nullptr;
}

/// Whether it is a row that all rows share.
inline bool is_shared_row(const TileOperand* o) {
  return o != nullptr && is_chain_float(o->dtype) && o->row_stride == 0 && o->spacing() == Spacing::dense;
}
inline bool takes_row(const Chain& chain, const TileOperand* in, int at, Step step) {
  const TileOperand* const o = taken_at(chain, in, at, step);
  return is_shared_row(o) && o->dtype == DType::float32;
}

template <class Sum>
ChainRows scaled_rows_of(Chain& chain, const TileOperand* in, const TileOperand& out);
inline ChainRows gelu_rows_of(Chain& chain, const TileOperand* in, const TileOperand& out);

/// Whether the expression is a chain from operand 0, which is dense. The rows of its other operands are dense or repeat one
/// value: what load_rows reads.
inline bool chain_of(const TileCode& code, const TileOperand* in, const TileOperand& out, Chain& chain) {
  constexpr int kRegisters = 64;
  ChainOperand held[kRegisters];
  int value = -1;
  chain.count = 0;
  chain.streams = false;
  chain.ending.present = false;
  if (code.output_count != 1 || code.output_classes[0] != Class::float32 || code.register_count > kRegisters) return false;
  if (!(is_chain_float(out.dtype) || is_chain_byte(out.dtype)) || out.spacing() != Spacing::dense) return false;
  for (int i = 0; i < code.register_count; ++i) held[i] = {-1, false, 0, 1, false};
  const auto constant = [&](int place) { return (const float*)(code.places[place].constant ? code.constants + code.places[place].offset : nullptr); };
  for (int i = 0; i < code.step_count; ++i) {
    const Instruction& s = code.steps[i];
    Link link{s.step, -1, nullptr, false, 0, 1, false};
    switch (s.step) {
      case Step::load:
        if (s.cls != Class::float32) return false;
        if (s.a == 0) {
          if (value != -1) return false;
          value = s.to;
          continue;
        }
        if (in[s.a].spacing() == Spacing::strided) return false;
        held[s.to] = {s.a, is_chain_byte(in[s.a].dtype), 0, 1, false};
        continue;
      case Step::round_bfloat16:
        if (s.a != value && held[s.a].whole) {
          held[s.to] = held[s.a];
          held[s.to].rounded = true;
          continue;
        }
        [[fallthrough]];
      case Step::silu: case Step::mish: case Step::gelu: case Step::sigmoid: case Step::tanh: case Step::round: case Step::round_float16:
        if (s.a != value) return false;
        break;
      case Step::sub: case Step::mul:
        if (s.a != value && s.b != value) {  // the zero point and the scale of an operand
          const bool turned = s.step == Step::mul && held[s.b].whole;
          const ChainOperand operand = held[turned ? s.b : s.a];
          const float* const number = constant(turned ? s.a : s.b);
          if (!operand.whole || operand.rounded || number == nullptr || operand.scale != 1 || (s.step == Step::sub && operand.zero != 0)) return false;
          held[s.to] = operand;
          (s.step == Step::mul ? held[s.to].scale : held[s.to].zero) = *number;
          continue;
        }
        [[fallthrough]];
      case Step::add: case Step::div: case Step::max: case Step::min: case Step::replace_nan: {
        const bool turned = s.b == value && s.a != value && (s.step == Step::add || s.step == Step::mul);
        const int other = turned ? s.a : s.b;
        if ((turned ? s.b : s.a) != value || other == value) return false;
        link.operand = held[other].operand;
        link.whole = held[other].whole;
        link.zero = held[other].zero;
        link.scale = held[other].scale;
        link.rounded = held[other].rounded;
        link.constant = constant(other);
        if (link.operand == -1 && link.constant == nullptr) return false;
        break;
      }
      default: return false;
    }
    if (chain.count == Chain::kMost || value == -1) return false;
    chain.links[chain.count++] = link;
    value = s.to;
  }
  if (value != code.outputs[0]) return false;
  if (is_chain_byte(out.dtype)) end_chain(chain);
  chain.scaled = takes_row(chain, in, 0, Step::mul) && takes_row(chain, in, 1, Step::add);
  if (!takes_row(chain, in, 0, Step::mul)) chain.rows = gelu_rows_of(chain, in, out);
  else if (in[0].dtype == DType::float32) chain.rows = scaled_rows_of<float>(chain, in, out);
  else chain.rows = in[0].dtype == DType::bfloat16 ? scaled_rows_of<bfloat16>(chain, in, out) : nullptr;
  return true;
}

template <int R, int C>
INGOT_INLINE void load_rows(const TileOperand& from, std::int64_t row, std::int64_t column, int lanes, Vec (&v)[R][C]) {
  const std::int64_t at = row * from.row_stride + column * from.column_stride;
  const auto each = [&](auto* p) {
    if (from.row_stride == 0 && from.spacing() == Spacing::dense && lanes == kLanes * C) {  // a bias: one row for all
      Vec row[C];
      _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) row[c] = load(p + c * kLanes);
      _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
        _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) v[r][c] = row[c];
      }
      return;
    }
    _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r, p += from.row_stride) {
      if (from.spacing() == Spacing::repeated) {
        const Vec value = broadcast(load_one(p));
        _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) v[r][c] = value;
      } else {
        _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c)
          v[r][c] = lanes == kLanes * C ? load(p + c * kLanes) : load_partial(p + c * kLanes, lanes);
      }
    }
  };
  if (from.dtype == DType::float32) each((const float*)from.data + at);
  else if (from.dtype == DType::bfloat16) each((const bfloat16*)from.data + at);
  else if (from.dtype == DType::float16) each((const float16*)from.data + at);
  else if (from.dtype == DType::int8) each((const std::int8_t*)from.data + at);
  else each((const std::uint8_t*)from.data + at);
}

/// Stores rows of 32 by the instruction that rounds, unless it would flush a denormal. streams: p and the stride are whole lines. normal: no
/// value is a denormal.
template <int R, int C>
INGOT_INLINE bool store_rounded([[maybe_unused]] bfloat16* p, [[maybe_unused]] std::int64_t stride, [[maybe_unused]] const Vec (&v)[R][C],
                                [[maybe_unused]] bool streams = false, [[maybe_unused]] bool normal = false) {
#if defined(__AVX512BF16__)
  if constexpr (C == 2) {
    constexpr int kDenormal = 0x20;
    __mmask16 denormal = 0;
    if (!normal) {
      _Pragma("GCC unroll 16") for (int r = 0; r < R; ++r)
        denormal = _kor_mask16(denormal, _kor_mask16(_mm512_fpclass_ps_mask(v[r][0].v, kDenormal), _mm512_fpclass_ps_mask(v[r][1].v, kDenormal)));
    }
    if (denormal != 0) return false;
    _Pragma("GCC unroll 16") for (int r = 0; r < R; ++r, p += stride) {
      const __m512bh row = _mm512_cvtne2ps_pbh(v[r][1].v, v[r][0].v);
      if (streams) _mm512_stream_si512((__m512i*)p, (__m512i)row);
      else __builtin_memcpy(p, &row, sizeof row);
    }
    return true;
  }
#endif
  return false;
}

template <int R, int C>
INGOT_INLINE void store_rows(const TileOperand& out, std::int64_t row, std::int64_t column, int lanes, const Vec (&v)[R][C]) {
  const std::int64_t at = row * out.row_stride + column;
  const auto each = [&](auto* p) {
    _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r, p += out.row_stride) {
      _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) {
        if (lanes == kLanes * C) store(p + c * kLanes, v[r][c]);
        else store_partial(p + c * kLanes, v[r][c], lanes);
      }
    }
  };
  if (out.dtype == DType::float32) {
    each((float*)out.data + at);
  } else if (out.dtype == DType::bfloat16) {
    if (lanes < kLanes * C || !store_rounded((bfloat16*)out.data + at, out.row_stride, v)) each((bfloat16*)out.data + at);
  } else if (out.dtype == DType::float16) {
    each((float16*)out.data + at);
  } else if (out.dtype == DType::int8) {
    each((std::int8_t*)out.data + at);
  } else {
    each((std::uint8_t*)out.data + at);
  }
}

template <class Half>
INGOT_INLINE Vec rounded_to(Vec v) {
  Half lanes[kLanes];
  store(lanes, v);
  return load(lanes);
}

template <class Half, int R, int C>
INGOT_INLINE void round_rows(Vec (&v)[R][C]) {
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) v[r][c] = rounded_to<Half>(v[r][c]);
}

/// Steps that take long anyway.
template <int R, int C>
__attribute__((noinline)) void slow_step(Step step, Vec (&v)[R][C]) {
  const auto each = [&](auto of) __attribute__((always_inline)) {
    for (int r = 0; r < R; ++r) {
      _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) v[r][c] = of(v[r][c]);
    }
  };
  switch (step) {
    case Step::round_bfloat16: return round_rows<bfloat16>(v);
    case Step::round_float16: return round_rows<float16>(v);
    case Step::silu: return each([](Vec x) { return silu(x); });
    case Step::mish: return each([](Vec x) { return mish(x); });
    case Step::gelu: return each([](Vec x) { return gelu(x); });
    case Step::tanh: return each([](Vec x) { return tanh(x); });
    default: return each([](Vec x) { return sigmoid(x); });
  }
}

/// R rows by C vectors; C is 1 when there are fewer than 16 lanes.
template <int R, int C>
INGOT_INLINE void chain_rows(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t row, std::int64_t column,
                             int lanes) {
  Vec v[R][C];
  load_rows(in[0], row, column, lanes, v);
  if (chain.scaled) {
    const float* const scales = (const float*)in[chain.links[0].operand].data + column;
    const float* const biases = (const float*)in[chain.links[1].operand].data + column;
    _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) {
      const bool whole = lanes == kLanes * C;
      const Vec scale = whole ? load(scales + c * kLanes) : load_partial(scales, lanes);
      const Vec bias = whole ? load(biases + c * kLanes) : load_partial(biases, lanes);
      _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) v[r][c] = v[r][c] * scale + bias;
    }
  }
  for (int i = chain.scaled ? 2 : 0; i < chain.count; ++i) {
    const Link& link = chain.links[i];
    Vec w[R][C];
    if (link.operand >= 0) {
      load_rows(in[link.operand], row, column, lanes, w);
      if (link.whole) {
        const Vec zero = broadcast(link.zero), scale = broadcast(link.scale);
        _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
          _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) w[r][c] = (w[r][c] - zero) * scale;
        }
        if (link.rounded) round_rows<bfloat16>(w);
      }
    } else if (link.constant != nullptr) {
      const Vec value = load(link.constant);
      _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
        _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) w[r][c] = value;
      }
    }
    const auto each = [&](auto step) {
      _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
        _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) v[r][c] = step(v[r][c], w[r][c]);
      }
    };
    switch (link.step) {
      case Step::add: each([](Vec a, Vec b) { return a + b; }); break;
      case Step::mul: each([](Vec a, Vec b) { return a * b; }); break;
      case Step::sub: each([](Vec a, Vec b) { return a - b; }); break;
      case Step::div: each([](Vec a, Vec b) { return a / b; }); break;
      case Step::round: each([](Vec a, Vec) { return round_even(a); }); break;
      case Step::replace_nan: each([](Vec a, Vec b) { return select(is_nan(a), b, a); }); break;
      case Step::max: each([](Vec a, Vec b) { return max_nan(a, b); }); break;
      case Step::min: each([](Vec a, Vec b) { return min_nan(a, b); }); break;
      default: {  // by a copy, so that v itself stays in registers
        Vec slow[R][C];
        __builtin_memcpy(slow, v, sizeof slow);
        slow_step(link.step, slow);
        __builtin_memcpy(v, slow, sizeof slow);
      }
    }
  }
  if (chain.ending.present) {
    const Ending& ending = chain.ending;
    const Vec factor = broadcast(ending.factor), low = broadcast(ending.low), high = broadcast(ending.high), zero_point = broadcast(ending.zero);
    _Pragma("GCC unroll 8") for (int r = 0; r < R; ++r) {
      _Pragma("GCC unroll 2") for (int c = 0; c < C; ++c) {
        const Vec scaled = v[r][c] * factor;
        v[r][c] = round_even(min(high, max(low, select(is_nan(scaled), zero(), scaled)))) + zero_point;
      }
    }
  }
  store_rows(out, row, column, lanes, v);
}

/// Whole numbers in the range of a byte, from floats that are in that of the ending: two rows of two vectors. Rectified: its lower limit is 0.
/// Bounded: values are NaN or fit int32 when they are rounded, and the upper limit is that of T.
template <class T, bool Rectified, bool Bounded>
INGOT_INLINE void store_ended(T* p, std::int64_t stride, const Ending& ending, const Vec (&v)[2][2]) {
  const Vec factor = broadcast(ending.factor), low = broadcast(ending.low), high = broadcast(ending.high);
#if defined(__AVX512BW__)
  const __m512i zero_point = _mm512_set1_epi16((short)ending.zero);
  __m512i words[2];
  _Pragma("GCC unroll 2") for (int r = 0; r < 2; ++r) {
    __m512i q[2];
    _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) {
      const __m512 scaled = (v[r][c] * factor).v;
      // Rectified: what is below every int32, and a NaN, which passes as second operand, become the least one.
      const __m512 least = Rectified ? scaled : _mm512_maskz_max_ps(_mm512_cmp_ps_mask(scaled, scaled, _CMP_ORD_Q), scaled, low.v);
      const __m512 most = Bounded ? least : _mm512_min_ps(high.v, least);
      q[c] = _mm512_cvt_roundps_epi32(most, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    words[r] = _mm512_packs_epi32(q[0], q[1]);
    if constexpr (Rectified) words[r] = _mm512_max_epi16(words[r], _mm512_setzero_si512());
    if (ending.zero != 0) words[r] = _mm512_adds_epi16(words[r], zero_point);
  }
  const __m512i mixed = __is_same(T, std::int8_t) ? _mm512_packs_epi16(words[0], words[1]) : _mm512_packus_epi16(words[0], words[1]);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_permutexvar_epi32(order, mixed);
  _mm256_storeu_si256((__m256i*)p, _mm512_castsi512_si256(bytes));
  _mm256_storeu_si256((__m256i*)(p + stride), _mm512_extracti64x4_epi64(bytes, 1));
#else
  const Vec zero_point = broadcast(ending.zero);
  _Pragma("GCC unroll 2") for (int r = 0; r < 2; ++r) {
    _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) {
      const Vec scaled = v[r][c] * factor;
      store(p + r * stride + c * kLanes, round_even(min(high, max(low, select(is_nan(scaled), zero(), scaled)))) + zero_point);
    }
  }
#endif
}

struct NoResidual {};
template <class T>
constexpr bool is_byte = __is_same(T, std::int8_t) || __is_same(T, std::uint8_t);

/// Two vectors of a row that all rows share; what changes no sum where there is none.
INGOT_INLINE void load_shared(const TileOperand* o, std::int64_t column, Vec (&row)[2]) {
  _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) {
    const std::int64_t at = column + c * kLanes;
    if (o == nullptr) row[c] = broadcast(-0.0f);
    else if (o->dtype == DType::float32) row[c] = load((const float*)o->data + at);
    else if (o->dtype == DType::bfloat16) row[c] = load((const bfloat16*)o->data + at);
    else row[c] = load((const float16*)o->data + at);
  }
}

#if defined(__AVX512BW__)
constexpr bool kEndsBounded = true;
#else
constexpr bool kEndsBounded = false;  // store_ended has nothing to gain
#endif
template <bool>
struct Flag {};
template <class T>
constexpr float most_of = __is_same(T, std::int8_t) ? 127 : 255;

/// Whether what becomes of any int32 is far below 2^31 in steps of the result, or NaN.
INGOT_INLINE bool is_bounded(const Ending& ending, const Vec (&scale)[2], const Vec (&bias)[2], const Vec (&shift)[2], const Link& residual) {
  const Vec factor = abs(broadcast(ending.factor)), limit = broadcast(0x1p30f), largest = broadcast(256) + abs(broadcast(residual.zero));
  const Vec added = residual.whole ? largest * abs(broadcast(residual.scale)) : zero();
  bool bounded = true;
  _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) {
    const Vec most = (abs(scale[c]) * broadcast(0x1p31f) + abs(bias[c]) + abs(shift[c]) + added) * factor;
    bounded = bounded && !any(is_nan(most)) && !any(limit <= most);
  }
  return bounded;
}

/// Whether whole numbers times the scale, and sums of these and of biases, are never denormals: each is 0 or at least 2^-100 in size, so that it, and
/// whatever is added up of such, is a multiple of 2^-123.
INGOT_INLINE bool is_normal(const Vec (&scale)[2], const Vec (&bias)[2], const Vec (&shift)[2]) {
  const auto is_far = [](Vec v) { return !any(abs(v) < select(v == zero(), zero(), broadcast(0x1p-100f))) && !any(is_nan(v)); };
  return is_far(scale[0]) && is_far(scale[1]) && is_far(bias[0]) && is_far(bias[1]) && is_far(shift[0]) && is_far(shift[1]);
}

/// Two vectors of all rows: sum * scale, then a factor of the row, biases, a residual, and GELU or a lower limit, if there are such; the
/// result may be quantised. Sum: what the first operand holds. Rectified: the ending's lower limit is 0.
template <class Residual, class Out, class Sum, bool Rectified>
__attribute__((noinline)) void scaled_rows(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t rows,
                                           std::int64_t column) {
  // Copies of what the loop reads: a store of bytes could be one to anything behind a pointer.
  const Sum* const sums = (const Sum*)in[0].data + column;
  const std::int64_t sums_stride = in[0].row_stride, out_stride = out.row_stride;
  const bool gelu = chain.gelu, streams = chain.streams;
  const Ending ending = chain.ending;
  const float* const scales = (const float*)in[chain.links[0].operand].data + column;
  const auto operand = [&](int link) { return link < 0 ? nullptr : &in[chain.links[link].operand]; };
  const TileOperand factors = chain.factor < 0 ? TileOperand{} : in[chain.links[chain.factor].operand];
  const Vec scale[2] = {load(scales), load(scales + kLanes)};
  Vec bias[2], shift[2];
  load_shared(operand(chain.shifts[0]), column, bias);
  load_shared(operand(chain.shifts[1]), column, shift);
  const bool twice = chain.shifts[1] >= 0;
  const Link& added = chain.links[chain.residual < 0 ? 0 : chain.residual];
  const Vec residual_zero = broadcast(added.zero), residual_scale = broadcast(added.scale);
  const bool symmetric = added.zero == 0, rounded = added.rounded;
  const TileOperand residual = chain.residual < 0 ? TileOperand{} : in[added.operand];
  const Link& last = chain.links[chain.count - 1];
  const Vec low = last.step == Step::max ? load(last.constant) : broadcast(-__builtin_inff());
  Out* const to = (Out*)out.data + column;
  const auto sum = [&](std::int64_t r, int c) __attribute__((always_inline)) {
    const Sum* const from = sums + r * sums_stride + c * kLanes;
    if constexpr (__is_same(Sum, std::int32_t)) return to_float(bits(load((const float*)from)));
    else return load(from);
  };
  const auto take = [&]<bool Bounded>(Flag<Bounded>, std::int64_t row) __attribute__((always_inline)) {
    const bool one = row + 1 == rows;
    const std::int64_t at[2] = {row, one ? row : row + 1};  // the last of an odd number twice
    Vec v[2][2];
    _Pragma("GCC unroll 2") for (int r = 0; r < 2; ++r) {
      _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) v[r][c] = sum(at[r], c) * scale[c];
    }
    if (factors.data != nullptr) {
      _Pragma("GCC unroll 2") for (int r = 0; r < 2; ++r) {
        const Vec factor = broadcast(((const float*)factors.data)[at[r] * factors.row_stride]);
        _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) v[r][c] = v[r][c] * factor;
      }
    }
    _Pragma("GCC unroll 2") for (int r = 0; r < 2; ++r) {
      _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) v[r][c] = v[r][c] + bias[c];
    }
    if (twice) {
      _Pragma("GCC unroll 2") for (int r = 0; r < 2; ++r) {
        _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) v[r][c] = v[r][c] + shift[c];
      }
    }
    if constexpr (!__is_same(Residual, NoResidual)) {
      const Residual* const from = (const Residual*)residual.data + column;
      _Pragma("GCC unroll 2") for (int r = 0; r < 2; ++r) {
        _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) {
          Vec w = load(from + at[r] * residual.row_stride + c * kLanes);
          if constexpr (is_byte<Residual>) {
            w = (symmetric ? w : w - residual_zero) * residual_scale;
            if (rounded) w = rounded_to<bfloat16>(w);
          }
          v[r][c] = v[r][c] + w;
        }
      }
    }
    if (gelu) {  // by a copy, so that v itself stays in registers
      Vec slow[2][2];
      __builtin_memcpy(slow, v, sizeof slow);
      slow_step(Step::gelu, slow);
      __builtin_memcpy(v, slow, sizeof slow);
    }
    if constexpr (is_byte<Out>) {
      store_ended<Out, Rectified, Bounded>(to + row * out_stride, one ? 0 : out_stride, ending, v);
    } else {
      _Pragma("GCC unroll 2") for (int r = 0; r < 2; ++r) {
        _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) v[r][c] = max_nan(v[r][c], low);
      }
      if constexpr (__is_same(Out, bfloat16))
        if (store_rounded(to + row * out_stride, one ? 0 : out_stride, v, streams)) return;
#if defined(__AVX512F__)
      if constexpr (__is_same(Out, float)) if (streams) {
        _Pragma("GCC unroll 2") for (int r = 0; r < 2; ++r) {
          _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) _mm512_stream_ps(to + at[r] * out_stride + c * kLanes, v[r][c].v);
        }
        return;
      }
#endif
      _Pragma("GCC unroll 2") for (int r = 0; r < 2; ++r) {
        _Pragma("GCC unroll 2") for (int c = 0; c < 2; ++c) store(to + at[r] * out_stride + c * kLanes, v[r][c]);
      }
    }
  };
  if constexpr (kEndsBounded && is_byte<Out> && Rectified && __is_same(Sum, std::int32_t) && (is_byte<Residual> || __is_same(Residual, NoResidual))) {
    if (factors.data == nullptr && !gelu && ending.high + ending.zero == most_of<Out> && is_bounded(ending, scale, bias, shift, added)) {
      for (std::int64_t row = 0; row < rows; row += 2) take(Flag<true>(), row);
      return;
    }
  }
  for (std::int64_t row = 0; row < rows; row += 2) take(Flag<false>(), row);
}

template <class Residual, class Out, class Sum>
INGOT_INLINE ChainRows scaled_bytes_to(const Ending& ending) {
  return ending.low == 0 ? scaled_rows<Residual, Out, Sum, true> : scaled_rows<Residual, Out, Sum, false>;
}

template <class Residual, class Sum>
INGOT_INLINE ChainRows scaled_rows_to(const Chain& chain, const TileOperand& out) {
  if constexpr (!__is_same(Sum, bfloat16)) {
    if (out.dtype == DType::float32) return scaled_rows<Residual, float, Sum, false>;
    if (out.dtype == DType::bfloat16) return scaled_rows<Residual, bfloat16, Sum, false>;
  }
  if (!chain.ending.present) return nullptr;
  const float least = chain.ending.low + chain.ending.zero, most = chain.ending.high + chain.ending.zero;
  if (out.dtype == DType::int8) return least >= -128 && most <= 127 ? scaled_bytes_to<Residual, std::int8_t, Sum>(chain.ending) : nullptr;
  return out.dtype == DType::uint8 && least >= 0 && most <= 255 ? scaled_bytes_to<Residual, std::uint8_t, Sum>(chain.ending) : nullptr;
}

/// What runs a chain whose first link is a product with a row of float32; null where others follow than those that scaled_rows has. Of bfloat16
/// that is what a norm that became numbers for each channel leaves to be quantised.
template <class Sum>
ChainRows scaled_rows_of(Chain& chain, const TileOperand* in, const TileOperand& out) {
  int at = 1;
  const TileOperand* const number = taken_at(chain, in, at, Step::mul);
  chain.factor = number != nullptr && number->dtype == DType::float32 && number->spacing() == Spacing::repeated ? at++ : -1;
  for (int& shift : chain.shifts) shift = is_shared_row(taken_at(chain, in, at, Step::add)) ? at++ : -1;
  const TileOperand* const residual = taken_at(chain, in, at, Step::add);
  chain.residual = residual != nullptr ? at++ : -1;
  chain.gelu = at < chain.count && chain.links[at].step == Step::gelu;
  if (chain.gelu) ++at;
  else if (at < chain.count && chain.links[at].step == Step::max && chain.links[at].constant != nullptr && !chain.ending.present) ++at;
  if (at != chain.count || (residual != nullptr && residual->spacing() != Spacing::dense)) return nullptr;
  if (residual == nullptr) return scaled_rows_to<NoResidual, Sum>(chain, out);
  if constexpr (!__is_same(Sum, bfloat16)) {
    if (residual->dtype == DType::float32) return scaled_rows_to<float, Sum>(chain, out);
    if (residual->dtype == DType::bfloat16) return scaled_rows_to<bfloat16, Sum>(chain, out);
    if (residual->dtype == DType::int8) return scaled_rows_to<std::int8_t, Sum>(chain, out);
    if (residual->dtype == DType::uint8) return scaled_rows_to<std::uint8_t, Sum>(chain, out);
  }
  return nullptr;
}

#if defined(__AVX512F__)
constexpr int kGeluRows = 4;  // two vectors of each at once: what registers hold
#else
constexpr int kGeluRows = 1;
#endif

/// Two vectors of R rows: sum + bias, and GELU.
template <class Out, int R>
INGOT_INLINE void take_gelu_rows(const float* sums, std::int64_t stride, const Vec (&bias)[2], Out* to, std::int64_t out_stride) {
  Vec v[R][2];
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < 2; ++c) v[r][c] = load(sums + r * stride + c * kLanes) + bias[c];
  }
  gelu_each<2 * R>(&v[0][0]);
  if constexpr (__is_same(Out, bfloat16))
    if (store_rounded(to, out_stride, v)) return;
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < 2; ++c) store(to + r * out_stride + c * kLanes, v[r][c]);
  }
}

/// The same of all rows.
template <class Out>
__attribute__((noinline)) void gelu_rows(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t rows,
                                         std::int64_t column) {
  Vec bias[2];
  load_shared(&in[chain.links[0].operand], column, bias);
  const float* sums = (const float*)in[0].data + column;
  Out* to = (Out*)out.data + column;
  const auto take = [&]<int R>() __attribute__((always_inline)) {
    take_gelu_rows<Out, R>(sums, in[0].row_stride, bias, to, out.row_stride);
    rows -= R, sums += R * in[0].row_stride, to += R * out.row_stride;
  };
  while (rows >= kGeluRows) take.template operator()<kGeluRows>();
  while (rows > 0) take.template operator()<1>();
}

/// What runs a chain of a bias that all rows share and GELU; null for others.
inline ChainRows gelu_rows_of(Chain& chain, const TileOperand* in, const TileOperand& out) {
  chain.factor = chain.residual = chain.shifts[0] = chain.shifts[1] = -1;
  chain.gelu = chain.count == 2 && chain.links[1].step == Step::gelu;
  if (!chain.gelu || chain.ending.present || in[0].dtype != DType::float32 || !is_shared_row(taken_at(chain, in, 0, Step::add))) return nullptr;
  return out.dtype == DType::float32 ? gelu_rows<float> : out.dtype == DType::bfloat16 ? gelu_rows<bfloat16> : nullptr;
}

/// The columns of R rows from that one on.
template <int R>
INGOT_INLINE void chain_band(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t row, std::int64_t column,
                             std::int64_t width) {
  for (; column + 2 * kLanes <= width; column += 2 * kLanes) chain_rows<R, 2>(chain, in, out, row, column, 2 * kLanes);
  for (; column < width; column += kLanes)
    chain_rows<R, 1>(chain, in, out, row, column, width - column < kLanes ? (int)(width - column) : kLanes);
}

/// What run_tile does, for any number of rows and columns.
inline void run_chain(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t rows, std::int64_t width) {
  std::int64_t row = 0, column = 0;
  if (chain.rows != nullptr)
    for (; column + 2 * kLanes <= width; column += 2 * kLanes) chain.rows(chain, in, out, rows, column);
  if (column == width) return;
  for (; row + 4 <= rows; row += 4) chain_band<4>(chain, in, out, row, column, width);
  if (row + 2 <= rows) chain_band<2>(chain, in, out, row, column, width), row += 2;
  if (row < rows) chain_band<1>(chain, in, out, row, column, width);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
