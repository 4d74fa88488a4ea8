// The paged KV cache, for the kernels that fill it and attend over it.
//
// The cache of one layer is [blocks, 2, kv_heads, block_size * head_dim]. K of a block and head is in groups of 16
// tokens, transposed, so that the scores of 16 tokens are one vector: [block_size / 16][head_dim][16], with bfloat16
// [block_size / 16][head_dim / 2][16][2]. V is [block_size][head_dim].
//
// int8 pads head_dim to W, which 16 divides, and has a float32 scale for each vector: a group of 16 tokens is K [W / 4][16][4]
// or V [4][W][4 tokens], and behind it the scales of the tokens, so that the cache is [blocks, 2, kv_heads, block_size * (W + 4)].
// A vector is its whole numbers, -127 to 127, times its scale. The scale is the greatest magnitude / 127, of that vector alone;
// of one with an element that is not finite it is NaN, and that of the key is NaN too when that of the value is.
//
// Limits: head_dim even, 2 to 512; block_size a multiple of 16; float32, bfloat16, float16 or int8, computed in float32.
#pragma once

#include "cache_width.h"
#include "check.h"
#include "level/attention.h"

namespace ingot {

/// A rank-1 int32 operand whose elements lie side by side.
inline void require_list(const char* kernel, const char* operand, const TensorView& view) {
  require_dense_rows(kernel, operand, view);
}

inline void require_float_rows(const char* kernel, const char* operand, const OperandType& type) {
  require_dtype(kernel, operand, type.dtype, kComputeFloats);
  require_rank(kernel, operand, type.rank, 3);
}

struct Cache {
  std::byte* data;
  std::int64_t blocks, heads, block_size, head_dim;
  std::int64_t token_bytes;  // of one vector, K or V

  /// First element of K or V of a block and head.
  std::byte* part(std::int64_t block, int which, std::int64_t head) const {
    return data + ((block * 2 + which) * heads + head) * block_size * token_bytes;
  }
  std::int64_t group_bytes() const { return kTokenGroup * token_bytes; }
};

inline std::int64_t block_size_of(const TensorView& state, std::int64_t head_dim) { return state.shape[3] / stored_width(state.dtype, head_dim); }

inline Cache cache_of(const TensorView& state, std::int64_t head_dim) {
  const std::int64_t bytes = stored_width(state.dtype, head_dim) * static_cast<std::int64_t>(size_of(state.dtype));
  return {state.as<std::byte>(), state.shape[0], state.shape[2], block_size_of(state, head_dim), head_dim, bytes};
}

inline void require_cache(const char* kernel, const TensorView& state, std::int64_t heads, std::int64_t head_dim) {
  require(head_dim >= 2 && head_dim <= kMaxHeadDim && head_dim % 2 == 0, kernel, "head_dim must be even and in [2, 512]");
  require_contiguous(kernel, "the state", state);
  require(state.rank == 4 && state.shape[1] == 2 && state.shape[2] == heads && state.shape[3] > 0 &&
              state.shape[3] % (stored_width(state.dtype, head_dim) * kTokenGroup) == 0,
          kernel, "the state must have shape (blocks, 2, kv_heads, block_size * stored_width) with a block_size that 16 divides");
}

inline void require_state(const char* kernel, const OperandType& type) {
  require(type.state, kernel, "the state operand must be a kv_cache state");
  require_dtype(kernel, "the state", type.dtype, {DType::float32, DType::bfloat16, DType::float16, DType::int8});
  require_rank(kernel, "the state", type.rank, 4);
}

}  // namespace ingot
