// Ragged paged attention and rotary embedding for one level. The host half is kernels/attention.cpp.
//
// A row gets the same bits in a tile of any height: scores are whole chains (attention_tile.h), the softmax is per row, and V
// is added from the row's first token to its last, never a token that the row does not see (0 * inf would not be 0).
#include "attention.h"

#include "attention_tile.h"
#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

// ---- a task ----

/// The parts of a task's scratch memory.
struct Parts {
  float *q, *sum, *maximum, *weight, *k, *v, *scores;
  int width;
};

Parts parts_of(const AttentionTask& task) {
  Parts p;
  p.width = padded_width(task.head_dim);
  p.q = task.scratch;
  p.sum = p.q + kRowBlock * p.width;
  p.maximum = p.sum + kRowBlock * p.width;
  p.weight = p.maximum + kRowBlock;  // 16 partial sums a row, one per token of a group
  p.k = p.weight + kRowBlock * kTokenGroup;
  p.v = p.k + kChunkTokens * p.width;
  p.scores = p.v + kChunkTokens * p.width;
  return p;
}

const char* row_at(const void* base, DType dtype, std::int64_t offset) {
  return (const char*)base + offset * (dtype == DType::float32 ? 4 : 2);
}

void begin(const AttentionTask& task) {
  const Parts p = parts_of(task);
  for (int r = 0; r < task.rows; ++r) {
    const std::int64_t row = task.first_row + r;
    const std::int64_t offset = row / task.group * task.q_token_stride + row % task.group * task.q_head_stride;
    convert(row_at(task.q, task.q_dtype, offset), task.q_dtype, p.q + r * p.width, DType::float32, task.head_dim);
    p.maximum[r] = -__builtin_inff();
    store(p.weight + r * kTokenGroup, zero());
    for (int d = 0; d < p.width; d += kLanes) store(p.sum + r * p.width + d, zero());
  }
}

void finish(const AttentionTask& task) {
  const Parts p = parts_of(task);
  for (int r = 0; r < task.rows; ++r) {
    const std::int64_t row = task.first_row + r;
    const std::int64_t offset = row / task.group * task.out_token_stride + row % task.group * task.out_head_stride;
    const Vec total = broadcast(reduce_add(load(p.weight + r * kTokenGroup)));
    float* sum = p.sum + r * p.width;
    for (int d = 0; d < p.width; d += kLanes) store(sum + d, load(sum + d) / total);
    convert(sum, DType::float32, (void*)row_at(task.out, task.out_dtype, offset), task.out_dtype, task.head_dim);
  }
}

// ---- a chunk ----

/// K and V of the chunk as the products read them, in the cache itself or widened to float32 in scratch.
struct Operands {
  const void* k[kChunkGroups];
  const void* v[kChunkGroups];
  bool bfloat16_k, bfloat16_v;  // else float32
};

/// count is a multiple of 16.
template <class T>
void widen_vectors(const T* x, float* y, std::int64_t count) {
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < count; i += kLanes) store(y + i, load(x + i));
}

void widen_group(const AttentionTask& task, const void* x, float* y) {
  const std::int64_t count = kTokenGroup * task.head_dim;
  task.state_dtype == DType::bfloat16 ? widen_vectors((const bfloat16*)x, y, count) : widen_vectors((const float16*)x, y, count);
}

void pad_rows(const AttentionTask& task, const Parts& p, const void* x, float* y) {
  for (int t = 0; t < kTokenGroup; ++t, y += p.width) {
    store(y + p.width - kLanes, zero());
    convert(row_at(x, task.state_dtype, t * task.head_dim), task.state_dtype, y, DType::float32, task.head_dim);
  }
}

Operands operands_of(const AttentionTask& task, const AttentionChunk& chunk, const Parts& p) {
  constexpr int kFewRows = 2 * kTileRows;  // widening on the fly, once for each tile, is cheaper up to here
  const bool in_place = task.state_dtype == DType::float32 || (task.state_dtype == DType::bfloat16 && task.rows <= kFewRows);
  const bool padded = p.width != task.head_dim;
  Operands o;
  o.bfloat16_k = in_place && task.state_dtype == DType::bfloat16;
  o.bfloat16_v = o.bfloat16_k && !padded;
  for (int g = chunk.first_group; g < chunk.last_group; ++g) {
    o.k[g] = chunk.k[g];
    o.v[g] = chunk.v[g];
    float* k = p.k + g * kTokenGroup * p.width;
    float* v = p.v + g * kTokenGroup * p.width;
    if (!in_place) {
      widen_group(task, chunk.k[g], k);
      o.k[g] = k;
    }
    if (!in_place || padded) {
      padded ? pad_rows(task, p, chunk.v[g], v) : widen_group(task, chunk.v[g], v);
      o.v[g] = v;
    }
  }
  return o;
}

/// Tokens of the chunk that a row sees: [first, last), counted from the chunk's start.
struct Seen {
  int first, last;
  bool none() const { return first >= last; }
  bool whole() const { return first == 0 && last == kChunkTokens; }
};

int within_chunk(std::int64_t token) { return token < 0 ? 0 : token > kChunkTokens ? kChunkTokens : (int)token; }

alignas(64) const float kIota[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/// Scores are kept in units of log 2, so that a weight is a power of two.
INGOT_INLINE Vec scaled_score(const AttentionTask& task, Vec score) {
  constexpr float kLog2E = 1.44269504088896341f;
  if (task.softcap == 0) return score * broadcast(task.scale * kLog2E);
  return broadcast(task.softcap * kLog2E) * tanh(score * broadcast(task.scale) / broadcast(task.softcap));
}

/// 2^y for y up to some tens; zero below 2^-126, where it would be denormal. The polynomial is Cephes' (S. Moshier).
INGOT_INLINE Vec power_of_two(Vec y) {
  const Vec n = round_even(y);
  const Vec f = y - n;
  Vec p = broadcast(1.535336188319500e-4f);
  p = fma(p, f, broadcast(1.339887440266574e-3f));
  p = fma(p, f, broadcast(9.618437357674640e-3f));
  p = fma(p, f, broadcast(5.550332471162809e-2f));
  p = fma(p, f, broadcast(2.402264791363012e-1f));
  p = fma(p, f, broadcast(6.931472028550421e-1f));
  p = fma(p, f, broadcast(1.0f));
#if defined(__AVX512F__)
  const Vec power = ldexp_rounded(p, n);
#else
  const Vec power = from_bits(bits(p) + shift_left<23>(truncate_to_int(n)));
#endif
  return select(y < broadcast(-126.0f), zero(), power);
}

/// Raises a row's reference score when the chunk's greatest is well above it, and shrinks what was summed under the old one.
/// (Weights up to 2^8 lose nothing, and most chunks need no shrinking that way.)
INGOT_INLINE Vec raise_maximum(const Parts& p, int r, Vec best) {
  constexpr float kSlack = 8.0f;
  const float before = p.maximum[r], greatest = reduce_max(best);
  if (greatest > before + kSlack) {
    p.maximum[r] = greatest;
    if (before > -__builtin_inff()) {
      const Vec shrink = power_of_two(broadcast(before - greatest));
      store(p.weight + r * kTokenGroup, load(p.weight + r * kTokenGroup) * shrink);
      float* sum = p.sum + r * p.width;
      for (int d = 0; d < p.width; d += kLanes) store(sum + d, load(sum + d) * shrink);
    }
  }
  return broadcast(p.maximum[r]);
}

/// Turns a row's scores into weights 2^(score - maximum) and adds them up. The first form is the second for a whole chunk.
void weigh_whole(const AttentionTask& task, const Parts& p, int r, float* scores) {
  Vec x[kChunkGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kChunkGroups; ++g) x[g] = scaled_score(task, load(scores + g * kTokenGroup));
  Vec best = x[0];
#pragma GCC unroll 4
  for (int g = 1; g < kChunkGroups; ++g) best = max(best, x[g]);
  const Vec maximum = raise_maximum(p, r, best);
  Vec weight = load(p.weight + r * kTokenGroup);
#pragma GCC unroll 4
  for (int g = 0; g < kChunkGroups; ++g) {
    const Vec y = power_of_two(x[g] - maximum);
    store(scores + g * kTokenGroup, y);
    weight = weight + y;
  }
  store(p.weight + r * kTokenGroup, weight);
}

void weigh(const AttentionTask& task, const Parts& p, int r, float* scores, Seen seen) {
  const int first = seen.first / kTokenGroup, last = (seen.last + kTokenGroup - 1) / kTokenGroup;
  const Vec nothing = broadcast(-__builtin_inff());
  const Vec token = load(kIota);
  Vec best = nothing;
  for (int g = first; g < last; ++g) {
    Vec x = scaled_score(task, load(scores + g * kTokenGroup));
    x = select(token < broadcast((float)(seen.first - g * kTokenGroup)), nothing, x);
    x = select(token < broadcast((float)(seen.last - g * kTokenGroup)), x, nothing);
    store(scores + g * kTokenGroup, x);
    best = max(best, x);
  }
  const Vec maximum = raise_maximum(p, r, best);
  Vec weight = load(p.weight + r * kTokenGroup);
  for (int g = first; g < last; ++g) {
    const Vec y = power_of_two(load(scores + g * kTokenGroup) - maximum);
    store(scores + g * kTokenGroup, y);
    weight = weight + y;
  }
  store(p.weight + r * kTokenGroup, weight);
}

/// Adds weights [first, last) times V to the sums of `rows` rows.
void add_values(const Parts& p, const Operands& o, int r, int rows, const float* scores, int first, int last) {
  if (first >= last) return;
  const int vectors = p.width / kLanes, element = o.bfloat16_v ? 2 : 4;
  for (int at = 0, count = 0; at < vectors; at += count) {
    count = vectors_at_once(rows, vectors - at);
    Product product{scores + first, kChunkTokens, 0, {}, p.width, p.sum + r * p.width + at * kLanes, p.width, true};
    for (int token = first; token < last; ++product.segments) {
      const int group = token / kTokenGroup, end = (group + 1) * kTokenGroup < last ? (group + 1) * kTokenGroup : last;
      const char* v = (const char*)o.v[group] + (token % kTokenGroup * p.width + at * kLanes) * element;
      auto& segment = product.segment[product.segments];
      for (int i = 0; i < count; ++i) segment.b[i] = v + i * kLanes * element;
      segment.count = end - token;
      token = end;
    }
    o.bfloat16_v ? multiply_tile<bfloat16>(product, rows, count) : multiply_tile<float>(product, rows, count);
  }
}

void score_tile(const AttentionTask& task, const Parts& p, const Operands& o, int r, int rows, Seen all) {
  const int last = (all.last + kTokenGroup - 1) / kTokenGroup;
  for (int at = all.first / kTokenGroup, count = 0; at < last; at += count) {
    count = vectors_at_once(rows, last - at);
    Product product{p.q + r * p.width, p.width, 1, {}, kTokenGroup, p.scores + at * kTokenGroup, kChunkTokens, false};
    for (int i = 0; i < count; ++i) product.segment[0].b[i] = o.k[at + i];
    product.segment[0].count = task.head_dim;
    o.bfloat16_k ? multiply_tile<bfloat16>(product, rows, count) : multiply_tile<float>(product, rows, count);
  }
}

/// Rows r .. r + rows; later ones see later tokens, so the first and the last bound what all see and what any sees.
void attend_tile(const AttentionTask& task, const Parts& p, const Operands& o, int r, int rows, const Seen* seen) {
  const Seen any{seen[0].first, seen[rows - 1].last}, every{seen[rows - 1].first, seen[0].last};
  if (any.none()) return;
  score_tile(task, p, o, r, rows, any);
  for (int i = 0; i < rows; ++i) {
    float* scores = p.scores + i * kChunkTokens;
    if (seen[i].whole())
      weigh_whole(task, p, r + i, scores);
    else if (!seen[i].none())
      weigh(task, p, r + i, scores, seen[i]);
  }
  if (every.none()) {
    for (int i = 0; i < rows; ++i) add_values(p, o, r + i, 1, p.scores + i * kChunkTokens, seen[i].first, seen[i].last);
    return;
  }
  for (int i = 0; i < rows; ++i) add_values(p, o, r + i, 1, p.scores + i * kChunkTokens, seen[i].first, every.first);
  add_values(p, o, r, rows, p.scores, every.first, every.last);
  for (int i = 0; i < rows; ++i) add_values(p, o, r + i, 1, p.scores + i * kChunkTokens, every.last, seen[i].last);
}

void attend(const AttentionTask& task, const AttentionChunk& chunk) {
  const Parts p = parts_of(task);
  const Operands o = operands_of(task, chunk, p);
  std::int64_t next = task.position + task.first_row / task.group + 1 - chunk.start;  // the first token that a row does not see
  int head = (int)(task.first_row % task.group);
  for (int r = 0; r < task.rows; r += kTileRows) {
    const int rows = task.rows - r < kTileRows ? task.rows - r : kTileRows;
    Seen seen[kTileRows];
    for (int i = 0; i < rows; ++i) {
      seen[i] = {within_chunk(next - task.window), within_chunk(next)};
      if (++head == task.group) head = 0, ++next;
    }
    attend_tile(task, p, o, r, rows, seen);
  }
}

// ---- rotary embedding ----

template <class T>
void rotate_halves(const T* x, const float* cos, const float* sin, std::int64_t half, T* y) {
  for (std::int64_t i = 0; i < half; i += kLanes) {
    const Vec a = load_tail(x, i, half), b = load_tail(x + half, i, half);
    const Vec c = load_tail(cos, i, half), s = load_tail(sin, i, half);
    store_tail(y, i, half, fnma(b, s, a * c));
    store_tail(y + half, i, half, fma(a, s, b * c));
  }
}

template <class T>
void rotate_pairs(const T* x, const float* cos, const float* sin, std::int64_t half, T* y) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = load_one(x + 2 * i), b = load_one(x + 2 * i + 1);
    store_one(y + 2 * i, a * cos[i] - b * sin[i]);
    store_one(y + 2 * i + 1, b * cos[i] + a * sin[i]);
  }
}

template <class T>
void rotate(const T* x, const float* cos, const float* sin, std::int64_t half, std::int64_t width, bool interleaved, T* y) {
  interleaved ? rotate_pairs(x, cos, sin, half, y) : rotate_halves(x, cos, sin, half, y);
  if (y != x) convert_row(x + 2 * half, y + 2 * half, width - 2 * half);
}

void rope(const void* x, DType dtype, const float* cos, const float* sin, std::int64_t half, std::int64_t width,
          bool interleaved, void* y) {
  if (dtype == DType::float32)
    rotate((const float*)x, cos, sin, half, width, interleaved, (float*)y);
  else if (dtype == DType::bfloat16)
    rotate((const bfloat16*)x, cos, sin, half, width, interleaved, (bfloat16*)y);
  else
    rotate((const float16*)x, cos, sin, half, width, interleaved, (float16*)y);
}

}  // namespace

const AttentionTable attention_table = {begin, attend, finish, rope, convert};

}  // namespace ingot::INGOT_LEVEL
