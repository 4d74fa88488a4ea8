// Attention over whole tensors: what every level provides to the host half (kernels/dense_attention.cpp).
#pragma once

#include "attention.h"

namespace ingot {

/// Rows that will be read or written soon: `bytes` of each.
struct Ahead {
  const void* data;
  std::int64_t stride;           // in bytes
  std::int64_t rows, bytes;
};

/// One chunk of keys and values, of the task's state_dtype: rows of head_dim and value_dim elements.
struct KeyChunk {
  std::int64_t start;            // the first token
  int count;                     // tokens, at most kChunkTokens
  const void* k;
  const void* v;
  std::int64_t k_stride, v_stride;  // between tokens, in elements
  Ahead ahead[4];                // fetched while this chunk is worked on: rows far apart are found by no hardware
};

struct DenseAttentionTable {
  void (*begin)(const AttentionTask& task);
  void (*clear)(const AttentionTask& task);
  void (*chunk)(const AttentionTask& task, const KeyChunk& chunk);
  void (*finish)(const AttentionTask& task);
};

INGOT_FAMILY(dense_attention, DenseAttentionTable)

}  // namespace ingot
