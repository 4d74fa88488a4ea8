// What a cache of int8 takes from keys, values and queries, for one level: whole numbers and a scale.
#pragma once

#include "attention_int8.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// The greatest magnitude; NaN where an element is not finite.
template <class T>
float magnitude(const T* x, std::int64_t count) {
  Vec most = zero(), faults = zero();  // faults: NaN where an element is not finite
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Vec v = load_tail(x, i, count);
    most = max(most, abs(v));
    faults = faults + (v - v);
  }
  const float fault = reduce_add(faults);
  return fault == 0 ? reduce_max(most) : fault;
}

/// x / scale in whole numbers up to `most`; 0 where the scale is 0 or NaN. A denormal scale rounds far.
INGOT_INLINE Ints whole_numbers(Vec x, float scale, float most) {
  const Vec unit = broadcast(scale > 0 ? scale : 1.0f), limit = broadcast(most);
  return truncate_to_int(round_even(min(max(x / unit, negate(limit)), limit)));
}

float quantize(const void* x, DType dtype, std::int64_t count, std::int8_t* y) {
  float scale = 0;
  with_floats(dtype, x, [&](auto* from) {
    scale = magnitude(from, count) / 127.0f;
    for (std::int64_t i = 0; i < count; i += kLanes) store_bytes(y + i, whole_numbers(load_tail(from, i, count), scale, 127.0f));
  });
  return scale;
}

/// Quads [width / 4][16][4] to rows [width][16], or [4][width][4] to rows [16][width]: four rows, `stride` apart, of each row of
/// `columns` quads. What lies at `ahead` is fetched meanwhile.
void widen_quads(const void* x, const void* ahead, float* y, int rows, int columns) {
  const auto *from = (const std::byte*)x, *later = (const std::byte*)ahead;
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < columns; i += kLanes, from += 4 * kLanes, later += 4 * kLanes) {
      const Ints quads = bits(load((const float*)from));
      float* to = y + (std::int64_t)4 * row * columns + i;
      store(to, value_of<8, 0>(quads));
      store(to + columns, value_of<8, 1>(quads));
      store(to + 2 * columns, value_of<8, 2>(quads));
      store(to + 3 * columns, value_of<8, 3>(quads));
      __builtin_prefetch(later, 0, 3);
    }
  }
}

#if INGOT_ATTENTION_QUADS

void begin_quads(const AttentionTask& task) {
  const Parts p = parts_of(task);
  float* const wide = p.k;
  for (int r = 0; r < task.rows; ++r) {
    const std::int64_t row = task.first_row + r;
    const std::int64_t offset = row / task.group * task.q_token_stride + row % task.group * task.q_head_stride;
    store(wide + p.width - kLanes, zero());
    convert(row_at(task.q, task.q_dtype, offset), task.q_dtype, wide, DType::float32, task.head_dim);
    const float scale = magnitude(wide, p.width) / kMostQuery;
    Ints highs = broadcast_int(0), lows = broadcast_int(0);
    std::byte* const to = query_row(p, r);
    const bool apart = int8_in_tiles(task);
    std::byte* const low_to = stacks_digits(task) ? query_row(p, r + kStackedRows) : apart ? to + p.width : to + kLanes;
    for (int i = 0; i < p.width; i += kLanes) {
      const Ints q = whole_numbers(load(wide + i), scale, kMostQuery);
      const Ints high = shift_right<8>(q + broadcast_int(128)), low = q - shift_left<8>(high);
      store_bytes((std::int8_t*)to + (apart ? i : 2 * i), high);
      store_bytes((std::int8_t*)low_to + (apart ? i : 2 * i), low);
      highs = highs + high, lows = lows + low;
    }
    const std::int32_t first_high = kRowSums ? -128 * (std::int32_t)reduce_add(to_float(highs)) : 0;
    const std::int32_t first_low = kRowSums ? -128 * (std::int32_t)reduce_add(to_float(lows)) : 0;
    __builtin_memcpy(to + 2 * p.width, &scale, 4);
    __builtin_memcpy(to + 2 * p.width + 4, &first_high, 4);
    __builtin_memcpy(to + 2 * p.width + 8, &first_low, 4);
  }
}

bool in_quads(const AttentionTask& task) { return task.state_dtype == DType::int8; }

#else

bool in_quads(const AttentionTask&) { return false; }
void begin_quads(const AttentionTask&) {}

#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
