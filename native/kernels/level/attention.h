// Attention and rotary embedding: what every level provides to the host half (kernels/attention.cpp).
#pragma once

#include <cstdint>

#include "dispatch.h"
#include "dtype.h"
#include "frame.h"

namespace ingot {

constexpr int kTokenGroup = 16;      // tokens whose K vectors are stored transposed, [head_dim][16]
constexpr int kChunkTokens = 64;     // one step of the online softmax; chunks start at multiples of it
constexpr int kChunkGroups = kChunkTokens / kTokenGroup;
constexpr int kSegmentTokens = 512;  // a row's results of each such piece of its context are added in order
constexpr int kRowBlock = 192;       // most query rows of one task of paged attention
static_assert(kRowBlock % kTokenGroup == 0);  // what AttentionScratch and AttentionSums ask for
constexpr int kScoreRows = 80;       // rows of scores: a register tile has 6, AMX tiles three blocks of 16, and two of low digits
constexpr int kMaxHeadDim = 512;

/// V rows and accumulators are padded to whole token groups, so that every vector is full. (static: the level code must not
/// share an inline function with another level's.)
static constexpr int padded_width(int head_dim) { return (head_dim + kTokenGroup - 1) / kTokenGroup * kTokenGroup; }

/// Of int8: what a chunk's weights are multiplied by to become whole numbers, for tokens that are seen (level/attention_int8_weights.h).
struct ValueScales {
  float exponent[kChunkTokens];  // of the value's scale, from that of the greatest one on
  float scale[kChunkTokens];     // the scale in the unit of those numbers
  float unit;                    // the exponent of that unit
};

/// What a task works with beside its sums: q, K and V of a chunk in float32, scores, the bias of a row. Of int8 also the units of
/// the rows' weights, and scales of values: for rows that see all of the chunk, and for one that does not.
struct AttentionScratch {
  float *q, *k, *v, *scores, *bias, *units;
  ValueScales* value_scales;

  AttentionScratch() = default;
  /// rows: a multiple of 16.
  AttentionScratch(Frame& frame, int head_dim, int value_dim, int rows)
      : q(frame.take<float>(std::int64_t{rows} * padded_width(head_dim))), k(frame.take<float>(kChunkTokens * padded_width(head_dim))),
        v(frame.take<float>(kChunkTokens * padded_width(value_dim))), scores(frame.take<float>(kScoreRows * kChunkTokens)),
        bias(frame.take<float>(kChunkTokens)), units(frame.take<float>(rows)), value_scales(frame.take<ValueScales>(2)) {}
};

/// Weighted sums of V, maxima, and 16 partial sums of weights a row.
struct AttentionSums {
  float *sum, *maximum, *weight;

  AttentionSums() = default;
  /// rows: a multiple of 16, since maxima are read 16 at a time.
  AttentionSums(Frame& frame, int value_dim, int rows)
      : sum(frame.take<float>(std::int64_t{rows} * padded_width(value_dim))), maximum(frame.take<float>(rows)),
        weight(frame.take<float>(std::int64_t{rows} * kTokenGroup)) {}
};

/// What is added to the scores of row (token, head of the group) and a key: floats, or 0 and -inf for a boolean.
struct AttentionMask {
  const void* data;              // of token 0, the first query head and key 0; null: none
  DType dtype;
  std::int64_t token_stride, head_stride, key_stride;  // in elements
};

/// Query rows of one KV head of one request: row r is query token r / group, query head r % group of the KV head's.
struct AttentionTask {
  const void* q;                 // of query token 0 and the first query head
  void* out;
  std::int64_t q_token_stride, q_head_stride, out_token_stride, out_head_stride;  // in elements
  DType q_dtype, out_dtype, state_dtype;
  int group;
  int head_dim, value_dim;
  std::int64_t first_row;        // of the task's rows, counted over the whole request
  int rows;
  std::int64_t tokens;           // keys in all
  std::int64_t position;         // of query token 0
  std::int64_t window;           // tokens that a row sees, itself included
  AttentionMask mask;
  const float* slopes;           // of the group's query heads: slope * (key - query position) is added to scores; null: none
  float scale;
  float softcap;                 // 0: none
  bool empty_nan;                // a row whose scores are all -inf gives NaN, not zeros
  bool column_pairs;             // V is bfloat16 as the cache has it, of whole pairs of vectors: see in_column_pairs (level/attention_parts.h)
  AttentionScratch scratch;
  AttentionSums sums;            // of the tokens since clear()
  AttentionSums totals;          // what finish() turns into results
};

/// One chunk of the cache: its token groups' K [head_dim][16] (bfloat16: [head_dim / 2][16][2]) and V [16][head_dim]. In int8, with
/// W = padded_width(head_dim): K [W / 4][16][4] and V [4][W][4 tokens], and behind each the float32 scales of the 16 tokens.
struct AttentionChunk {
  std::int64_t start;            // position of the first token
  int first_group, last_group;   // groups in use: [first, last). Of the others there are addresses too, which may be fetched ahead
  const void* k[kChunkGroups];
  const void* v[kChunkGroups];
  const void* k_ahead[kChunkGroups];  // what will be needed soon, of the same sizes; or the chunk itself
  const void* v_ahead[kChunkGroups];
};

/// Heads of a token, y = x rotated by the same angles: cos and sin hold `half` values, elements from 2 * half on pass through.
struct Rotation {
  const void* x;
  void* y;                          // x itself, or apart from it
  std::int64_t x_stride, y_stride;  // elements from head to head
  DType dtype;                      // of both
  const float *cos, *sin;
  std::int64_t half, width, heads;
  bool interleaved;
};

struct AttentionTable {
  void (*begin)(const AttentionTask& task);  // reads q
  void (*clear)(const AttentionTask& task);
  void (*chunk)(const AttentionTask& task, const AttentionChunk& chunk);
  /// Adds the sums of rows that see tokens of the segment to their totals; a row's first segment becomes its totals.
  void (*fold)(const AttentionTask& task, std::int64_t segment);
  void (*finish)(const AttentionTask& task);
  void (*rope)(const Rotation& rotation);
  void (*convert)(const void* x, DType x_dtype, void* y, DType y_dtype, std::int64_t count);
  /// y = x / scale, rounded to whole numbers up to 127, and zeros up to padded_width(count). The scale that it returns is the
  /// greatest magnitude / 127: NaN when an element is not finite.
  float (*quantize)(const void* x, DType dtype, std::int64_t count, std::int8_t* y);
};

INGOT_FAMILY(attention, AttentionTable)

}  // namespace ingot
