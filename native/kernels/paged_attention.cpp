// paged_attention: softmax(scale * q k^T) v of each row over the tokens of its request in the paged KV cache (kv_cache.h).
//
// Contexts, query bounds and block numbers are checked as they are used: a bad one ends the run in a typed error and no memory
// outside the cache is touched. Requests without query tokens and tokens behind the last request are padding: zero rows.
//
// A row's result does not depend on its company. Every score is one chain of multiply-adds over head_dim. The softmax
// advances by chunks of 64 tokens that start at multiples of 64, and V is added token by token (by AMX tiles both go in their
// order: level/attention_tiles.h; of bfloat16 by pairs of tokens in theirs: level/attention_pairs.h). Sums begin anew at
// multiples of 512 tokens and are added in that order, whether one worker has the whole context of a row or several
// share it.
#include <algorithm>
#include <cstring>

#include "kv_cache.h"

namespace ingot {

namespace {

constexpr const char* kName = "paged_attention";

struct Request {
  std::int64_t first_token, query_tokens, position, group;  // position: of the first query token
  std::int64_t rows() const { return query_tokens * group; }
};

Request request_of(Views in, std::int64_t b) {
  const auto* query_start = in[2].as<const std::int32_t>();
  const std::int64_t query_tokens = query_start[b + 1] - query_start[b];
  return {query_start[b], query_tokens, in[3].as<const std::int32_t>()[b] - query_tokens, in[0].shape[1] / in[1].shape[2]};
}

/// What one worker does at a time: rows [first, last) of a KV head of a request.
struct Task {
  std::int64_t request, head, first, last;
  std::int64_t begin, end;  // tokens that any of the rows sees
  std::int64_t first_segment() const { return begin / kSegmentTokens; }
  std::int64_t end_segment() const { return (end + kSegmentTokens - 1) / kSegmentTokens; }
  Share tokens(std::int64_t segment) const {
    return {std::max(begin, segment * kSegmentTokens), std::min(end, (segment + 1) * kSegmentTokens)};
  }
  /// About the multiply-adds, in units of head_dim; a task also pays for reading its keys once.
  std::int64_t cost(Share tokens) const {
    constexpr std::int64_t kReading = 4;
    return (last - first + kReading) * (tokens.last - tokens.first);
  }
};

/// Segments of a task. sums: where each segment's go, one behind the other, when other workers have the rest; else null.
struct Piece {
  Task task;
  std::int64_t first_segment, end_segment;
  std::byte* sums;
};

int rounded_rows(std::int64_t rows) { return static_cast<int>((rows + kTokenGroup - 1) / kTokenGroup * kTokenGroup); }

std::size_t sums_bytes(int width, int rows) { return bytes_of_layout<AttentionSums>(width, rows); }

/// The sums of a segment, one behind the other's of the segments before.
AttentionSums sums_at(std::byte* memory, std::int64_t segment, int width, int rows) {
  return layout_at<AttentionSums>(memory + static_cast<std::size_t>(segment) * sums_bytes(width, rows), width, rows);
}

/// A worker's memory for one task.
struct TaskMemory {
  AttentionScratch scratch;
  AttentionSums sums, totals;

  TaskMemory(Frame& frame, int width, int rows) : scratch(frame, width, width, rows), sums(frame, width, rows), totals(frame, width, rows) {}
};

/// How the tasks of a step are shared out: each worker has as much of their running cost.
class Sharing {
 public:
  Sharing(Views in, std::int64_t window, int workers)
      : in_(in), window_(window), workers_(workers), heads_(in[1].shape[2]), requests_(in[3].shape[0]), split_rows_(split_rows(in, workers)) {
    row_block_ = block_for();
    std::int64_t tasks = 0;
    for (std::int64_t b = 0; b < requests_; ++b) {
      const Request r = request_of(in, b);
      total_ += heads_ * cost_of(b, r);
      tasks += heads_ * ((r.rows() + row_block_ - 1) / row_block_);
    }
    if (tasks >= 16 * static_cast<std::int64_t>(workers)) split_rows_ = 0;
  }

  /// Bytes of all sums of segments that workers leave for each other.
  static std::size_t shared_bytes(Views in, int workers) { return static_cast<std::size_t>(workers - 1) * task_bytes(in, split_rows(in, workers)); }

  /// Pushes each piece of the worker, made in its place, and calls whole(index, task, sums) for each task that several workers
  /// share; those are fewer than the workers.
  template <class Pipe, class Whole>
  int each(int worker, std::byte* shared, Pipe& pipe, const Whole& whole) const {
    const Share own{bound(worker), bound(worker + 1)};
    const std::size_t sums = task_bytes(in_, split_rows_);
    std::int64_t cost = 0;
    int split = 0;
    for (std::int64_t b = 0; b < requests_; ++b) {
      const Request r = request_of(in_, b);
      const std::int64_t each_head = cost_of(b, r);
      for (std::int64_t head = 0; head < heads_; ++head) {
        if (split_rows_ == 0 && (cost >= own.last || cost + each_head <= own.first)) {
          cost += each_head;
          continue;
        }
        for (std::int64_t row = 0; row < r.rows(); row += row_block_) {
          Piece& piece = pipe.next();
          const Task& task = piece.task;
          set_task(piece.task, b, r, head, row);
          piece.first_segment = piece.end_segment = 0;
          piece.sums = nullptr;
          if (one_owner(task, cost)) {
            piece.first_segment = task.first_segment();
            piece.end_segment = owner(cost) == worker ? task.end_segment() : piece.first_segment;
            cost += task.cost({task.begin, task.end});
          } else {
            piece.sums = shared + static_cast<std::size_t>(split) * sums;
            whole(split++, task, piece.sums);
            for (std::int64_t segment = task.first_segment(); segment < task.end_segment(); ++segment) {
              if (cost < own.first) piece.first_segment = segment + 1;
              if (cost < own.last) piece.end_segment = segment + 1;
              cost += task.cost(task.tokens(segment));
            }
            piece.first_segment = std::max(piece.first_segment, task.first_segment());
          }
          if (piece.first_segment < piece.end_segment) pipe.push();
        }
      }
    }
    return split;
  }

 private:
  /// Bytes of the sums of all segments of a task with that many rows.
  static std::size_t task_bytes(Views in, std::int64_t rows) {
    return rows == 0 ? 0 : static_cast<std::size_t>(segments(in)) * sums_bytes(static_cast<int>(in[0].shape[2]), rounded_rows(rows));
  }

  /// Most rows of a task that several workers may share: as many as there is memory for.
  static std::int64_t split_rows(Views in, int workers) {
    constexpr std::int64_t kRows = 32;
    constexpr std::size_t kBytes = std::size_t{32} << 20;
    if (workers == 1 || segments(in) == 1 || in[1].shape[2] == 0) return 0;
    const std::int64_t most = std::min(kRows, in[0].shape[0] * (in[0].shape[1] / in[1].shape[2]));
    for (std::int64_t rows = most; rows > 0; rows = rows > kTokenGroup ? kTokenGroup : 0)
      if (static_cast<std::size_t>(workers - 1) * task_bytes(in, rows) <= kBytes) return rows;
    return 0;
  }

  static std::int64_t segments(Views in) {
    const std::int64_t capacity = in[4].shape[1] * block_size_of(in[1], in[0].shape[2]);
    return std::max<std::int64_t>(1, (capacity + kSegmentTokens - 1) / kSegmentTokens);
  }

  /// Rows of one task: fewer when there would be too little to keep the workers busy. Results do not depend on it.
  int block_for() const {
    int block = kRowBlock;
    for (; block > 6; block /= 2) {
      std::int64_t pieces = 0;
      bool whole = true;  // one task a head, and all alike
      for (std::int64_t b = 0; b < requests_; ++b) {
        const Request r = request_of(in_, b);
        const std::int64_t tasks = (r.rows() + block - 1) / block, context = r.position + r.query_tokens;
        pieces += heads_ * tasks * (std::min<std::int64_t>(r.rows(), block) <= split_rows_ ? context / kSegmentTokens + 1 : 1);
        whole = whole && r.query_tokens <= 1;
      }
      if (pieces >= 4 * static_cast<std::int64_t>(workers_) || (whole && pieces % workers_ == 0)) break;
    }
    return block;
  }

  void set_task(Task& task, std::int64_t b, const Request& r, std::int64_t head, std::int64_t row) const {
    task.request = b, task.head = head, task.first = row, task.last = std::min(r.rows(), row + row_block_);
    task.begin = std::max<std::int64_t>(0, r.position + row / r.group + 1 - window_);
    task.end = r.position + (task.last - 1) / r.group + 1;
  }

  /// Of one KV head.
  std::int64_t cost_of(std::int64_t b, const Request& r) const {
    std::int64_t cost = 0;
    for (std::int64_t row = 0; row < r.rows(); row += row_block_) {
      Task task;
      set_task(task, b, r, 0, row);
      cost += task.cost({task.begin, task.end});
    }
    return cost;
  }

  std::int64_t bound(int worker) const { return total_ / workers_ * worker + total_ % workers_ * worker / workers_; }

  int owner(std::int64_t cost) const {
    int worker = static_cast<int>(static_cast<double>(cost) / static_cast<double>(total_) * workers_);
    while (bound(worker + 1) <= cost) ++worker;
    while (bound(worker) > cost) --worker;
    return worker;
  }

  /// Whether the task, which begins at `cost`, is not shared.
  bool one_owner(const Task& task, std::int64_t cost) const {
    if (task.last - task.first > split_rows_ || task.end_segment() - task.first_segment() == 1) return true;
    const Share rest = task.tokens(task.end_segment() - 1);
    return owner(cost) == owner(cost + task.cost({task.begin, rest.first}));
  }

  Views in_;
  std::int64_t window_;
  int workers_;
  std::int64_t heads_, requests_, split_rows_, total_ = 0;
  int row_block_;
};

/// What every piece of a call needs.
struct Call {
  const AttentionTable& table;
  Views in;
  const TensorView& y;
  std::int64_t window;
  float scale, softcap;
  const Worker& worker;

  AttentionTask task(const Task& rows) const {
    const TensorView& q = in[0];
    const Request r = request_of(in, rows.request);
    AttentionTask task{};
    task.q = q.at(r.first_token * q.stride[0] + rows.head * r.group * q.stride[1]);
    task.out = y.at(r.first_token * y.stride[0] + rows.head * r.group * y.stride[1]);
    task.q_token_stride = q.stride[0], task.q_head_stride = q.stride[1];
    task.out_token_stride = y.stride[0], task.out_head_stride = y.stride[1];
    task.q_dtype = q.dtype, task.out_dtype = y.dtype, task.state_dtype = in[1].dtype;
    task.group = static_cast<int>(r.group), task.head_dim = task.value_dim = static_cast<int>(q.shape[2]);
    task.first_row = rows.first, task.rows = static_cast<int>(rows.last - rows.first);
    task.tokens = r.position + r.query_tokens;
    task.slopes = in.size() > 5 ? in[5].as<const float>() + rows.head * r.group : nullptr;
    task.position = r.position, task.window = window, task.scale = scale, task.softcap = softcap;
    task.column_pairs = task.state_dtype == DType::bfloat16 && task.value_dim % 32 == 0;
    const auto memory = layout_at<TaskMemory>(worker.local, task.head_dim, rounded_rows(task.rows));
    task.scratch = memory.scratch, task.sums = memory.sums, task.totals = memory.totals;
    return task;
  }

  /// The results of rows whose segments several workers have summed.
  void add_segments(const Task& rows, std::byte* sums) const {
    AttentionTask whole = task(rows);
    for (std::int64_t s = rows.first_segment(); s < rows.end_segment(); ++s) {
      whole.sums = sums_at(sums, s - rows.first_segment(), whole.value_dim, rounded_rows(whole.rows));
      table.fold(whole, s);
    }
    table.finish(whole);
  }
};

/// A worker's pieces, chunk after chunk: each is worked on while the next one is fetched, be it of another piece.
class Pipe {
 public:
  explicit Pipe(const Call& call) : call_(call), cache_(cache_of(call.in[1], call.in[0].shape[2])) {}

  /// Where the next piece is to be made. (Copying one that was just made waits for all work before.)
  Piece& next() { return pieces_[made_ % kPieces]; }

  void push() {
    const Piece& piece = pieces_[made_++ % kPieces];
    const Task& task = piece.task;
    const std::int64_t begin = task.tokens(piece.first_segment).first, end = task.tokens(piece.end_segment - 1).last;
    for (std::int64_t start = begin / kChunkTokens * kChunkTokens; start < end && !failed_; start += kChunkTokens) {
      Step& step = ring_[pushed_ % kSteps];
      step.piece = &piece;
      step.opens_piece = start <= begin;
      step.closes_piece = start + kChunkTokens >= end;
      failed_ = !fill(step.chunk, task, start, begin, end);
      if (failed_) return;
      if (++pushed_ == kSteps + worked_) work_next();
    }
  }

  void flush() {
    while (worked_ < pushed_ && !failed_) work_next();
  }

 private:
  static constexpr std::int64_t kSteps = 3;  // one more than needed: what was just written here is slow to read
  static constexpr std::int64_t kPieces = kSteps + 1;

  struct Step {
    const Piece* piece;
    AttentionChunk chunk;
    bool opens_piece, closes_piece;
  };

  /// The chunk at `start`, of the tokens [begin, end). False: a block is out of range.
  bool fill(AttentionChunk& chunk, const Task& task, std::int64_t start, std::int64_t begin, std::int64_t end) const {
    const std::int32_t* blocks = call_.in[4].as<const std::int32_t>() + task.request * call_.in[4].stride[0];
    const std::int64_t groups_per_block = cache_.block_size / kTokenGroup;
    chunk.start = start;
    chunk.first_group = static_cast<int>(std::max<std::int64_t>(0, begin - start) / kTokenGroup);
    chunk.last_group = static_cast<int>((std::min<std::int64_t>(kChunkTokens, end - start) + kTokenGroup - 1) / kTokenGroup);
    const std::int64_t group = start / kTokenGroup + chunk.first_group;
    std::int64_t index = group / groups_per_block, within = group % groups_per_block;
    for (int g = chunk.first_group; g < chunk.last_group; ++g) {
      const std::int64_t block = blocks[index];
      if (block < 0 || block >= cache_.blocks) {
        call_.worker.fail("paged_attention: block out of range", block, cache_.blocks);
        return false;
      }
      chunk.k[g] = cache_.part(block, 0, task.head) + within * cache_.group_bytes();
      chunk.v[g] = cache_.part(block, 1, task.head) + within * cache_.group_bytes();
      if (++within == groups_per_block) within = 0, ++index;
    }
    // Rows fetch ahead without asking which groups are in use: the others name one that is.
    for (int g = 0; g < kChunkGroups; ++g) {
      const int used = std::clamp(g, chunk.first_group, chunk.last_group - 1);
      chunk.k[g] = chunk.k[used], chunk.v[g] = chunk.v[used];
    }
    return true;
  }

  /// Works on the oldest step and fetches the one behind it.
  void work_next() {
    Step& step = ring_[worked_++ % kSteps];
    const AttentionChunk* later = worked_ < pushed_ ? &ring_[worked_ % kSteps].chunk : nullptr;
    const Piece& piece = *step.piece;
    const std::int64_t segment = step.chunk.start / kSegmentTokens;
    if (step.opens_piece) {
      task_ = call_.task(piece.task);
      call_.table.begin(task_);
    }
    if (step.opens_piece || step.chunk.start % kSegmentTokens == 0) {
      if (piece.sums != nullptr)
        task_.sums = sums_at(piece.sums, segment - piece.task.first_segment(), task_.value_dim, rounded_rows(task_.rows));
      call_.table.clear(task_);
    }
    look_ahead(step.chunk, later);
    call_.table.chunk(task_, step.chunk);
    if (piece.sums != nullptr) return;
    if (step.closes_piece || (step.chunk.start + kChunkTokens) % kSegmentTokens == 0) call_.table.fold(task_, segment);
    if (step.closes_piece) call_.table.finish(task_);
  }

  /// Groups of the later chunk are fetched together with those of this one, the others at once.
  void look_ahead(AttentionChunk& chunk, const AttentionChunk* later) const {
    for (int g = 0; g < kChunkGroups; ++g) {
      const bool some = later != nullptr && g >= later->first_group && g < later->last_group;
      chunk.k_ahead[g] = some ? later->k[g] : chunk.k[g];
      chunk.v_ahead[g] = some ? later->v[g] : chunk.v[g];
    }
    if (later == nullptr) return;
    for (int g = later->first_group; g < later->last_group; ++g) {
      if (g >= chunk.first_group && g < chunk.last_group) continue;
      for (std::int64_t i = 0; i < cache_.group_bytes(); i += 64) {
        __builtin_prefetch(static_cast<const std::byte*>(later->k[g]) + i);
        __builtin_prefetch(static_cast<const std::byte*>(later->v[g]) + i);
      }
    }
  }

  const Call& call_;
  Cache cache_;
  Step ring_[kSteps];
  Piece pieces_[kPieces];
  std::int64_t made_ = 0;
  AttentionTask task_{};
  std::int64_t pushed_ = 0, worked_ = 0;
  bool failed_ = false;
};

class PagedAttention final : public Kernel {
 public:
  PagedAttention(const AttentionTable& table, float scale, std::int64_t window, float softcap)
      : table_(table), scale_(scale), window_(window), softcap_(softcap) {}

  Scratch plan(Views in, Views out, int threads) const override {
    const TensorView &q = in[0], &state = in[1], &query_start = in[2], &context_len = in[3], &block_table = in[4];
    require_same_shape(kName, "the output", out[0], q);
    require_dense_rows(kName, "q", q);
    require_dense_rows(kName, "the output", out[0]);
    require_cache(kName, state, state.shape[2], q.shape[2]);
    require(state.shape[2] > 0 && q.shape[1] % state.shape[2] == 0, kName, "q's heads must be a multiple of the state's kv_heads");
    require_shape(kName, "query_start", query_start, {context_len.shape[0] + 1});
    require(block_table.shape[0] == context_len.shape[0], kName, "block_table must have a row per request");
    require_list(kName, "query_start", query_start);
    require_list(kName, "context_len", context_len);
    require_list(kName, "block_table", block_table);
    if (in.size() > 5) {
      require_shape(kName, "slopes", in[5], {q.shape[1]});
      require_list(kName, "slopes", in[5]);
    }
    const int width = static_cast<int>(q.shape[2]);
    return {Sharing::shared_bytes(in, threads), bytes_of_layout<TaskMemory>(width, kRowBlock)};
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const auto* query_start = in[2].as<const std::int32_t>();
    const std::int64_t requests = in[3].shape[0];
    if (query_start[0] != 0) return worker.fail("paged_attention: query_start must begin at 0", query_start[0], 1);
    for (std::int64_t b = 0; b < requests; ++b)
      if (!request_is_sound(in, b, worker)) return;
    zero_rows(out[0], query_start[requests], in[0].shape[0], worker);

    const Call call{table_, in, out[0], window_, scale_, softcap_, worker};
    Task shared{};  // the one that this worker puts together
    std::byte* sums = nullptr;
    Pipe pipe(call);
    const auto whole = [&](int index, const Task& task, std::byte* its_sums) {
      if (index == worker.index) shared = task, sums = its_sums;
    };
    const int split = Sharing(in, window_, worker.count).each(worker.index, worker.shared, pipe, whole);
    pipe.flush();
    if (split == 0) return;
    worker.barrier();
    if (sums != nullptr) call.add_segments(shared, sums);
  }

 private:
  static bool request_is_sound(Views in, std::int64_t b, const Worker& worker) {
    const auto* query_start = in[2].as<const std::int32_t>();
    const std::int64_t start = query_start[b], end = query_start[b + 1], context = in[3].as<const std::int32_t>()[b];
    const std::int64_t capacity = in[4].shape[1] * block_size_of(in[1], in[0].shape[2]);
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
        std::memset(y.at(token * y.stride[0] + head * y.stride[1]), 0, static_cast<std::size_t>(y.shape[2]) * size_of(y.dtype));
  }

  const AttentionTable& table_;
  float scale_;
  std::int64_t window_;
  float softcap_;
};

std::unique_ptr<Kernel> make_paged_attention(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands(kName, in, 5, 6, out, 1);
  Params params(kName, json);
  const double scale = params.number("scale", -1e6, 1e6);
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 40;
  const std::int64_t window = params.integer_or_null("window", 1, kUnlimited).value_or(kUnlimited);
  const double softcap = params.number_or_null("softcap", 1e-6, 1e6).value_or(0.0);
  params.done();
  require_float_rows(kName, "q", in[0]);
  require_float_rows(kName, "the output", out[0]);
  require_state(kName, in[1]);
  const char* const names[] = {"query_start", "context_len", "block_table"};
  for (int i = 0; i < 3; ++i) {
    require_dtype(kName, names[i], in[2 + i].dtype, {DType::int32});
    require_rank(kName, names[i], in[2 + i].rank, i == 2 ? 2 : 1);
  }
  if (in.size() > 5) {
    require_dtype(kName, "slopes", in[5].dtype, {DType::float32});
    require_rank(kName, "slopes", in[5].rank, 1);
  }
  return std::make_unique<PagedAttention>(half_for(attention_halves, level), static_cast<float>(scale), window, static_cast<float>(softcap));
}

constexpr KernelInfo kKernels[] = {
    {kName, 1, "q, state, query_start, context_len, block_table, slopes? -> y",
     "scale: number, window?: integer or null, softcap?: number or null",
     make_paged_attention},
};

}  // namespace

std::span<const KernelInfo> paged_attention_kernels() { return kKernels; }

}  // namespace ingot
