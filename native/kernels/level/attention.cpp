// Ragged paged attention and rotary embedding for one level. The host half is kernels/attention.cpp.
#include "attention.h"

#include "attention_cache.h"
#include "attention_rows.h"

namespace ingot::INGOT_LEVEL {

namespace {

// ---- a chunk of the cache ----

/// count is a multiple of 16. What lies at `ahead` is fetched meanwhile.
template <class T>
void widen_vectors(const T* x, const T* ahead, float* y, std::int64_t count) {
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < count; i += kLanes) {
    store(y + i, load(x + i));
    __builtin_prefetch(ahead + i, 0, 3);
  }
}

/// Pairs of bfloat16: the first ones of 16 pairs, then the second ones.
void widen_pairs(const void* x, const void* ahead, float* y, std::int64_t count) {
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < count; i += 2 * kLanes) {
    store(y + i, load((const First*)x + i / 2));
    store(y + i + kLanes, load((const Second*)x + i / 2));
    __builtin_prefetch((const First*)ahead + i / 2, 0, 3);
  }
}

void widen_keys(const AttentionTask& task, const void* k, const void* ahead, float* y) {
  const std::int64_t count = kTokenGroup * task.head_dim;
  task.state_dtype == DType::bfloat16 ? widen_pairs(k, ahead, y, count) : widen_vectors((const float16*)k, (const float16*)ahead, y, count);
}

void widen_values(const AttentionTask& task, const void* v, const void* ahead, float* y) {
  if (in_column_pairs(task)) return widen_pairs(v, ahead, y, kTokenGroup * task.head_dim);
  with_floats(task.state_dtype, v, [&](auto* values) {
    widen_vectors(values, (decltype(values))ahead, y, kTokenGroup * task.head_dim);
  });
}

void pad_rows(const AttentionTask& task, const Parts& p, const void* x, float* y) {
  for (int t = 0; t < kTokenGroup; ++t, y += p.value_width) {
    store(y + p.value_width - kLanes, zero());
    convert(row_at(x, task.state_dtype, t * task.head_dim), task.state_dtype, y, DType::float32, task.head_dim);
  }
}

/// K and V of a cache of int8: there itself where they are multiplied as they are, else widened in scratch.
Operands operands_of_int8(const AttentionTask& task, const AttentionChunk& chunk, const Parts& p) {
  Operands o;
  o.v_stride = p.value_width;
  o.bfloat16_k = o.bfloat16_v = false;
  o.quads = in_quads(task), o.scaled = !o.quads;
  for (int g = chunk.first_group; g < chunk.last_group; ++g) {
    o.k[g] = chunk.k[g], o.k_ahead[g] = chunk.k_ahead[g];
    o.v[g] = chunk.v[g], o.v_ahead[g] = chunk.v_ahead[g];
    o.k_scale[g] = scales_of(chunk.k[g], p.width), o.v_scale[g] = scales_of(chunk.v[g], p.width);
    if (o.quads) continue;
    float *k = p.k + g * kTokenGroup * p.width, *v = p.v + g * kTokenGroup * p.value_width;
    widen_quads(chunk.k[g], chunk.k_ahead[g], k, p.width / 4, kTokenGroup);
    widen_quads(chunk.v[g], chunk.v_ahead[g], v, kTokenGroup / 4, p.value_width);
    o.k[g] = o.k_ahead[g] = k, o.v[g] = o.v_ahead[g] = v;
  }
  if (o.quads && chunk.first_group == 0 && chunk.last_group == kChunkGroups) read_value_scales(o, {0, kChunkTokens}, p.value_scales[0]);
#if defined(__AMX_INT8__)
  o.tiles = int8_in_tiles(task);
  if (o.tiles) gather_value_quads(p, chunk);
#endif
  return o;
}

#if defined(__AMX_BF16__)
/// K in the cache itself, V as tiles in scratch.
Operands operands_of_tiles(const AttentionTask& task, const AttentionChunk& chunk, const Parts& p) {
  Operands o;
  o.tiles = true;
  ValueRows values;
  values.stride = task.head_dim;
  for (int g = 0; g < kChunkGroups; ++g) {
    const bool there = g >= chunk.first_group && g < chunk.last_group;
    values.count[g] = there ? kTokenGroup : 0;
    if (!there) continue;
    o.k[g] = chunk.k[g], o.k_ahead[g] = chunk.k_ahead[g];
    values.from[g] = (const bfloat16*)chunk.v[g], values.ahead[g] = (const bfloat16*)chunk.v_ahead[g];
  }
  pack_value_tiles(task, p, values);
  return o;
}
#endif

#if defined(__AVX512BF16__)
/// K in the cache itself, V there too or in pairs of tokens in scratch. Those are made before all else, so the next chunk's values are fetched
/// beside this one's keys then, and its keys beside the values.
Operands operands_of_pairs(const AttentionTask& task, const AttentionChunk& chunk, const Parts& p) {
  Operands o;
  o.pairs = o.bfloat16_k = true;
  o.bfloat16_v = pairs_in_place(task, chunk.start);
  for (int g = 0; g < kChunkGroups; ++g) {
    o.k[g] = chunk.k[g], o.v[g] = chunk.v[g];
    o.k_ahead[g] = chunk.k_ahead[g], o.v_ahead[g] = chunk.v_ahead[g];
    if (o.bfloat16_v) continue;
    float* const v = p.v + g * (kTokenGroup / 2) * p.value_width;
    if (g >= chunk.first_group && g < chunk.last_group) pair_values(task, (const bfloat16*)chunk.v[g], task.head_dim, kTokenGroup, p.value_width, v);
    o.v[g] = v;
    o.k_ahead[g] = chunk.v_ahead[g], o.v_ahead[g] = chunk.k_ahead[g];
  }
  return o;
}
#endif

/// K and V in the cache itself, or widened to float32 in scratch.
Operands operands_of(const AttentionTask& task, const AttentionChunk& chunk, const Parts& p) {
  if (task.state_dtype == DType::int8) return operands_of_int8(task, chunk, p);
#if defined(__AMX_BF16__)
  if (in_tiles(task)) return operands_of_tiles(task, chunk, p);
#endif
#if defined(__AVX512BF16__)
  if (in_token_pairs(task)) return operands_of_pairs(task, chunk, p);
#endif
  constexpr int kFewRows = 2 * kTileRows;  // widening on the fly, once for each tile, is cheaper up to here
  const bool narrow = task.state_dtype != DType::float32, few = task.state_dtype == DType::bfloat16 && task.rows <= kFewRows;
  const bool padded = p.value_width != task.head_dim, widen = narrow && !few;
  Operands o;
  o.v_stride = p.value_width;
  o.bfloat16_k = task.state_dtype == DType::bfloat16 && !widen;
  o.bfloat16_v = few && !padded;
  for (int g = chunk.first_group; g < chunk.last_group; ++g) {
    o.k[g] = chunk.k[g], o.k_ahead[g] = chunk.k_ahead[g];
    o.v[g] = chunk.v[g], o.v_ahead[g] = chunk.v_ahead[g];
    float* k = p.k + g * kTokenGroup * p.width;
    float* v = p.v + g * kTokenGroup * p.value_width;
    if (widen) {
      widen_keys(task, chunk.k[g], chunk.k_ahead[g], k);
      o.k[g] = o.k_ahead[g] = k;
    }
    if (widen || padded) {
      padded ? pad_rows(task, p, chunk.v[g], v) : widen_values(task, chunk.v[g], chunk.v_ahead[g], v);
      o.v[g] = o.v_ahead[g] = v;
    }
  }
  return o;
}

void begin_paged(const AttentionTask& task) {
  if (!in_quads(task)) return begin_rows(task);
  begin_quads(task);
  begin_blocks(task);
}

void attend(const AttentionTask& task, const AttentionChunk& chunk) {
  const Parts p = parts_of(task);
  const Operands o = operands_of(task, chunk, p);
  const auto after = [](int, int) {};
  if (task.slopes != nullptr)
    attend_rows<Sloped>(task, p, o, chunk.start, after);
  else
    attend_rows<Unmasked>(task, p, o, chunk.start, after);
}

void fold(const AttentionTask& task, std::int64_t segment) {
  task.slopes != nullptr ? fold_rows<Sloped>(task, segment) : fold_rows<Unmasked>(task, segment);
}

// ---- rotary embedding ----

/// One vector of each half of all heads, by the same cosines and sines. kWhole: all of its lanes are in the half.
template <bool kWhole, class T>
INGOT_INLINE void rotate_vectors(const Rotation& r, const T* x, T* y, std::int64_t i) {
  const auto read = [&](const auto* from) __attribute__((always_inline)) {
    if constexpr (kWhole) return load(from + i);
    else return load_tail(from, i, r.half);
  };
  const auto write = [&](T* to, Vec v) __attribute__((always_inline)) {
    if constexpr (kWhole) store(to + i, v);
    else store_tail(to, i, r.half, v);
  };
  const Vec c = read(r.cos), s = read(r.sin);
  for (std::int64_t head = 0; head < r.heads; ++head, x += r.x_stride, y += r.y_stride) {
    const Vec a = read(x), b = read(x + r.half);
    write(y, fnma(b, s, a * c));
    write(y + r.half, fma(a, s, b * c));
  }
}

template <class T>
void rotate_halves(const Rotation& r, const T* x, T* y) {
  std::int64_t i = 0;
  for (; i + kLanes <= r.half; i += kLanes) rotate_vectors<true>(r, x, y, i);
  if (i < r.half) rotate_vectors<false>(r, x, y, i);
}

template <class T>
void rotate_pairs(const Rotation& r, const T* x, T* y) {
  for (std::int64_t head = 0; head < r.heads; ++head, x += r.x_stride, y += r.y_stride) {
    for (std::int64_t i = 0; i < r.half; ++i) {
      const float a = load_one(x + 2 * i), b = load_one(x + 2 * i + 1);
      store_one(y + 2 * i, a * r.cos[i] - b * r.sin[i]);
      store_one(y + 2 * i + 1, b * r.cos[i] + a * r.sin[i]);
    }
  }
}

template <class T>
void rotate(const Rotation& r) {
  const T* x = (const T*)r.x;
  T* y = (T*)r.y;
  r.interleaved ? rotate_pairs(r, x, y) : rotate_halves(r, x, y);
  if (y == x || r.width == 2 * r.half) return;
  for (std::int64_t head = 0; head < r.heads; ++head, x += r.x_stride, y += r.y_stride) convert_row(x + 2 * r.half, y + 2 * r.half, r.width - 2 * r.half);
}

void rope(const Rotation& r) {
  if (r.dtype == DType::float32) rotate<float>(r);
  else if (r.dtype == DType::bfloat16) rotate<bfloat16>(r);
  else rotate<float16>(r);
}

}  // namespace

const AttentionTable attention_table = {begin_paged, clear, attend, fold, finish_rows, rope, convert, quantize};

}  // namespace ingot::INGOT_LEVEL
