// rope_table, rope, kv_write, rope_kv_write: positions, and what fills the paged KV cache (kv_cache.h).
//
// Slots are checked as they are used: a bad one ends the run in a typed error and no memory outside the cache is touched.
// Slot -1 is padding.
#include <algorithm>
#include <cmath>

#include "kv_cache.h"

namespace ingot {

namespace {

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

  /// One head of a token's key and value, of `dtype`.
  void write(std::int64_t slot, std::int64_t head, const void* k, const void* v, DType k_dtype, DType v_dtype, void* local) const {
    const Place to{cache_, slot, head};
    if (state_.dtype == DType::int8) return write_int8(to, k, v, k_dtype, v_dtype, static_cast<std::int8_t*>(local));
    table_.convert(k, k_dtype, local, state_.dtype, cache_.head_dim);
    if (state_.dtype == DType::float16)
      scatter(reinterpret_cast<std::uint16_t*>(to.k) + to.token, static_cast<const std::uint16_t*>(local), cache_.head_dim, kTokenGroup);
    else  // a float, or a pair of bfloat16
      scatter(reinterpret_cast<std::uint32_t*>(to.k) + to.token, static_cast<const std::uint32_t*>(local),
              state_.dtype == DType::float32 ? cache_.head_dim : cache_.head_dim / 2, kTokenGroup);
    table_.convert(v, v_dtype, to.v + to.token * cache_.token_bytes, state_.dtype, cache_.head_dim);
  }

 private:
  /// Where the token's group of 16 has its K and V, and which of them it is.
  struct Place {
    std::byte *k, *v;
    std::int64_t token;
    Place(const Cache& cache, std::int64_t slot, std::int64_t head) {
      const std::int64_t block = slot / cache.block_size, offset = slot % cache.block_size;
      token = offset % kTokenGroup;
      k = cache.part(block, 0, head) + offset / kTokenGroup * cache.group_bytes();
      v = cache.part(block, 1, head) + offset / kTokenGroup * cache.group_bytes();
    }
  };

  /// A query that attends to a value that is not finite gets NaN by way of the key's scale.
  void write_int8(const Place& to, const void* k, const void* v, DType k_dtype, DType v_dtype, std::int8_t* local) const {
    const std::int64_t width = padded_width(static_cast<int>(cache_.head_dim)), scales = width * kTokenGroup;
    float k_scale = table_.quantize(k, k_dtype, cache_.head_dim, local);
    scatter(reinterpret_cast<std::uint32_t*>(to.k) + to.token, reinterpret_cast<const std::uint32_t*>(local), width / 4, kTokenGroup);
    const float v_scale = table_.quantize(v, v_dtype, cache_.head_dim, local);
    scatter(reinterpret_cast<std::int8_t*>(to.v) + to.token / 4 * width * 4 + to.token % 4, local, width, 4);
    if (std::isnan(v_scale)) k_scale = v_scale;
    reinterpret_cast<float*>(to.k + scales)[to.token] = k_scale;
    reinterpret_cast<float*>(to.v + scales)[to.token] = v_scale;
  }

  template <class T>
  static void scatter(T* to, const T* from, std::int64_t count, std::int64_t stride) {
    for (std::int64_t d = 0; d < count; ++d) to[d * stride] = from[d];
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

/// How heads of a token, from that one on, are rotated; to where is left open.
Rotation rotation_of(const TensorView& x, std::int64_t token, std::int64_t head, std::int64_t heads, const TensorView& cos, const TensorView& sin,
                     bool interleaved) {
  Rotation r{};
  r.x = x.at(token * x.stride[0] + head * x.stride[1]);
  r.x_stride = x.stride[1];
  r.dtype = x.dtype;
  r.cos = cos.as<const float>() + token * cos.stride[0];
  r.sin = sin.as<const float>() + token * sin.stride[0];
  r.half = cos.shape[1];
  r.width = x.shape[2];
  r.heads = heads;
  r.interleaved = interleaved;
  return r;
}

/// Rotates a worker's share of the heads of all tokens, a token's at a time.
void run_rope(const AttentionTable& table, bool interleaved, const TensorView& x, const TensorView& cos, const TensorView& sin,
              const TensorView& y, const Worker& worker) {
  const std::int64_t heads = x.shape[1];
  const Share share = share_of(x.shape[0] * heads, worker.index, worker.count);
  for (std::int64_t i = share.first, count; i < share.last; i += count) {
    const std::int64_t token = i / heads, head = i % heads;
    count = std::min(heads - head, share.last - i);
    Rotation r = rotation_of(x, token, head, count, cos, sin, interleaved);
    r.y = y.at(token * y.stride[0] + head * y.stride[1]);
    r.y_stride = y.stride[1];
    table.rope(r);
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
  return std::make_unique<Rope>(half_for(attention_halves, level), interleaved);
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

/// A worker's copies of one head: as the cache has it, and its key rotated.
struct KeyMemory {
  float *head, *rotated;

  explicit KeyMemory(Frame& frame) : head(frame.take<float>(kMaxHeadDim)), rotated(frame.take<float>(kMaxHeadDim)) {}
};

class KvWrite final : public Kernel {
 public:
  explicit KvWrite(const AttentionTable& table) : table_(table) {}

  Scratch plan(Views in, Views, int) const override {
    require_keys("kv_write", in[0], in[1], in[2], in[3]);
    return {0, bytes_of_layout<KeyMemory>()};
  }

  void run(Views in, Views, const Worker& worker) const override {
    const TensorView &state = in[0], &k = in[1], &v = in[2];
    const auto memory = layout_at<KeyMemory>(worker.local);
    const CacheWriter writer(table_, state, in[3], k.shape[2]);
    const Share heads = share_of(k.shape[1], worker.index, worker.count);
    for (std::int64_t token = 0; token < k.shape[0]; ++token) {
      const std::int64_t slot = writer.slot(token, "kv_write: slot out of range", worker);
      if (slot < 0) continue;
      for (std::int64_t head = heads.first; head < heads.last; ++head) {
        writer.write(slot, head, k.at(token * k.stride[0] + head * k.stride[1]), v.at(token * v.stride[0] + head * v.stride[1]), k.dtype,
                     v.dtype, memory.head);
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
  return std::make_unique<KvWrite>(half_for(attention_halves, level));
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
    return {0, bytes_of_layout<KeyMemory>()};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &k = in[1], &v = in[2], &cos = in[3], &sin = in[4];
    run_rope(table_, interleaved_, in[0], cos, sin, out[0], worker);
    const CacheWriter writer(table_, in[6], in[5], k.shape[2]);
    const Share heads = share_of(k.shape[1], worker.index, worker.count);
    const auto memory = layout_at<KeyMemory>(worker.local);
    for (std::int64_t token = 0; token < k.shape[0]; ++token) {
      const std::int64_t slot = writer.slot(token, "rope_kv_write: slot out of range", worker);
      if (slot < 0) continue;
      for (std::int64_t head = heads.first; head < heads.last; ++head) {
        Rotation r = rotation_of(k, token, head, 1, cos, sin, interleaved_);
        r.y = memory.rotated;
        table_.rope(r);
        writer.write(slot, head, memory.rotated, v.at(token * v.stride[0] + head * v.stride[1]), k.dtype, v.dtype, memory.head);
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
  return std::make_unique<RopeKvWrite>(half_for(attention_halves, level), interleaved);
}

constexpr KernelInfo kKernels[] = {
    {"rope_table", 1, "positions, inv_freq -> cos, sin", "scale: number", make_rope_table},
    {"rope", 1, "x, cos, sin -> y", "style: half | interleaved", make_rope},
    {"kv_write", 1, "state, k, v, slot ->", "", make_kv_write},
    {"rope_kv_write", 1, "q, k, v, cos, sin, slot, state -> y", "style: half | interleaved", make_rope_kv_write},
};

}  // namespace

std::span<const KernelInfo> attention_kernels() { return kKernels; }

}  // namespace ingot
