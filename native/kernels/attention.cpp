// rope_table, rope, kv_write, rope_kv_write, paged_attention: the kernels around the paged KV cache.
//
// The cache of one layer is [blocks, 2, kv_heads, block_size * head_dim]: K of a block and head in groups of 16 tokens,
// transposed ([block_size / 16][head_dim][16]), so that the scores of 16 tokens are one vector; V as [block_size][head_dim].
//
// Limits: head_dim even, 2 to 512; block_size a multiple of 16; float32, bfloat16 or float16, computed in float32. Slots,
// block numbers, contexts and query bounds are checked as they are used: a bad one ends the run in a typed error and no
// memory outside the cache is touched. Padding is legal: slot -1, requests without query tokens, tokens behind the last
// request (their output rows are zero).
//
// A row's result does not depend on its company: every score is one chain of multiply-adds over head_dim, the softmax
// advances by chunks of 64 tokens that start at multiples of 64, and V is added token by token.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "check.h"
#include "level/attention.h"
#include "strided.h"

namespace ingot {

namespace {

using Views = std::span<const TensorView>;
using Types = std::span<const OperandType>;

const AttentionTable& table_for([[maybe_unused]] Level level) {
#if INGOT_X86
  if (level >= Level::avx512) return avx512::attention_table;
  if (level >= Level::avx2) return avx2::attention_table;
#endif
  return portable::attention_table;
}

std::byte* at(const TensorView& view, std::int64_t offset) {
  return view.as<std::byte>() + offset * static_cast<std::int64_t>(size_of(view.dtype));
}

/// A rank-1 int32 operand whose elements lie side by side.
void require_list(const char* kernel, const char* operand, const TensorView& view) {
  require_dense_rows(kernel, operand, view);
}

void require_float_rows(const char* kernel, const char* operand, const OperandType& type) {
  require_dtype(kernel, operand, type.dtype, kComputeFloats);
  require_rank(kernel, operand, type.rank, 3);
}

// ---- the cache ----

struct Cache {
  std::byte* data;
  std::size_t element;
  std::int64_t blocks, heads, block_size, head_dim;

  /// First element of K or V of a block and head.
  std::byte* part(std::int64_t block, int which, std::int64_t head) const {
    return data + ((block * 2 + which) * heads + head) * block_size * head_dim * static_cast<std::int64_t>(element);
  }
};

Cache cache_of(const TensorView& state, std::int64_t head_dim) {
  return {state.as<std::byte>(), size_of(state.dtype), state.shape[0], state.shape[2], state.shape[3] / head_dim, head_dim};
}

void require_cache(const char* kernel, const TensorView& state, std::int64_t heads, std::int64_t head_dim) {
  require(head_dim >= 2 && head_dim <= kMaxHeadDim && head_dim % 2 == 0, kernel, "head_dim must be even and in [2, 512]");
  require_contiguous(kernel, "the state", state);
  require(state.rank == 4 && state.shape[1] == 2 && state.shape[2] == heads && state.shape[3] > 0 &&
              state.shape[3] % (head_dim * kTokenGroup) == 0,
          kernel, "the state must have shape (blocks, 2, kv_heads, block_size * head_dim) with a block_size that 16 divides");
}

void require_state(const char* kernel, const OperandType& type) {
  require(type.state, kernel, "the state operand must be a kv_cache state");
  require_dtype(kernel, "the state", type.dtype, kComputeFloats);
  require_rank(kernel, "the state", type.rank, 4);
}

/// Writes k[token, head] and v[token, head] to the token's slot. Work is shared out by head, so that of two tokens with one
/// slot the later one always wins.
class CacheWriter {
 public:
  CacheWriter(const AttentionTable& table, const TensorView& state, const TensorView& slot, std::int64_t head_dim)
      : table_(table), state_(state), slot_(slot), cache_(cache_of(state, head_dim)) {}

  /// The token's slot, or -1 to skip it.
  std::int64_t slot(std::int64_t token, const char* what, const Worker& worker) const {
    const std::int64_t slot = slot_.as<const std::int32_t>()[token];
    const std::int64_t limit = cache_.blocks * cache_.block_size;
    if (slot >= 0 && slot < limit) return slot;
    if (slot != -1) worker.fail(what, slot, limit);
    return -1;
  }

  void key(std::int64_t slot, std::int64_t head, const void* row, DType dtype, void* local) const {
    table_.convert(row, dtype, local, state_.dtype, cache_.head_dim);
    const std::int64_t offset = slot % cache_.block_size;
    std::byte* part = cache_.part(slot / cache_.block_size, 0, head);
    const std::int64_t first = offset / kTokenGroup * cache_.head_dim * kTokenGroup + offset % kTokenGroup;
    if (cache_.element == 4)
      scatter(reinterpret_cast<std::uint32_t*>(part) + first, static_cast<const std::uint32_t*>(local));
    else
      scatter(reinterpret_cast<std::uint16_t*>(part) + first, static_cast<const std::uint16_t*>(local));
  }

  void value(std::int64_t slot, std::int64_t head, const void* row, DType dtype) const {
    std::byte* part = cache_.part(slot / cache_.block_size, 1, head);
    const std::int64_t offset = slot % cache_.block_size * cache_.head_dim;
    table_.convert(row, dtype, part + offset * static_cast<std::int64_t>(cache_.element), state_.dtype, cache_.head_dim);
  }

 private:
  template <class T>
  void scatter(T* to, const T* from) const {
    for (std::int64_t d = 0; d < cache_.head_dim; ++d) to[d * kTokenGroup] = from[d];
  }

  const AttentionTable& table_;
  const TensorView &state_, &slot_;
  Cache cache_;
};

// ---- rope ----

/// cos and sin of position * inv_freq. The angle is rounded to float32 as transformers does; its cosine is taken in
/// double, since angles reach 10^5 and more.
class RopeTable final : public Kernel {
 public:
  explicit RopeTable(double scale) : scale_(static_cast<float>(scale)) {}

  Scratch plan(Views in, Views out, int) const override {
    require_list("rope_table", "positions", in[0]);
    require_list("rope_table", "inv_freq", in[1]);
    for (const TensorView& y : out) {
      require_shape("rope_table", "an output", y, {in[0].shape[0], in[1].shape[0]});
      require_contiguous("rope_table", "an output", y);
    }
    return {};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const auto* positions = in[0].as<const std::int32_t>();
    const auto* inv_freq = in[1].as<const float>();
    const std::int64_t half = in[1].shape[0];
    const Share share = share_of(in[0].shape[0], worker.index, worker.count);
    for (std::int64_t t = share.first; t < share.last; ++t) {
      for (std::int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[t]) * inv_freq[i];
        out[0].as<float>()[t * half + i] = static_cast<float>(std::cos(static_cast<double>(angle))) * scale_;
        out[1].as<float>()[t * half + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * scale_;
      }
    }
  }

 private:
  float scale_;
};

std::unique_ptr<Kernel> make_rope_table(const nlohmann::json& json, Types in, Types out, Level) {
  require_operands("rope_table", in, 2, 2, out, 2);
  Params params("rope_table", json);
  const double scale = params.number("scale", -1e6, 1e6);
  params.done();
  require_dtype("rope_table", "positions", in[0].dtype, {DType::int32});
  require_dtype("rope_table", "inv_freq", in[1].dtype, {DType::float32});
  require_rank("rope_table", "positions", in[0].rank, 1);
  require_rank("rope_table", "inv_freq", in[1].rank, 1);
  for (const OperandType& y : out) require_dtype("rope_table", "an output", y.dtype, {DType::float32});
  return std::make_unique<RopeTable>(scale);
}

void require_rope(const char* kernel, const TensorView& x, const TensorView& cos, const TensorView& sin, const TensorView& y) {
  require_same_shape(kernel, "the rotated output", y, x);
  require_dense_rows(kernel, "x", x);
  require_dense_rows(kernel, "the rotated output", y);
  require(cos.rank == 2 && cos.shape[0] == x.shape[0] && 2 * cos.shape[1] <= x.shape[2], kernel,
          "cos must have shape (tokens, at most half of x's last dimension)");
  require_same_shape(kernel, "sin", sin, cos);
  require_dense_rows(kernel, "cos", cos);
  require_dense_rows(kernel, "sin", sin);
}

/// Rotates all heads of a worker's share of the tokens (or of the heads, when there is one token).
void run_rope(const AttentionTable& table, bool interleaved, const TensorView& x, const TensorView& cos, const TensorView& sin,
              const TensorView& y, const Worker& worker) {
  const std::int64_t heads = x.shape[1];
  const Share share = share_of(x.shape[0] * heads, worker.index, worker.count);
  for (std::int64_t i = share.first; i < share.last; ++i) {
    const std::int64_t token = i / heads, head = i % heads;
    table.rope(at(x, token * x.stride[0] + head * x.stride[1]), x.dtype, cos.as<const float>() + token * cos.stride[0],
               sin.as<const float>() + token * sin.stride[0], cos.shape[1], x.shape[2], interleaved,
               at(y, token * y.stride[0] + head * y.stride[1]));
  }
}

bool interleaved_style(Params& params) { return params.choice("style", {"half", "interleaved"}) == 1; }

void require_rope_types(const char* kernel, const OperandType& x, const OperandType& cos, const OperandType& sin,
                        const OperandType& y) {
  require_float_rows(kernel, "x", x);
  require_dtype(kernel, "the rotated output", y.dtype, {x.dtype});
  require_rank(kernel, "the rotated output", y.rank, 3);
  require_dtype(kernel, "cos", cos.dtype, {DType::float32});
  require_dtype(kernel, "sin", sin.dtype, {DType::float32});
  require_rank(kernel, "cos", cos.rank, 2);
  require_rank(kernel, "sin", sin.rank, 2);
}

class Rope final : public Kernel {
 public:
  Rope(const AttentionTable& table, bool interleaved) : table_(table), interleaved_(interleaved) {}
  Scratch plan(Views in, Views out, int) const override {
    require_rope("rope", in[0], in[1], in[2], out[0]);
    return {};
  }
  void run(Views in, Views out, const Worker& worker) const override {
    run_rope(table_, interleaved_, in[0], in[1], in[2], out[0], worker);
  }

 private:
  const AttentionTable& table_;
  bool interleaved_;
};

std::unique_ptr<Kernel> make_rope(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("rope", in, 3, 3, out, 1);
  Params params("rope", json);
  const bool interleaved = interleaved_style(params);
  params.done();
  require_rope_types("rope", in[0], in[1], in[2], out[0]);
  return std::make_unique<Rope>(table_for(level), interleaved);
}

// ---- kv_write, rope_kv_write ----

void require_keys(const char* kernel, const TensorView& state, const TensorView& k, const TensorView& v, const TensorView& slot) {
  require_cache(kernel, state, k.shape[1], k.shape[2]);
  require_same_shape(kernel, "v", v, k);
  require_dense_rows(kernel, "k", k);
  require_dense_rows(kernel, "v", v);
  require_shape(kernel, "slot", slot, {k.shape[0]});
  require_list(kernel, "slot", slot);
}

void require_key_types(const char* kernel, const OperandType& state, const OperandType& k, const OperandType& v,
                       const OperandType& slot) {
  require_state(kernel, state);
  require_float_rows(kernel, "k", k);
  require_float_rows(kernel, "v", v);
  require_dtype(kernel, "slot", slot.dtype, {DType::int32});
  require_rank(kernel, "slot", slot.rank, 1);
}

constexpr std::size_t kRowBytes = kMaxHeadDim * sizeof(float);

class KvWrite final : public Kernel {
 public:
  explicit KvWrite(const AttentionTable& table) : table_(table) {}

  Scratch plan(Views in, Views, int) const override {
    require_keys("kv_write", in[0], in[1], in[2], in[3]);
    return {0, kRowBytes};
  }

  void run(Views in, Views, const Worker& worker) const override {
    const TensorView &state = in[0], &k = in[1], &v = in[2];
    const CacheWriter writer(table_, state, in[3], k.shape[2]);
    const Share heads = share_of(k.shape[1], worker.index, worker.count);
    for (std::int64_t token = 0; token < k.shape[0]; ++token) {
      const std::int64_t slot = writer.slot(token, "kv_write: slot out of range", worker);
      if (slot < 0) continue;
      for (std::int64_t head = heads.first; head < heads.last; ++head) {
        writer.key(slot, head, at(k, token * k.stride[0] + head * k.stride[1]), k.dtype, worker.local);
        writer.value(slot, head, at(v, token * v.stride[0] + head * v.stride[1]), v.dtype);
      }
    }
  }

 private:
  const AttentionTable& table_;
};

std::unique_ptr<Kernel> make_kv_write(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("kv_write", in, 4, 4, out, 0);
  Params("kv_write", json).done();
  require_key_types("kv_write", in[0], in[1], in[2], in[3]);
  return std::make_unique<KvWrite>(table_for(level));
}

/// The same bits as rope on q and k followed by kv_write: the rotated key is rounded to k's dtype first.
class RopeKvWrite final : public Kernel {
 public:
  RopeKvWrite(const AttentionTable& table, bool interleaved) : table_(table), interleaved_(interleaved) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &q = in[0], &k = in[1];
    require_rope("rope_kv_write", q, in[3], in[4], out[0]);
    require_keys("rope_kv_write", in[6], k, in[2], in[5]);
    require(k.shape[0] == q.shape[0] && k.shape[2] == q.shape[2], "rope_kv_write", "q and k must agree in tokens and head_dim");
    return {0, 2 * kRowBytes};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &k = in[1], &v = in[2], &cos = in[3], &sin = in[4];
    run_rope(table_, interleaved_, in[0], cos, sin, out[0], worker);
    const CacheWriter writer(table_, in[6], in[5], k.shape[2]);
    const Share heads = share_of(k.shape[1], worker.index, worker.count);
    std::byte* rotated = worker.local + kRowBytes;
    for (std::int64_t token = 0; token < k.shape[0]; ++token) {
      const std::int64_t slot = writer.slot(token, "rope_kv_write: slot out of range", worker);
      if (slot < 0) continue;
      for (std::int64_t head = heads.first; head < heads.last; ++head) {
        table_.rope(at(k, token * k.stride[0] + head * k.stride[1]), k.dtype, cos.as<const float>() + token * cos.stride[0],
                    sin.as<const float>() + token * sin.stride[0], cos.shape[1], k.shape[2], interleaved_, rotated);
        writer.key(slot, head, rotated, k.dtype, worker.local);
        writer.value(slot, head, at(v, token * v.stride[0] + head * v.stride[1]), v.dtype);
      }
    }
  }

 private:
  const AttentionTable& table_;
  bool interleaved_;
};

std::unique_ptr<Kernel> make_rope_kv_write(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("rope_kv_write", in, 7, 7, out, 1);
  Params params("rope_kv_write", json);
  const bool interleaved = interleaved_style(params);
  params.done();
  require_rope_types("rope_kv_write", in[0], in[3], in[4], out[0]);
  require_key_types("rope_kv_write", in[6], in[1], in[2], in[5]);
  return std::make_unique<RopeKvWrite>(table_for(level), interleaved);
}

// ---- paged_attention ----

class PagedAttention final : public Kernel {
 public:
  PagedAttention(const AttentionTable& table, float scale, std::int64_t window, float softcap)
      : table_(table), scale_(scale), window_(window), softcap_(softcap) {}

  Scratch plan(Views in, Views out, int) const override {
    const TensorView &q = in[0], &state = in[1], &query_start = in[2], &context_len = in[3], &block_table = in[4];
    require_same_shape("paged_attention", "the output", out[0], q);
    require_dense_rows("paged_attention", "q", q);
    require_dense_rows("paged_attention", "the output", out[0]);
    require_cache("paged_attention", state, state.shape[2], q.shape[2]);
    require(state.shape[2] > 0 && q.shape[1] % state.shape[2] == 0, "paged_attention",
            "q's heads must be a multiple of the state's kv_heads");
    require_shape("paged_attention", "query_start", query_start, {context_len.shape[0] + 1});
    require(block_table.shape[0] == context_len.shape[0], "paged_attention", "block_table must have a row per request");
    require_list("paged_attention", "query_start", query_start);
    require_list("paged_attention", "context_len", context_len);
    require_list("paged_attention", "block_table", block_table);
    if (in.size() > 5) {
      require_shape("paged_attention", "slopes", in[5], {q.shape[1]});
      require_list("paged_attention", "slopes", in[5]);
    }
    const int width = static_cast<int>(q.shape[2]);
    return {0, static_cast<std::size_t>(attention_scratch(width, width, kRowBlock)) * sizeof(float)};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &q = in[0], &y = out[0];
    const auto* query_start = in[2].as<const std::int32_t>();
    const std::int64_t requests = in[3].shape[0], tokens = q.shape[0], heads = in[1].shape[2];
    if (query_start[0] != 0) return worker.fail("paged_attention: query_start must begin at 0", query_start[0], 1);
    std::int64_t rows = 0;
    for (std::int64_t b = 0; b < requests; ++b) {
      if (!request_is_sound(in, b, worker)) return;
      rows += (query_start[b + 1] - query_start[b]) * (q.shape[1] / heads) * heads;
    }
    zero_rows(y, query_start[requests], tokens, worker);

    const int row_block = block_for(rows, worker.count);
    std::int64_t total = 0, start = 0;
    for (std::int64_t b = 0; b < requests; ++b) total += heads * request_cost(in, b, row_block);
    const std::int64_t first = total / worker.count * worker.index + total % worker.count * worker.index / worker.count;
    const std::int64_t next = worker.index + 1;
    const std::int64_t last = total / worker.count * next + total % worker.count * next / worker.count;
    for (std::int64_t b = 0; b < requests && start < last; ++b) {
      const std::int64_t cost = request_cost(in, b, row_block);
      for (std::int64_t head = 0; head < heads; ++head, start += cost)
        if (start < last && start + cost > first) run_head(in, y, b, head, row_block, first - start, last - start, worker);
    }
  }

 private:
  struct Request {
    std::int64_t first_token, query_tokens, position, group;  // position: of the first query token
    std::int64_t rows() const { return query_tokens * group; }
  };

  Request request(Views in, std::int64_t b) const {
    const auto* query_start = in[2].as<const std::int32_t>();
    const std::int64_t query_tokens = query_start[b + 1] - query_start[b];
    return {query_start[b], query_tokens, in[3].as<const std::int32_t>()[b] - query_tokens, in[0].shape[1] / in[1].shape[2]};
  }

  bool request_is_sound(Views in, std::int64_t b, const Worker& worker) const {
    const auto* query_start = in[2].as<const std::int32_t>();
    const std::int64_t start = query_start[b], end = query_start[b + 1], context = in[3].as<const std::int32_t>()[b];
    const std::int64_t capacity = in[4].shape[1] * (in[1].shape[3] / in[0].shape[2]);
    if (end < start || end > in[0].shape[0]) {  // the first is 0
      worker.fail("paged_attention: query_start must never fall and stay within the tokens", end, in[0].shape[0]);
    } else if (context < end - start) {
      worker.fail("paged_attention: context_len is less than the request's query tokens", context, end - start);
    } else if (context > capacity) {
      worker.fail("paged_attention: context_len is more than block_table holds", context, capacity);
    } else {
      return true;
    }
    return false;
  }

  static void zero_rows(const TensorView& y, std::int64_t first, std::int64_t last, const Worker& worker) {
    const Share share = share_of(last - first, worker.index, worker.count);
    for (std::int64_t token = first + share.first; token < first + share.last; ++token)
      for (std::int64_t head = 0; head < y.shape[1]; ++head)
        std::memset(at(y, token * y.stride[0] + head * y.stride[1]), 0, static_cast<std::size_t>(y.shape[2]) * size_of(y.dtype));
  }

  /// Rows of one task: fewer when there would be too few tasks to keep the workers busy. Results do not depend on it.
  static int block_for(std::int64_t rows, int workers) {
    int block = kRowBlock;
    while (block > 6 && rows < block * 4 * static_cast<std::int64_t>(workers)) block /= 2;
    return block;
  }

  std::int64_t first_seen(std::int64_t position) const { return std::max<std::int64_t>(0, position + 1 - window_); }

  /// About the multiply-adds of rows [first, last), in units of head_dim; a task also pays for reading its keys once.
  std::int64_t task_cost(const Request& r, std::int64_t first, std::int64_t last) const {
    constexpr std::int64_t kReading = 4;
    const std::int64_t end = r.position + (last - 1) / r.group + 1;
    return (last - first + kReading) * (end - first_seen(r.position + first / r.group));
  }

  std::int64_t request_cost(Views in, std::int64_t b, int row_block) const {
    const Request r = request(in, b);
    std::int64_t cost = 0;
    for (std::int64_t row = 0; row < r.rows(); row += row_block) cost += task_cost(r, row, std::min(r.rows(), row + row_block));
    return cost;
  }

  /// The tasks of a request and KV head that begin in [first, last) of their running cost.
  void run_head(Views in, const TensorView& y, std::int64_t b, std::int64_t head, int row_block, std::int64_t first,
                std::int64_t last, const Worker& worker) const {
    const TensorView& q = in[0];
    const Request r = request(in, b);
    std::int64_t cost = 0;
    for (std::int64_t row = 0; row < r.rows() && cost < last; row += row_block) {
      const std::int64_t end = std::min(r.rows(), row + row_block);
      if (cost >= first) {
        AttentionTask task{};
        task.q = at(q, r.first_token * q.stride[0] + head * r.group * q.stride[1]);
        task.out = at(y, r.first_token * y.stride[0] + head * r.group * y.stride[1]);
        task.q_token_stride = q.stride[0], task.q_head_stride = q.stride[1];
        task.out_token_stride = y.stride[0], task.out_head_stride = y.stride[1];
        task.q_dtype = q.dtype, task.out_dtype = y.dtype, task.state_dtype = in[1].dtype;
        task.group = static_cast<int>(r.group), task.head_dim = task.value_dim = static_cast<int>(q.shape[2]);
        task.first_row = row, task.rows = static_cast<int>(end - row), task.row_capacity = kRowBlock;
        task.tokens = r.position + r.query_tokens;
        task.slopes = in.size() > 5 ? in[5].as<const float>() + head * r.group : nullptr;
        task.position = r.position, task.window = window_, task.scale = scale_, task.softcap = softcap_;
        task.scratch = reinterpret_cast<float*>(worker.local);
        run_task(in, task, b, head, worker);
      }
      cost += task_cost(r, row, end);
    }
  }

  void run_task(Views in, const AttentionTask& task, std::int64_t b, std::int64_t head, const Worker& worker) const {
    const Cache cache = cache_of(in[1], task.head_dim);
    const std::int32_t* blocks = in[4].as<const std::int32_t>() + b * in[4].stride[0];
    const std::int64_t group_bytes = kTokenGroup * task.head_dim * static_cast<std::int64_t>(cache.element);
    const std::int64_t groups_per_block = cache.block_size / kTokenGroup;
    const std::int64_t begin = first_seen(task.position + task.first_row / task.group);
    const std::int64_t end = task.position + (task.first_row + task.rows - 1) / task.group + 1;
    table_.begin(task);
    AttentionChunk chunk{};
    for (chunk.start = begin / kChunkTokens * kChunkTokens; chunk.start < end; chunk.start += kChunkTokens) {
      chunk.first_group = static_cast<int>(std::max<std::int64_t>(0, begin - chunk.start) / kTokenGroup);
      chunk.last_group = static_cast<int>((std::min<std::int64_t>(kChunkTokens, end - chunk.start) + kTokenGroup - 1) / kTokenGroup);
      for (int g = chunk.first_group; g < chunk.last_group; ++g) {
        const std::int64_t group = chunk.start / kTokenGroup + g;
        const std::int64_t block = blocks[group / groups_per_block];
        if (block < 0 || block >= cache.blocks) return worker.fail("paged_attention: block out of range", block, cache.blocks);
        chunk.k[g] = cache.part(block, 0, head) + group % groups_per_block * group_bytes;
        chunk.v[g] = cache.part(block, 1, head) + group % groups_per_block * group_bytes;
      }
      table_.chunk(task, chunk);
    }
    table_.finish(task);
  }

  const AttentionTable& table_;
  float scale_;
  std::int64_t window_;
  float softcap_;
};

std::unique_ptr<Kernel> make_paged_attention(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("paged_attention", in, 5, 6, out, 1);
  Params params("paged_attention", json);
  const double scale = params.number("scale", -1e6, 1e6);
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 40;
  const std::int64_t window = params.integer_or_null("window", 1, kUnlimited).value_or(kUnlimited);
  const double softcap = params.number_or_null("softcap", 1e-6, 1e6).value_or(0.0);
  params.done();
  require_float_rows("paged_attention", "q", in[0]);
  require_float_rows("paged_attention", "the output", out[0]);
  require_state("paged_attention", in[1]);
  const char* const names[] = {"query_start", "context_len", "block_table"};
  for (int i = 0; i < 3; ++i) {
    require_dtype("paged_attention", names[i], in[2 + i].dtype, {DType::int32});
    require_rank("paged_attention", names[i], in[2 + i].rank, i == 2 ? 2 : 1);
  }
  if (in.size() > 5) {
    require_dtype("paged_attention", "slopes", in[5].dtype, {DType::float32});
    require_rank("paged_attention", "slopes", in[5].rank, 1);
  }
  return std::make_unique<PagedAttention>(table_for(level), static_cast<float>(scale), window, static_cast<float>(softcap));
}

constexpr KernelInfo kKernels[] = {
    {"rope_table", 1, "positions, inv_freq -> cos, sin; scale", make_rope_table},
    {"rope", 1, "x, cos, sin -> y; style", make_rope},
    {"kv_write", 1, "state, k, v, slot ->; slot -1 writes nothing", make_kv_write},
    {"rope_kv_write", 1, "q, k, v, cos, sin, slot, state -> rotated q; style", make_rope_kv_write},
    {"paged_attention", 1, "q, state, query_start, context_len, block_table, slopes? -> y; scale, window, softcap", make_paged_attention},
};

}  // namespace

std::span<const KernelInfo> attention_kernels() { return kKernels; }

}  // namespace ingot
