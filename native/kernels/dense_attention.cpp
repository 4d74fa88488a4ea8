// attention: softmax(scale * q k^T + mask) v over whole tensors, the scores in blocks that never leave the cache.
//
// q [..., H, T, D], k [..., Hk, S, D], v [..., Hk, S, V], mask [..., H, T, S] -> y [..., H, T, V], or [..., T, H, V] with
// heads_inside. Leading dimensions are aligned at the last one and broadcast; H is a multiple of Hk. A boolean mask says what
// is attended to, a float one is added. causal: row t sees the keys 0 .. t. A row whose scores are all -inf gives zeros, or NaN
// where empty_rows is "nan"; without any keys all rows are zeros.
//
// Where there is a dot product of bfloat16 pairs, it makes the scores and the sums of bfloat16 operands of even D (in float32; it
// takes denormals for zeros); weights are rounded to bfloat16. AMX tiles make both where 32 divides D and V; weights have 16 bits there.
//
// Limits: D from 1 to 512, V to 512; q, k, v and y of one float dtype, computed in float32; their last dimension has no gaps,
// the mask may have any strides.
//
// A row's result does not depend on its company: the keys are walked in chunks of 64 from the first on (attention_rows.h).
#include <algorithm>

#include "broadcast.h"
#include "check.h"
#include "level/dense_attention.h"

namespace ingot {

namespace {

constexpr const char* kName = "attention";

/// The sizes of a call and how its work is cut: units of one KV head, each of blocks of rows (token, head of the group).
struct Sizes {
  int outer = 0;                       // leading dimensions of the result, the heads included
  std::int64_t leading[kMaxRank] = {};
  std::int64_t tokens, keys, width, value_width;
  std::int64_t kv_heads = 1, group = 1, units = 1;
  int row_block = 0;

  std::int64_t rows() const { return tokens * group; }
  bool empty() const { return units == 0 || tokens == 0 || value_width == 0; }
};

std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) refuse(kName, "the sizes are too large");
  return out;
}

class Attention final : public Kernel {
 public:
  Attention(const DenseAttentionTable& table, float scale, bool causal, bool heads_inside, bool mask, bool empty_nan)
      : table_(table), scale_(scale), causal_(causal), heads_inside_(heads_inside), mask_(mask), empty_nan_(empty_nan) {}

  Scratch plan(Views in, Views out, int) const override {
    check_shapes(in, out[0]);
    const Sizes sizes = sizes_of(in, out[0], 1);  // fewer workers have larger blocks
    if (sizes.empty()) return {};
    product(product(sizes.units, sizes.rows() + 4 * (sizes.rows() / sizes.row_block + 1)), sizes.keys + 1);  // the cost
    return {0, bytes_of_layout<Memory>(sizes)};
  }

  std::optional<std::uint64_t> apart(Views in, Views out) const override {
    if (out[0].rank < 4) return std::nullopt;  // heads, or tokens
    return apart_by_broadcast(in, out[0]);
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const Sizes sizes = sizes_of(in, out[0], worker.count);
    if (sizes.empty()) return;
    const std::int64_t cost = unit_cost(sizes), total = cost * sizes.units;
    const std::int64_t each = total / worker.count, rest = total % worker.count;
    const std::int64_t first = each * worker.index + rest * worker.index / worker.count;
    const std::int64_t last = each * (worker.index + 1) + rest * (worker.index + 1) / worker.count;
    for (std::int64_t unit = first / cost; unit < sizes.units && unit * cost < last; ++unit)
      run_unit(in, out[0], sizes, unit, first - unit * cost, last - unit * cost, worker);
  }

 private:
  struct Memory {
    AttentionScratch scratch;
    AttentionSums sums;

    Memory(Frame& frame, const Sizes& s)
        : scratch(frame, static_cast<int>(s.width), static_cast<int>(s.value_width), capacity(s)),
          sums(frame, static_cast<int>(s.value_width), capacity(s)) {}
  };

  struct Place {
    AttentionTask task{};
    KeyChunk keys{};
  };

  /// The dimension of y's tokens, counted from the end.
  int token_axis(const TensorView& y) const { return heads_inside_ ? y.rank - 3 : y.rank - 2; }

  Sizes sizes_of(Views in, const TensorView& y, int workers) const {
    const TensorView &q = in[0], &k = in[1], &v = in[2];
    Sizes s;
    s.outer = y.rank - 2;
    for (int i = 0; i < s.outer; ++i) s.leading[i] = y.shape[i];
    if (heads_inside_) s.leading[s.outer - 1] = y.shape[y.rank - 2];
    s.tokens = q.shape[q.rank - 2], s.width = q.shape[q.rank - 1];
    s.keys = k.shape[k.rank - 2], s.value_width = v.shape[v.rank - 1];
    for (const TensorView* x : {&k, &v})
      if (x->rank > 2) s.kv_heads = std::max(s.kv_heads, x->shape[x->rank - 3]);
    for (int i = 0; i < s.outer; ++i) s.units = s.leading[i] == 0 ? 0 : s.units;
    if (s.empty()) return s;
    for (int i = 0; i < s.outer; ++i) s.units *= s.leading[i];
    if (s.outer > 0) {
      s.kv_heads = std::min(s.kv_heads, s.leading[s.outer - 1]);
      s.group = s.leading[s.outer - 1] / s.kv_heads;
      s.units /= s.group;
    }
    s.row_block = row_block_for(s, workers);
    return s;
  }

  static std::int64_t row_floats(const Sizes& s) {
    return padded_width(static_cast<int>(s.width)) + padded_width(static_cast<int>(s.value_width)) + kTokenGroup + 1;
  }

  /// Rows of one task: what fits the second-level cache beside the keys, fewer when there would be too few tasks to keep the
  /// workers busy. Results do not depend on it.
  static int row_block_for(const Sizes& s, int workers) {
    constexpr std::int64_t kFloats = 40000, kMost = 192, kFew = 24, kTile = 6;
    const std::int64_t most = std::clamp(kFloats / row_floats(s), kFew, kMost);
    std::int64_t blocks = (s.rows() + most - 1) / most;
    while (blocks * s.units < 4 * workers && s.rows() > blocks * kFew) ++blocks;
    const std::int64_t rows = (s.rows() + blocks - 1) / blocks;
    return static_cast<int>((rows + kTile - 1) / kTile * kTile);
  }

  static int capacity(const Sizes& s) { return (s.row_block + 15) / 16 * 16; }

  /// Keys that rows up to `last` see.
  std::int64_t seen(const Sizes& s, std::int64_t last) const {
    return causal_ ? std::min(s.keys, (last - 1) / s.group + 1) : s.keys;
  }

  /// About the multiply-adds of rows [first, last), in units of a width; a task also pays for packing its keys once.
  std::int64_t task_cost(const Sizes& s, std::int64_t first, std::int64_t last) const {
    constexpr std::int64_t kPacking = 4;
    return (last - first + kPacking) * (seen(s, last) + 1);
  }

  std::int64_t unit_cost(const Sizes& s) const {
    std::int64_t cost = 0;
    for (std::int64_t row = 0; row < s.rows(); row += s.row_block) cost += task_cost(s, row, std::min(s.rows(), row + s.row_block));
    return cost;
  }

  /// The tasks of a unit that begin in [first, last) of their running cost.
  void run_unit(Views in, const TensorView& y, const Sizes& s, std::int64_t unit, std::int64_t first, std::int64_t last,
                const Worker& worker) const {
    const Place here = place(in, y, s, unit);
    AttentionTask task = here.task;
    task.group = static_cast<int>(s.group), task.head_dim = static_cast<int>(s.width);
    task.value_dim = static_cast<int>(s.value_width);
    task.tokens = s.keys, task.position = causal_ ? 0 : s.keys, task.window = std::int64_t{1} << 62;
    task.empty_nan = empty_nan_ && s.keys > 0;
    const auto memory = layout_at<Memory>(worker.local, s);
    task.scale = scale_, task.scratch = memory.scratch, task.sums = task.totals = memory.sums;
    std::int64_t cost = 0;
    for (std::int64_t row = 0; row < s.rows() && cost < last; row += s.row_block) {
      const std::int64_t end = std::min(s.rows(), row + s.row_block), next_cost = cost + task_cost(s, row, end);
      task.first_row = row, task.rows = static_cast<int>(end - row);
      const bool is_last = end == s.rows(), goes_on = next_cost < last && !(is_last && unit + 1 == s.units);
      Place next = goes_on && is_last ? place(in, y, s, unit + 1) : here;
      next.task.first_row = is_last ? 0 : end;
      if (cost >= first) run_task(s, task, here.keys, goes_on ? &next : nullptr, seen(s, end));
      cost = next_cost;
    }
  }

  /// Where the operands of a unit lie.
  Place place(Views in, const TensorView& y, const Sizes& s, std::int64_t unit) const {
    Place found;
    AttentionTask& task = found.task;
    KeyChunk& keys = found.keys;
    const TensorView &q = in[0], &k = in[1], &v = in[2];
    const auto leading = [&](const TensorView& view, int i) { return broadcast_stride(view, s.outer + 2, i); };
    std::int64_t from_q = 0, from_k = 0, from_v = 0, to = 0, index[kMaxRank] = {};
    for (int i = s.outer - 1; i >= 0; --i) {
      const std::int64_t count = i == s.outer - 1 ? s.leading[i] / s.group : s.leading[i];
      const std::int64_t along = unit % count, own = i == s.outer - 1 ? along * s.group : along;
      unit /= count;
      index[i] = own;
      from_q += own * leading(q, i), from_k += along * leading(k, i), from_v += along * leading(v, i);
      to += own * y.stride[heads_inside_ && i == s.outer - 1 ? y.rank - 2 : i];
    }
    task.q = q.at(from_q), task.out = y.at(to), keys.k = k.at(from_k), keys.v = v.at(from_v);
    task.q_dtype = q.dtype, task.out_dtype = y.dtype, task.state_dtype = k.dtype;
    task.q_token_stride = q.stride[q.rank - 2], task.out_token_stride = y.stride[token_axis(y)];
    if (s.outer > 0) {
      task.q_head_stride = leading(q, s.outer - 1);
      task.out_head_stride = y.stride[heads_inside_ ? y.rank - 2 : y.rank - 3];
    }
    keys.k_stride = k.stride[k.rank - 2], keys.v_stride = v.stride[v.rank - 2];
    if (mask_) place_mask(in[3], s, index, task.mask);
    return found;
  }

  static void place_mask(const TensorView& view, const Sizes& s, const std::int64_t* index, AttentionMask& mask) {
    const auto stride = [&](int dim) { return broadcast_stride(view, s.outer + 2, dim); };  // of [leading..., tokens, keys]
    std::int64_t offset = 0;
    for (int i = 0; i < s.outer; ++i) offset += index[i] * stride(i);
    mask.data = view.at(offset), mask.dtype = view.dtype;
    mask.token_stride = stride(s.outer), mask.key_stride = stride(s.outer + 1);
    mask.head_stride = s.outer > 0 ? stride(s.outer - 1) : 0;
  }

  /// `next`: the worker's next task, whose rows are fetched during the last chunk.
  void run_task(const Sizes& s, const AttentionTask& task, const KeyChunk& keys, const Place* next, std::int64_t end) const {
    table_.begin(task);
    table_.clear(task);
    for (std::int64_t start = 0; start < end; start += kChunkTokens) {
      KeyChunk chunk = chunk_at(s, task, keys, start);
      if (start + kChunkTokens < end) {
        fetch_keys(s, task, chunk_at(s, task, keys, start + kChunkTokens), chunk.ahead);
      } else {
        chunk.ahead[3] = results_of(s, task);
        if (next != nullptr) chunk.ahead[2] = queries_of(s, next->task);
        if (next != nullptr && next->keys.k != keys.k) fetch_keys(s, task, chunk_at(s, task, next->keys, 0), chunk.ahead);
      }
      table_.chunk(task, chunk);
    }
    table_.finish(task);
  }

  static KeyChunk chunk_at(const Sizes& s, const AttentionTask& task, const KeyChunk& keys, std::int64_t start) {
    const std::int64_t element = static_cast<std::int64_t>(size_of(task.state_dtype));
    KeyChunk chunk = keys;
    chunk.start = start;
    chunk.count = static_cast<int>(std::min<std::int64_t>(kChunkTokens, s.keys - start));
    chunk.k = static_cast<const std::byte*>(keys.k) + start * keys.k_stride * element;
    chunk.v = static_cast<const std::byte*>(keys.v) + start * keys.v_stride * element;
    return chunk;
  }

  static void fetch_keys(const Sizes& s, const AttentionTask& task, const KeyChunk& chunk, Ahead* ahead) {
    const std::int64_t element = static_cast<std::int64_t>(size_of(task.state_dtype));
    ahead[0] = {chunk.k, chunk.k_stride * element, chunk.count, s.width * element};
    ahead[1] = {chunk.v, chunk.v_stride * element, chunk.count, s.value_width * element};
  }

  /// The tokens of a task's first block of rows, of the first head of the group.
  static Ahead queries_of(const Sizes& s, const AttentionTask& task) {
    const std::int64_t element = static_cast<std::int64_t>(size_of(task.q_dtype)), first = task.first_row / s.group;
    const std::int64_t count = std::min<std::int64_t>(s.row_block / s.group, s.tokens - first);
    const void* data = static_cast<const std::byte*>(task.q) + first * task.q_token_stride * element;
    return {data, task.q_token_stride * element, count, s.width * element};
  }

  /// Where the rows of a task will be written.
  static Ahead results_of(const Sizes& s, const AttentionTask& task) {
    const std::int64_t element = static_cast<std::int64_t>(size_of(task.out_dtype)), first = task.first_row / s.group;
    const void* data = static_cast<const std::byte*>(task.out) + first * task.out_token_stride * element;
    return {data, task.out_token_stride * element, task.rows / s.group, s.value_width * element};
  }

  // ---- shapes ----

  void check_shapes(Views in, const TensorView& y) const {
    const TensorView &q = in[0], &k = in[1], &v = in[2];
    const std::int64_t tokens = q.shape[q.rank - 2], width = q.shape[q.rank - 1], keys = k.shape[k.rank - 2];
    require_dense_rows(kName, "q", q);
    require_dense_rows(kName, "k", k);
    require_dense_rows(kName, "v", v);
    require_dense_rows(kName, "the output", y);
    require(width >= 1 && width <= kMaxHeadDim, kName, "q's last dimension must be in [1, 512]");
    require(k.shape[k.rank - 1] == width, kName, "k's last dimension must be q's");
    require(v.shape[v.rank - 2] == keys, kName, "k and v must have as many tokens");
    require(v.shape[v.rank - 1] <= kMaxHeadDim, kName, "v's last dimension must be at most 512");
    require(y.shape[token_axis(y)] == tokens && y.shape[y.rank - 1] == v.shape[v.rank - 1], kName,
            "the output's tokens must be q's and its last dimension v's");
    for (int i = 0; i < y.rank - 2; ++i) check_leading(in, y, i);
    if (!mask_) return;
    const TensorView& mask = in[3];
    require(mask.rank <= y.rank, kName, "the mask has more dimensions than the scores");
    const std::int64_t last[2] = {tokens, keys};
    for (int i = 0; i < 2 && i < mask.rank; ++i) {
      const std::int64_t size = mask.shape[mask.rank - 1 - i];
      require(size == 1 || size == last[1 - i], kName, "the mask's last dimensions must be 1 or q's and k's tokens");
    }
  }

  /// Leading dimension i of the result against those of the operands.
  void check_leading(Views in, const TensorView& y, int i) const {
    const bool heads = i == y.rank - 3;
    const std::int64_t size = y.shape[heads && heads_inside_ ? y.rank - 2 : i];
    for (std::size_t j = 0; j < in.size(); ++j) {
      const int axis = in[j].rank - (y.rank - i);
      if (axis < 0) continue;
      const std::int64_t own = in[j].shape[axis];
      const bool grouped = heads && (j == 1 || j == 2) && own > 0 && size % own == 0;
      require(own == size || own == 1 || grouped, kName, "leading dimensions must be the output's, or 1");
    }
    if (!heads) return;
    std::int64_t shared = 1;  // two different numbers of KV heads above 1 do not go together
    for (int j = 1; j < 3; ++j) {
      const std::int64_t own = in[j].rank > 2 ? in[j].shape[in[j].rank - 3] : 1;
      require(own == shared || own == 1 || shared == 1, kName, "k and v must have as many heads");
      if (own != 1) shared = own;
    }
    const std::int64_t queries = in[0].rank > 2 ? in[0].shape[in[0].rank - 3] : 1;
    require(shared == size || shared == 1 || queries == size, kName, "only q may have more heads than k and v");
  }

  const DenseAttentionTable& table_;
  float scale_;
  bool causal_, heads_inside_, mask_, empty_nan_;
};

std::unique_ptr<Kernel> make_attention(const nlohmann::json& json, Types in, Types out, Level level) {
  Params params(kName, json);
  const double scale = params.number("scale", -1e30, 1e30);
  const bool causal = params.flag("causal"), heads_inside = params.flag("heads_inside");
  const std::size_t mask = params.choice("mask", {"none", "bool", "float"});
  // Engines that do not say it were built when all rows that see nothing gave zeros.
  const bool empty_nan = params.has("empty_rows") && params.choice("empty_rows", {"zero", "nan"}) == 1;
  params.done();
  require_operands(kName, in, mask == 0 ? 3 : 4, mask == 0 ? 3 : 4, out, 1);
  const char* const names[] = {"q", "k", "v"};
  for (int i = 0; i < 3; ++i) {
    require_dtype(kName, names[i], in[i].dtype, kComputeFloats);
    require(in[i].dtype == in[0].dtype, kName, "q, k and v must have one dtype");
    require(in[i].rank >= 2 && in[i].rank <= out[0].rank, kName, "q, k and v must have 2 dimensions or more, up to the output's");
  }
  require_dtype(kName, "the output", out[0].dtype, {in[0].dtype});
  require(out[0].rank >= (heads_inside ? 3 : 2), kName, "the output has too few dimensions");
  if (mask == 1) require_dtype(kName, "the mask", in[3].dtype, {DType::boolean});
  if (mask == 2) require_dtype(kName, "the mask", in[3].dtype, kComputeFloats);
  return std::make_unique<Attention>(half_for(dense_attention_halves, level), static_cast<float>(scale), causal, heads_inside, mask != 0,
                                     empty_nan);
}

constexpr KernelInfo kKernels[] = {
    {kName, 1, "q, k, v, mask? -> y",
     "scale: number, causal: flag, heads_inside: flag, mask: none | bool | float, empty_rows?: zero | nan",
     make_attention},
};

}  // namespace

std::span<const KernelInfo> dense_attention_kernels() { return kKernels; }

}  // namespace ingot
