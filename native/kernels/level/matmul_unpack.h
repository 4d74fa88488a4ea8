// Panels of narrow weights (matmul.h, Packing) as the panels of floats that the products read, a block of k at a time. So a
// narrow weight has the order of summation of a float one, and its rows do not depend on their company either.
#pragma once

#include "matmul.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// Rows k and k + 1 of a panel, for 16 outputs from `column` on. `Exact`: the values are ones that T has.
template <class T, bool Exact>
INGOT_INLINE void store_rows(std::byte* panel, int k, int column, Vec even, Vec odd) {
  if constexpr (__is_same(T, bfloat16)) {
    const auto rounded = [](Vec x) {
      const Ints word = bits(x), lowest = shift_right<16>(word) & broadcast_int(1);
      return Exact ? word : word + broadcast_int(0x7fff) + lowest;
    };
    const Ints pair = (shift_right<16>(rounded(even)) & broadcast_int(0xffff)) | (rounded(odd) & broadcast_int((std::int32_t)0xffff0000));
    store((float*)(panel + (k * kPanel + 2 * column) * 2), from_bits(pair));
  } else {
    store((T*)panel + k * kPanel + column, even);
    store((T*)panel + (k + 1) * kPanel + column, odd);
  }
}

/// The Nth value of `Bits` bits in each word, with its sign.
template <int Bits, int N>
INGOT_INLINE Vec value_of(Ints word) {
  return to_float(shift_right<32 - Bits>(shift_left<32 - Bits * (N + 1)>(word)));
}

INGOT_INLINE Ints words_at(const std::byte* from, int column) { return bits(load((const float*)(from + column * 4))); }

template <class T>
INGOT_INLINE void unpack_int8(const std::byte* from, int k, std::byte* panel) {
  for (int row = 0; row < k; row += 4, from += kPanel * 4)
    for (int column = 0; column < kPanel; column += kLanes) {
      const Ints word = words_at(from, column);
      store_rows<T, true>(panel, row, column, value_of<8, 0>(word), value_of<8, 1>(word));
      store_rows<T, true>(panel, row + 2, column, value_of<8, 2>(word), value_of<8, 3>(word));
    }
}

/// `Scaled`: times the scales of their groups, rounded once. `first`: of the block among all of k, which says whose scales are whose.
template <class T, bool Scaled>
INGOT_INLINE void unpack_int4(const std::byte* from, std::int64_t first, int k, const float* scales, int group, std::byte* panel) {
  for (int row = 0; row < k; row += 8, from += kPanel * 4)
    for (int column = 0; column < kPanel; column += kLanes) {
      const Ints word = words_at(from, column);
      const auto store_pair = [&](int more, Vec even, Vec odd) {
        if constexpr (Scaled) {
          const Vec scale = load(scales + (first + row) / group * kPanel + column);
          store_rows<T, false>(panel, row + more, column, even * scale, odd * scale);
        } else {
          store_rows<T, true>(panel, row + more, column, even, odd);
        }
      };
      store_pair(0, value_of<4, 0>(word), value_of<4, 1>(word));
      store_pair(2, value_of<4, 2>(word), value_of<4, 3>(word));
      store_pair(4, value_of<4, 4>(word), value_of<4, 5>(word));
      store_pair(6, value_of<4, 6>(word), value_of<4, 7>(word));
    }
}

/// Floats from one panel's scales to the next one's.
INGOT_INLINE std::int64_t scales_of_panel(const MatmulJob& job) { return (job.k + job.group - 1) / job.group * kPanel; }

/// A block of k of one panel: `number` counts the job's panels, `from` is where its block lies.
template <class T, bool Scaled>
__attribute__((noinline)) void unpack(const MatmulJob& job, std::int64_t number, const std::byte* from, std::int64_t first, int k,
                                      std::byte* panel) {
  if (job.packing == Packing::int8) return unpack_int8<T>(from, k, panel);
  unpack_int4<T, Scaled>(from, first, k, job.scales + number * scales_of_panel(job), job.group, panel);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
