// Attention and rotary embedding: what every level provides to the host half (kernels/attention.cpp).
#pragma once

#include <cstdint>

#include "dtype.h"

namespace ingot {

constexpr int kTokenGroup = 16;      // tokens whose K vectors are stored transposed, [head_dim][16]
constexpr int kChunkTokens = 64;     // one step of the online softmax; chunks start at multiples of it
constexpr int kChunkGroups = kChunkTokens / kTokenGroup;
constexpr int kRowBlock = 96;        // most query rows of one task
constexpr int kMaxHeadDim = 512;

/// Query rows of one KV head of one request: row r is query token r / group, query head r % group of the KV head's.
struct AttentionTask {
  const void* q;                 // of query token 0 and the first query head
  void* out;
  std::int64_t q_token_stride, q_head_stride, out_token_stride, out_head_stride;  // in elements
  DType q_dtype, out_dtype, state_dtype;
  int group;
  int head_dim;
  std::int64_t first_row;        // of the task's rows, counted over the whole request
  int rows;
  std::int64_t position;         // of query token 0
  std::int64_t window;           // tokens that a row sees, itself included
  float scale;
  float softcap;                 // 0: none
  float* scratch;                // attention_scratch(head_dim) floats, 64-byte aligned
};

/// One chunk of the cache: its token groups' K [head_dim][16] and V [16][head_dim].
struct AttentionChunk {
  std::int64_t start;            // position of the first token
  int first_group, last_group;   // groups in use: [first, last)
  const void* k[kChunkGroups];
  const void* v[kChunkGroups];
};

/// V rows and accumulators are padded to whole token groups, so that every vector is full. (static: the level code must not
/// share an inline function with another level's.)
static constexpr int padded_width(int head_dim) { return (head_dim + kTokenGroup - 1) / kTokenGroup * kTokenGroup; }

/// q, accumulators, maxima, sums, then K and V of a chunk in float32 and the scores of a register tile.
static constexpr std::int64_t attention_scratch(int head_dim) {
  const std::int64_t width = padded_width(head_dim);
  return kRowBlock * (2 * width + kTokenGroup + 1) + 2 * kChunkTokens * width + 8 * kChunkTokens;
}

struct AttentionTable {
  void (*begin)(const AttentionTask& task);
  void (*chunk)(const AttentionTask& task, const AttentionChunk& chunk);
  void (*finish)(const AttentionTask& task);
  /// y = x rotated; cos and sin hold `half` values, elements from 2 * half on pass through.
  void (*rope)(const void* x, DType dtype, const float* cos, const float* sin, std::int64_t half, std::int64_t width,
               bool interleaved, void* y);
  void (*convert)(const void* x, DType x_dtype, void* y, DType y_dtype, std::int64_t count);
};

namespace portable {
extern const AttentionTable attention_table;
}
#if INGOT_X86
namespace avx2 {
extern const AttentionTable attention_table;
}
namespace avx512 {
extern const AttentionTable attention_table;
}
#endif

}  // namespace ingot
