// A row or two of bfloat16 against narrow weights at the level amx, by vectors: tiles would wait for weights to be unpacked
// into memory, which takes longer than reading them.
//
// The sums have the bits of _tile_dpbf16ps (Intel SDM, TDPBF16PS), so that a row gets the same result in any company: of each step
// of 32 values, the even and the odd ones have a sum each that starts from zero; both are added, then that is added to what was
// there. Denormal operands and results are zeros.
#pragma once

#include <utility>

#include "matmul_blocks.h"

namespace ingot::INGOT_LEVEL {

namespace {

constexpr int kVectorRows = 2;

/// Value N of each word as a float.
template <int Bits, int N>
INGOT_INLINE Vec narrow_value(Ints words) {
  if constexpr (Bits == 8) return value_of<8, N>(words);
  alignas(64) static constexpr float kValues[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(words.v, 4 * (N % 8)), _mm512_load_ps(kValues))};  // by the lowest four bits
}

/// Adds the products of a word's values to the sums of the even ones and of the odd ones.
template <int Bits, int R, int... N>
INGOT_INLINE void add_words(const std::byte* w, const float* x, std::int64_t x_stride, Vec (&sums)[2][R][2], std::integer_sequence<int, N...>) {
  const Ints words[2] = {words_at(w, 0), words_at(w, kLanes)};
  const auto add = [&]<int I>(std::integral_constant<int, I>) __attribute__((always_inline)) {
    INGOT_UNROLL for (int c = 0; c < 2; ++c) {
      const Vec value = narrow_value<Bits, I>(words[c]);
      INGOT_UNROLL for (int r = 0; r < R; ++r) sums[I % 2][r][c] = fma(broadcast(x[r * x_stride + I]), value, sums[I % 2][r][c]);
    }
  };
  (add(std::integral_constant<int, N>()), ...);
}

/// The block's sums. A function of its own: within it denormals are zeros.
template <int Bits, int R>
__attribute__((noinline)) void sum_rows(const BlockProduct& p, const float* x, std::int64_t x_stride) {
  constexpr int kDepth = 32 / Bits, kStep = 32, kAhead = 4096, kScalesAhead = 16;
  const std::byte* w = p.w;
  const float* scales = p.scales;
  Vec sums[R][2];
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < 2; ++c) sums[r][c] = p.first ? zero() : load(p.accumulators + r * p.stride + c * kLanes);
  }
  const auto add_steps = [&](Vec (&to)[R][2], int k, int end) __attribute__((always_inline)) {
    while (k < end) {
      Vec parts[2][R][2];
      INGOT_UNROLL for (int i = 0; i < 4 * R; ++i) parts[i / (2 * R)][i / 2 % R][i % 2] = zero();
      for (const int stop = k + kStep < end ? k + kStep : end; k < stop; k += kDepth, w += kPackedBytes, x += kDepth) {
        __builtin_prefetch(w + kAhead);
        __builtin_prefetch(w + kAhead + 64);
        add_words<Bits, R>(w, x, x_stride, parts, std::make_integer_sequence<int, kDepth>());
      }
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        INGOT_UNROLL for (int c = 0; c < 2; ++c) to[r][c] = to[r][c] + (parts[0][r][c] + parts[1][r][c]);
      }
    }
  };
  if constexpr (Bits == 8) {
    add_steps(sums, 0, p.k);
  } else {
    for (int k = 0; k < p.k; k += p.group, scales += kPanel) {
      Vec of_group[R][2];
      INGOT_UNROLL for (int r = 0; r < R; ++r) of_group[r][0] = of_group[r][1] = zero();
      add_steps(of_group, k, k + p.group < p.k ? k + p.group : p.k);
      __builtin_prefetch(scales + kScalesAhead * kPanel);
      __builtin_prefetch(scales + kScalesAhead * kPanel + kLanes);
      INGOT_UNROLL for (int c = 0; c < 2; ++c) {
        const Vec scale = load(scales + c * kLanes);
        INGOT_UNROLL for (int r = 0; r < R; ++r) sums[r][c] = fma(of_group[r][c], scale, sums[r][c]);
      }
    }
  }
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < 2; ++c) store(p.accumulators + r * p.stride + c * kLanes, sums[r][c]);
  }
}

/// A block of words for up to kVectorRows rows.
void multiply_words(const BlockProduct& p) {
  constexpr int kDepth = kTileBlocking.depth;
  alignas(64) float x[kVectorRows][kDepth];
  for (int r = 0; r < p.rows; ++r)
    for (int k = 0; k < p.k; k += kLanes) store(x[r] + k, load((const bfloat16*)(p.x + r * kXStride) + k));
  constexpr unsigned kZeroDenormals = 0x8040;  // results and operands
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kZeroDenormals);
  if (p.packing == Packing::int8) p.rows == 1 ? sum_rows<8, 1>(p, x[0], kDepth) : sum_rows<8, 2>(p, x[0], kDepth);
  else p.rows == 1 ? sum_rows<4, 1>(p, x[0], kDepth) : sum_rows<4, 2>(p, x[0], kDepth);
  _mm_setcsr(before);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
