// A few rows at the level amx, by vectors. Tiles would wait for narrow weights to be unpacked into memory, which takes longer than reading
// them; and several panels at a time are as many streams from memory, which give more of it than one: what hardware fetches ahead of a
// stream ends with its page.
//
// Sums of int8 are exact. Those of bfloat16 have the bits of _tile_dpbf16ps (Intel SDM, TDPBF16PS), so that a row gets the same
// result in any company: of each step of 32 values, the first and the second ones of the pairs have a sum each that starts from zero; both
// are added, then that is added to what was there. Denormal operands and results are zeros.
//
// With weights of 4 bits the values of a step are whole multiples of a unit (matmul_amx_digits.h), so that such a sum is exact in
// whatever order, and a few rows take it from dot products of bytes.
#pragma once

#include <utility>

#include "matmul_amx_digits.h"
#include "matmul_blocks.h"
#include "nibbles.h"
#include "quads.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr int kWordsAhead = 4096;  // bytes of each panel that are fetched before they are taken apart
constexpr int kPairVectorRows = 1, kQuadVectorRows = 6;  // of weights that tiles could read as they are

/// Panels that few rows of int8 take at once: as many as leave their sums in registers.
constexpr int quad_panels(std::int64_t rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : rows <= kQuadVectorRows ? 2 : 1; }
/// The same for a row of bfloat16.
constexpr int word_panels(Packing packing) { return packing == Packing::same || packing == Packing::int8 ? 4 : 2; }

/// What takes a word's values apart. bfloat16: the upper half of a float. int8: a value keeps its sign in a dot product that takes it alone. int4: it is looked up by the
/// lowest four bits. (VDPBF16PS would take pairs of int4, but is as slow as four multiply-adds here.)
struct PairWords {
  static constexpr Packing packing = Packing::same;
  static constexpr int depth = 2;  // values of a word
  static constexpr int second(int n) { return n % 2; }  // of a pair
  template <int N>
  INGOT_INLINE Vec value(Ints words) {
    return from_bits(N == 0 ? shift_left<16>(words) : words & broadcast_int((std::int32_t)0xffff0000));
  }
};
struct ByteWords {
  static constexpr Packing packing = Packing::int8;
  static constexpr int depth = 4;
  static constexpr int second(int n) { return n % 2; }
  template <int N>
  INGOT_INLINE Vec value(Ints words) {
    Ints value = broadcast_int(0);
    add_dots(value, broadcast_int(1 << (8 * N)), words);
    return to_float(value);
  }
};
struct Float8Words {
  static constexpr Packing packing = Packing::float8;
  static constexpr int depth = 4;
  static constexpr int second(int n) { return n % 2; }
  template <int N>
  INGOT_INLINE Vec value(Ints words) { return float8_of<N>(words); }
};
struct NibbleWords {
  static constexpr Packing packing = Packing::int4;
  static constexpr int depth = 8;
  static constexpr int second(int n) { return n / 4; }
  /// Those of the lower half by a lookup in floats; those of the upper half by one in their upper halves, with the same shifts.
  template <int N>
  INGOT_INLINE Vec value(Ints words) {
    alignas(64) static constexpr float kValues[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    const __m512i lowest = N % 4 == 0 ? words.v : _mm512_srli_epi32(words.v, 4 * (N % 4));
    if constexpr (N < 4) return {_mm512_permutexvar_ps(lowest, _mm512_load_ps(kValues))};
    return {_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, lowest, _mm512_load_si512(kPairValues)))};
  }
};

/// Adds the products of a word's values to the sums of the first ones of pairs and of the second ones. C: vectors of 16 outputs, two a panel.
template <class Words, int R, int C, int... N>
INGOT_INLINE void add_words(const std::byte* w, std::int64_t w_apart, const float* x, Vec (&sums)[2][R][C], std::integer_sequence<int, N...>) {
  Ints words[C];
  INGOT_UNROLL for (int c = 0; c < C; ++c) words[c] = words_at(w + c / 2 * w_apart, c % 2 * kLanes);
  const auto add = [&]<int I>(std::integral_constant<int, I>, int c) __attribute__((always_inline)) {
    const Vec value = Words::template value<I>(words[c]);
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      Vec& sum = sums[Words::second(I)][r][c];
      sum = fma(broadcast(x[r * kRowDepth + I]), value, sum);
    }
  };
  INGOT_UNROLL for (int c = 0; c < C; ++c) (add(std::integral_constant<int, N>(), c), ...);
}

template <int R, int C>
INGOT_INLINE void load_sums(const BlockProduct& p, Vec (&sums)[R][C]) {
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) sums[r][c] = p.first ? zero() : load(sum_at(p, r, c));
  }
}

template <int R, int C>
INGOT_INLINE void store_sums(const BlockProduct& p, const Vec (&sums)[R][C]) {
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(sum_at(p, r, c), sums[r][c]);
  }
}

/// Adds the sums of a group of k by its scales.
template <int R, int C>
INGOT_INLINE void add_group(const BlockProduct& p, const std::byte* scales, const Vec (&of_group)[R][C], Vec (&sums)[R][C]) {
  Vec scale[C];
  take_scales(p, scales, scale);
  INGOT_UNROLL for (int c = 0; c < C; ++c) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) sums[r][c] = fma(of_group[r][c], scale[c], sums[r][c]);
  }
}

/// Adds the products of the values [k, end) to sums, a step after the other; w and x go on behind them.
template <class Words, int R, int C>
INGOT_INLINE void add_steps(const BlockProduct& p, Vec (&to)[R][C], const std::byte*& w, const float*& x, int k, int end) {
  constexpr int kStep = 32;
  while (k < end) {
    Vec parts[2][R][C];
    INGOT_UNROLL for (int i = 0; i < 2 * R * C; ++i) parts[i / (R * C)][i / C % R][i % C] = zero();
    for (const int stop = k + kStep < end ? k + kStep : end; k < stop; k += Words::depth, w += kPackedBytes, x += Words::depth) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) __builtin_prefetch(w + kWordsAhead + c / 2 * p.w_apart + c % 2 * 64);
      add_words<Words, R, C>(w, p.w_apart, x, parts, std::make_integer_sequence<int, Words::depth>());
    }
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) to[r][c] = to[r][c] + (parts[0][r][c] + parts[1][r][c]);
    }
  }
}

/// The block's sums for R rows and C vectors of outputs. A function of its own: within it denormals are zeros.
template <class Words, int R, int C>
__attribute__((noinline)) void sum_rows(const BlockProduct& p, const float* x) {
  const std::byte* w = p.w;
  Vec sums[R][C];
  load_sums(p, sums);
  add_steps<Words, R, C>(p, sums, w, x, 0, p.k);
  store_sums(p, sums);
}

/// The sums of a row for a group of weights of 4 bits, a function of its own too.
template <int C>
__attribute__((noinline)) void sum_group(const BlockProduct& p, const std::byte* w, const float* x, int count, Vec (&sums)[1][C]) {
  INGOT_UNROLL for (int c = 0; c < C; ++c) sums[0][c] = zero();
  add_steps<NibbleWords, 1, C>(p, sums, w, x, 0, count);
}

/// Calls f, within which denormal operands and results are zeros. Not inlined, so that nothing else moves between the two settings.
template <class F>
__attribute__((noinline)) void with_zeros_for_denormals(const F& f) {
  constexpr unsigned kZeroDenormals = 0x8040;  // results and operands
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kZeroDenormals);
  f();
  _mm_setcsr(before);
}

/// A row by weights of 4 bits. What is scaled may be denormal, as behind tiles.
template <int C>
void sum_groups(const BlockProduct& p, const float* x) {
  const std::byte *w = p.w, *scales = p.scales;
  Vec sums[1][C];
  load_sums(p, sums);
  for (int k = 0; k < p.k; k += p.group, scales += p.scales_step) {
    const int count = p.group < p.k - k ? p.group : p.k - k;
    Vec of_group[1][C];
    with_zeros_for_denormals([&] { sum_group<C>(p, w, x + k, count, of_group); });
    w += (count + NibbleWords::depth - 1) / NibbleWords::depth * kPackedBytes;
    add_group(p, scales, of_group, sums);
  }
  store_sums(p, sums);
}

/// As sum_rows of weights of 4 bits, for rows that lie as digits.
template <int R, int C>
__attribute__((noinline)) void sum_digits(const BlockProduct& p) {
  const std::byte *w = p.w, *x = p.x, *scales = p.scales;
  Vec sums[R][C];
  load_sums(p, sums);
  Ints upper[R][C], middle[R][C], lower[R][C];
  const auto add_word = [&]() __attribute__((always_inline)) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) __builtin_prefetch(w + kWordsAhead + c / 2 * p.w_apart + c % 2 * 64);
    const auto digits = [&](int r, int at) __attribute__((always_inline)) { return broadcast_int(*(const std::int32_t*)(x + r * kXStride + at)); };
    INGOT_UNROLL for (int c = 0; c < C; ++c) {
      const Ints words = words_at(w + c / 2 * p.w_apart, c % 2 * kLanes), even = bytes_of_nibbles<0>(words), odd = bytes_of_nibbles<1>(words);
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        add_dots(upper[r][c], even, digits(r, kUpperDigits));
        add_dots(middle[r][c], even, digits(r, 0));
        add_dots(lower[r][c], even, digits(r, kLowerDigits));
        add_dots(upper[r][c], odd, digits(r, kUpperDigits + 4));
        add_dots(middle[r][c], odd, digits(r, 4));
        add_dots(lower[r][c], odd, digits(r, kLowerDigits + 4));
      }
    }
    w += kPackedBytes, x += 8;
  };
  for (int k = 0, step = 0; k < p.k; scales += p.scales_step) {
    Vec of_group[R][C];
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) of_group[r][c] = zero();
    }
    for (const int end = k + p.group < p.k ? k + p.group : p.k; k < end; k += kDigitStep, ++step) {
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        const Ints start = broadcast_int(*(const std::int32_t*)(p.x + r * kXStride + kDigitStarts + step * 4));
        INGOT_UNROLL for (int c = 0; c < C; ++c) upper[r][c] = middle[r][c] = broadcast_int(0), lower[r][c] = start;
      }
      if (end - k >= kDigitStep) {
        INGOT_UNROLL for (int i = 0; i < kDigitStep / 8; ++i) add_word();
      } else {
        for (int i = k; i < end; i += 8) add_word();
      }
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        const Vec unit = broadcast(*(const float*)(p.x + r * kXStride + kDigitUnits + step * 4));
        INGOT_UNROLL for (int c = 0; c < C; ++c)
          of_group[r][c] = fma(to_float(shift_left<8>(shift_left<8>(upper[r][c]) + middle[r][c]) + lower[r][c]), unit, of_group[r][c]);
      }
    }
    add_group(p, scales, of_group, sums);
  }
  store_sums(p, sums);
}

template <class Words>
void multiply_words_of(const BlockProduct& p) {
  alignas(64) float x[kVectorRows][kRowDepth];
  for (int r = 0; r < p.rows; ++r)
    for (int k = 0; k < p.k; k += kLanes) store(x[r] + k, load((const bfloat16*)(p.x + r * kXStride) + k));
  if constexpr (Words::depth == 8) {
    by_panels<word_panels(Packing::int4)>(p, [&]<int C>(const BlockProduct& part) { sum_groups<C>(part, x[0]); });
  } else {
    with_zeros_for_denormals([&] {
      switch (p.rows) {
        case 1: by_panels<word_panels(Words::packing)>(p, [&]<int C>(const BlockProduct& part) { sum_rows<Words, 1, C>(part, x[0]); }); break;
        case 2: sum_rows<Words, 2, 2>(p, x[0]); break;
        case 3: sum_rows<Words, 3, 2>(p, x[0]); break;
        default: sum_rows<Words, 4, 2>(p, x[0]); break;
      }
    });
  }
}

/// A block of words of 4 bits. A row that could not become digits is multiplied by itself.
void multiply_digits(const BlockProduct& p) {
  bool all = true;
  for (int r = 0; r < p.rows; ++r) all = all && has_digits(p.x + r * kXStride);
  if (all) {
    switch (p.rows) {
      case 1: return by_panels<word_panels(Packing::int4)>(p, []<int C>(const BlockProduct& part) { sum_digits<1, C>(part); });
      case 2: return sum_digits<2, 2>(p);
      case 3: return sum_digits<3, 2>(p);
      default: return sum_digits<4, 2>(p);
    }
  }
  BlockProduct row = p;
  row.rows = 1;
  for (int r = 0; r < p.rows; ++r, row.x += kXStride, row.accumulators += p.stride) {
    if (has_digits(row.x)) multiply_digits(row);
    else multiply_words_of<NibbleWords>(row);
  }
}

/// A block of words for up to kVectorRows rows; several panels only for one row.
void multiply_words(const BlockProduct& p) {
  if (p.packing == Packing::same) return multiply_words_of<PairWords>(p);
  if (p.packing == Packing::int8) return multiply_words_of<ByteWords>(p);
  if (p.packing == Packing::float8) return multiply_words_of<Float8Words>(p);
  multiply_digits(p);
}

/// The sums of R rows of int8 and C vectors of outputs, two a panel, over a block of quads.
template <int R, int C>
__attribute__((noinline)) void sum_quads(const BlockProduct& p) {
  constexpr int kAhead = 8192 / C;
  const std::byte *w = p.w, *x = p.x;
  Ints sums[R][C];
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    const Ints start = broadcast_int(*(const std::int32_t*)(x + r * kXStride + kRowSum));
    INGOT_UNROLL for (int c = 0; c < C; ++c) sums[r][c] = p.first ? start : bits(load(sum_at(p, r, c))) + start;
  }
  for (int k = 0; k < p.k; k += 4, w += kPackedBytes, x += 4) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) __builtin_prefetch(w + kAhead + c / 2 * p.w_apart + c % 2 * 64);
    INGOT_UNROLL for (int c = 0; c < C; ++c) {
      const Ints quads = load_quads(w + c / 2 * p.w_apart + c % 2 * 64);
      INGOT_UNROLL for (int r = 0; r < R; ++r) add_dots(sums[r][c], quads, broadcast_int(*(const std::int32_t*)(x + r * kXStride)));
    }
  }
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(sum_at(p, r, c), p.last ? to_float(sums[r][c]) : from_bits(sums[r][c]));
  }
}

/// A block of int8 for up to kQuadVectorRows rows.
template <int... R>
INGOT_INLINE void multiply_quads(const BlockProduct& p, std::integer_sequence<int, R...>) {
  static constexpr void (*by_rows[])(const BlockProduct&) = {[](const BlockProduct& all) {
    by_panels<quad_panels(R + 1)>(all, []<int C>(const BlockProduct& part) { sum_quads<R + 1, C>(part); });
  }...};
  by_rows[p.rows - 1](p);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
