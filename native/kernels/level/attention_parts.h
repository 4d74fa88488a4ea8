// A task of attention and what it reads of a chunk, for one level.
#pragma once

#include "attention.h"
#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

// ---- a task ----

/// The parts of a task's memory.
struct Parts {
  float *q, *k, *v, *scores, *bias, *units;
  ValueScales* value_scales;
  float *sum, *maximum, *weight;  // weight: 16 partial sums a row, one per token of a group
  int width, value_width;
};

Parts parts_of(const AttentionTask& task, const AttentionSums& sums) {
  const AttentionScratch& own = task.scratch;
  return {own.q, own.k, own.v, own.scores, own.bias, own.units, own.value_scales, sums.sum, sums.maximum, sums.weight, padded_width(task.head_dim), padded_width(task.value_dim)};
}
Parts parts_of(const AttentionTask& task) { return parts_of(task, task.sums); }
Parts totals_of(const AttentionTask& task) { return parts_of(task, task.totals); }

const char* row_at(const void* base, DType dtype, std::int64_t offset) {
  return (const char*)base + offset * (dtype == DType::float32 ? 4 : 2);
}

/// Whether q and K are kept as pairs of bfloat16 for the instruction that multiplies those. Depends on the operands' types
/// and width alone, as bits do.
bool in_pairs([[maybe_unused]] const AttentionTask& task) {
#if defined(__AVX512BF16__)
  return task.q_dtype == DType::bfloat16 && task.state_dtype == DType::bfloat16 && task.head_dim % 2 == 0;
#else
  return false;
#endif
}

/// Whether the products are made by tiles. Depends on the operands' types and widths alone, as bits do.
bool in_tiles([[maybe_unused]] const AttentionTask& task) {
#if defined(__AMX_BF16__)
  return in_pairs(task) && task.head_dim % 32 == 0 && task.value_dim % 32 == 0;
#else
  return false;
#endif
}

/// Whether weights and values are multiplied in pairs of bfloat16 too, of two tokens, without tiles.
bool in_token_pairs(const AttentionTask& task) { return in_pairs(task) && !in_tiles(task); }

/// Whether sums are kept as the even and the odd columns of every 32, as they come out of bfloat16 V that is widened, not multiplied.
bool in_column_pairs(const AttentionTask& task) { return task.column_pairs && !in_pairs(task); }

/// Where a task's rows lie in queries or results, one after the other.
class RowOffset {
 public:
  RowOffset(const AttentionTask& task, std::int64_t token_stride, std::int64_t head_stride)
      : group_(task.group), head_((int)(task.first_row % task.group)), head_stride_(head_stride), to_token_(token_stride - (task.group - 1) * head_stride),
        offset_(task.first_row / task.group * token_stride + head_ * head_stride) {}

  std::int64_t next() {
    const std::int64_t here = offset_;
    if (++head_ < group_) offset_ += head_stride_;
    else head_ = 0, offset_ += to_token_;
    return here;
  }

 private:
  int group_, head_;
  std::int64_t head_stride_, to_token_, offset_;
};

/// Fetches a task's rows of queries and of results. Those of one head each lie a token apart, where hardware does not look for
/// what comes next.
void fetch_rows(const AttentionTask& task) {
  RowOffset q_offset(task, task.q_token_stride, task.q_head_stride), out_offset(task, task.out_token_stride, task.out_head_stride);
  for (int r = 0; r < task.rows; ++r) {
    const char *const q = row_at(task.q, task.q_dtype, q_offset.next()), *const end = row_at(q, task.q_dtype, task.head_dim);
    const char *const out = row_at(task.out, task.out_dtype, out_offset.next()), *const out_end = row_at(out, task.out_dtype, task.value_dim);
    for (const char* at = q; at < end; at += 64) __builtin_prefetch(at, 0, 3);
    for (const char* at = out; at < out_end; at += 64) __builtin_prefetch(at, 1, 3);
  }
}

void begin(const AttentionTask& task) {
  fetch_rows(task);
  const Parts p = parts_of(task);
  const bool pairs = in_pairs(task);
  RowOffset offset(task, task.q_token_stride, task.q_head_stride);
  for (int r = 0; r < task.rows; ++r) {
    const char* const q = row_at(task.q, task.q_dtype, offset.next());
    float* const to = p.q + r * p.width;
    if (!pairs) {
      convert(q, task.q_dtype, to, DType::float32, task.head_dim);
      continue;
    }
    const int count = task.head_dim / 2;  // of pairs, which move as floats do, without a call of memcpy for each row
    for (int i = 0; i < count; i += kLanes) store(to + i, load_tail((const float*)q, i, count));
  }
}

void clear(const AttentionTask& task) {
  const Parts p = parts_of(task);
  for (int r = 0; r < task.rows; ++r) {
    p.maximum[r] = -__builtin_inff();
    store(p.weight + r * kTokenGroup, zero());
    for (int d = 0; d < p.value_width; d += kLanes) store(p.sum + r * p.value_width + d, zero());
  }
}

/// The even and the odd columns of every 32, one of each in turn.
void join_columns(float* sum, int width) {
  for (int d = 0; d < width; d += 2 * kLanes, sum += 2 * kLanes) {
    float joined[2 * kLanes];
    for (int i = 0; i < kLanes; ++i) joined[2 * i] = sum[i], joined[2 * i + 1] = sum[kLanes + i];
    __builtin_memcpy(sum, joined, sizeof joined);
  }
}

/// Columns as pack_value_tiles (attention_tiles.h) leaves them, in their order, times 1 / total.
void join_tile_columns([[maybe_unused]] float* sum, [[maybe_unused]] int width, [[maybe_unused]] Vec total) {
#if defined(__AMX_BF16__)
  for (int d = 0; d < width; d += 32, sum += 32) {
    const __m512 a = (load(sum) / total + zero()).v, b = (load(sum + kLanes) / total + zero()).v;  // -0 depends on what else was added
    const __m512 low = _mm512_shuffle_f32x4(a, b, 0x44), high = _mm512_shuffle_f32x4(a, b, 0xee);
    store(sum, {_mm512_shuffle_f32x4(low, low, 0xd8)});
    store(sum + kLanes, {_mm512_shuffle_f32x4(high, high, 0xd8)});
  }
#endif
}

void finish(const AttentionTask& task) {
  const Parts p = totals_of(task);
  RowOffset offset(task, task.out_token_stride, task.out_head_stride);
  for (int r = 0; r < task.rows; ++r) {
    const float weight = reduce_add(load(p.weight + r * kTokenGroup));
    const Vec total = broadcast(weight == 0 && !task.empty_nan ? 1.0f : weight);  // 0 only when all scores were -inf
    float* sum = p.sum + r * p.value_width;
    if (in_tiles(task)) {
      join_tile_columns(sum, p.value_width, total);
    } else {
      const bool unsigned_zero = in_token_pairs(task);  // see join_tile_columns
      for (int d = 0; d < p.value_width; d += kLanes) {
        const Vec mean = load(sum + d) / total;
        store(sum + d, unsigned_zero ? mean + zero() : mean);
      }
      if (in_column_pairs(task)) join_columns(sum, p.value_width);
    }
    convert(sum, DType::float32, (void*)row_at(task.out, task.out_dtype, offset.next()), task.out_dtype, task.value_dim);
  }
}

// ---- a chunk ----

/// K and V of the chunk as the products read them: K [head_dim][16] of each token group
/// (in pairs [head_dim / 2][16][2]), V rows v_stride elements apart.
struct Operands {
  const void* k[kChunkGroups];
  const void* v[kChunkGroups];
  const void* k_ahead[kChunkGroups];  // what the first tile of rows fetches on its way
  const void* v_ahead[kChunkGroups];
  std::int64_t v_stride;
  bool bfloat16_k, bfloat16_v;  // else float32
  bool tiles = false;           // K is as AMX tiles read it, V in scratch (attention_blocks.h)
  bool pairs = false;           // K is in pairs of bfloat16, V in pairs of tokens in scratch, or as it lies where bfloat16_v (attention_pairs.h)
  bool quads = false;           // K and V are int8, as the cache has them (attention_int8.h)
  bool scaled = false;          // K and V were int8: the tokens' scores and weights are multiplied by scales
  const float *k_scale[kChunkGroups], *v_scale[kChunkGroups];  // of int8: of a group's 16 tokens
};

/// The operands of one of several tiles of rows: each fetches its share of the groups ahead.
Operands operands_of_tile(const Operands& o, int tile, int tiles) {
  Operands own = o;
  for (int g = 0; g < kChunkGroups; ++g)
    if (g * tiles / kChunkGroups != tile) own.k_ahead[g] = o.k[g], own.v_ahead[g] = o.v[g];
  return own;
}

/// Tokens of the chunk that a row sees: [first, last), counted from the chunk's start.
struct Seen {
  int first, last;
  bool none() const { return first >= last; }
  bool whole() const { return first == 0 && last == kChunkTokens; }
  /// Those of a group, a bit each.
  std::uint16_t lanes(int group) const {
    const auto below = [](int n) { return n == kChunkTokens ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1; };
    return (std::uint16_t)((below(last) & ~below(first)) >> group * kTokenGroup);
  }
};

int within_chunk(std::int64_t token) { return token < 0 ? 0 : token > kChunkTokens ? kChunkTokens : (int)token; }

alignas(64) const float kIota[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

}  // namespace

}  // namespace ingot::INGOT_LEVEL
