// Attention over whole tensors for one level. Chunks of keys are put into the order of the paged cache, [head_dim][16]
// for each group of 16 tokens, and go the same way from there (attention_rows.h). The host half is
// kernels/dense_attention.cpp.
#include "dense_attention.h"

#include "attention_rows.h"
#include "transpose.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// The keys of a group, `count` of 16; the missing ones are zeros.
template <class T>
void pack_keys(const T* k, std::int64_t stride, int count, int head_dim, float* y) {
  for (int d = 0; d < head_dim; d += kLanes) {
    Vec x[kTokenGroup];
    for (int t = 0; t < kTokenGroup; ++t) x[t] = t < count ? load_tail(k + t * stride, d, head_dim) : zero();
    transpose(x, y + d * kTokenGroup);
  }
}

/// The same of pairs, which are moved as floats are.
void pack_pairs(const bfloat16* k, std::int64_t stride, int count, int head_dim, float* y) {
  for (int d = 0; d < head_dim / 2; d += kLanes) {
    Vec x[kTokenGroup];
    for (int t = 0; t < kTokenGroup; ++t) x[t] = t < count ? load_tail((const float*)(k + t * stride), d, head_dim / 2) : zero();
    transpose(x, y + d * kTokenGroup);
  }
}

template <class T>
void pack_values(const T* v, std::int64_t stride, int count, int value_dim, int width, float* y) {
  for (int t = 0; t < count; ++t, v += stride, y += width)
    for (int d = 0; d < value_dim; d += kLanes) store(y + d, load_tail(v, d, value_dim));
}

/// Values are read where they lie when there are few rows to share the cost of copying them.
bool values_in_place(const AttentionTask& task, const Parts& p, const KeyChunk& chunk) {
  if (task.state_dtype != DType::float32 || p.value_width != task.value_dim) return false;
  return task.rows <= 2 * kTileRows || chunk.v_stride == p.value_width;
}

#if defined(__AMX_BF16__)
Operands pack_tiles(const AttentionTask& task, const Parts& p, const KeyChunk& chunk) {
  Operands o;
  o.tiles = true;
  ValueRows values;
  values.stride = chunk.v_stride;
  for (int g = 0; g < kChunkGroups; ++g) {
    const int left = chunk.count - g * kTokenGroup;
    const int count = values.count[g] = left < 0 ? 0 : left < kTokenGroup ? left : kTokenGroup;
    float* const k = p.k + g * kTokenGroup * p.width;
    o.k[g] = o.k_ahead[g] = k;
    if (count == 0) continue;
    pack_pairs((const bfloat16*)chunk.k + g * kTokenGroup * chunk.k_stride, chunk.k_stride, count, task.head_dim, k);
    values.from[g] = values.ahead[g] = (const bfloat16*)chunk.v + g * kTokenGroup * chunk.v_stride;
  }
  pack_value_tiles(task, p, values);
  return o;
}
#endif

Operands pack(const AttentionTask& task, const Parts& p, const KeyChunk& chunk) {
#if defined(__AMX_BF16__)
  if (in_tiles(task)) return pack_tiles(task, p, chunk);
#endif
  Operands o;
  o.bfloat16_k = o.bfloat16_v = false;
  const bool in_place = values_in_place(task, p, chunk);
  o.v_stride = in_place ? chunk.v_stride : p.value_width;
  for (int g = 0; g < kChunkGroups && g * kTokenGroup < chunk.count; ++g) {
    const int left = chunk.count - g * kTokenGroup, count = left < kTokenGroup ? left : kTokenGroup;
    float* k = p.k + g * kTokenGroup * p.width;
    float* v = p.v + g * kTokenGroup * p.value_width;
    if (in_pairs(task)) {
      pack_pairs((const bfloat16*)chunk.k + g * kTokenGroup * chunk.k_stride, chunk.k_stride, count, task.head_dim, k);
    } else {
      with_floats(task.state_dtype, chunk.k, [&](auto* keys) {
        pack_keys(keys + g * kTokenGroup * chunk.k_stride, chunk.k_stride, count, task.head_dim, k);
      });
    }
    o.k[g] = k;
    o.v[g] = v;
#if defined(__AVX512BF16__)
    if (in_token_pairs(task)) {
      o.pairs = true;
      o.v[g] = v = p.v + g * (kTokenGroup / 2) * p.value_width;
      pair_values(task, (const bfloat16*)chunk.v + g * kTokenGroup * chunk.v_stride, chunk.v_stride, count, p.value_width, v);
      continue;
    }
#endif
    with_floats(task.state_dtype, chunk.v, [&](auto* values) {
      const auto* from = values + g * kTokenGroup * chunk.v_stride;
      if (in_place)
        o.v[g] = from;
      else
        pack_values(from, chunk.v_stride, count, task.value_dim, p.value_width, v);
    });
  }
  return operands_of_tile(o, -1, 1);
}

/// Fetches its share of what lies ahead with each row, a few lines at a time: more would wait for each other.
struct Fetch {
  const KeyChunk& chunk;
  void operator()(int row, int rows) const {
    for (const Ahead& ahead : chunk.ahead) {
      const std::int64_t last = ahead.rows * (row + 1) / rows;
      for (std::int64_t r = ahead.rows * row / rows; r < last; ++r)
        for (std::int64_t at = 0; at < ahead.bytes; at += 64) __builtin_prefetch((const char*)ahead.data + r * ahead.stride + at, 0, 3);
    }
  }
};

void attend(const AttentionTask& task, const KeyChunk& chunk) {
  const Parts p = parts_of(task);
  const Operands o = pack(task, p, chunk);
  if (task.mask.data == nullptr) return attend_rows<Unmasked>(task, p, o, chunk.start, Fetch{chunk});
  if (same_for_all_rows(task)) bias_of_row(task, 0, chunk.start, p.bias);
  attend_rows<Masked>(task, p, o, chunk.start, Fetch{chunk});
}

}  // namespace

const DenseAttentionTable dense_attention_table = {begin_rows, clear, attend, finish_rows};

}  // namespace ingot::INGOT_LEVEL
