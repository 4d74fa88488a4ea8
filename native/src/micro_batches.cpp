// Which calls run in micro-batches: those that may, then those that gain.
#include "micro_batches.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace ingot {
namespace {

constexpr std::int64_t kCacheOfWorker = std::int64_t{2} << 20;  // bytes of what calls hand on that stay in a worker's caches
constexpr std::int64_t kBytesOfCall = std::int64_t{1} << 16;  // that memory moves while workers meet for one call more
constexpr std::int64_t kCostOfWeights = 4;  // of a byte of weights that is read again; products wait for it, and few rows use it
constexpr std::int64_t kMostParts = 64;  // of a batch

std::int64_t bytes_of(const TensorView& view) { return view.elements() * static_cast<std::int64_t>(size_of(view.dtype)); }

/// A call that may run in micro-batches.
struct Candidate {
  std::int64_t images;
  std::uint64_t operands;  // those that have a part for each image
};

class Finder {
 public:
  Finder(const LoadedProgram& loaded, const Stage& stage, const BufferSizes& sizes, int threads)
      : program_(*loaded.program), loaded_(loaded), stage_(stage), sizes_(sizes), cache_(threads * kCacheOfWorker),
        written_by_(program_.buffers.size(), -1) {}

  std::vector<MicroBatches> run() {
    for (int first = stage_.first_call; first < stage_.end_call;) {
      const int end = end_of_chain(first);
      if (end > first + 1) choose(first, end);
      first = std::max(end, first + 1);
    }
    std::sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) { return a.first_call < b.first_call; });
    return std::move(found_);
  }

 private:
  const Program& program_;
  const LoadedProgram& loaded_;
  const Stage& stage_;
  const BufferSizes& sizes_;
  std::int64_t cache_;
  std::vector<int> written_by_;       // by buffer: the first call of the last chain that writes it, or -1
  std::vector<Candidate> candidates_;  // of the present chain
  int chain_ = 0;                      // its first call
  std::vector<MicroBatches> found_;

  const TensorView& view(int buffer) const { return sizes_.views[static_cast<std::size_t>(buffer)]; }
  /// Whether calls of the present chain, from one on, write it.
  bool written_from(int first, int buffer) const { return written_by_[static_cast<std::size_t>(program_.base(buffer))] >= first; }
  const Call& call(int index) const { return program_.calls[static_cast<std::size_t>(index)]; }
  const Candidate& candidate(int index) const { return candidates_[static_cast<std::size_t>(index - chain_)]; }
  static bool has(std::uint64_t operands, std::size_t i) { return (operands >> i & 1) != 0; }

  std::optional<Candidate> candidate_of(int index) const {
    const Kernel* kernel = loaded_.kernels[static_cast<std::size_t>(index)].get();
    const Call& what = call(index);
    if (kernel == nullptr || !what.binds.empty() || what.in.size() > 64) return std::nullopt;
    std::vector<TensorView> in, out;
    for (int operand : what.in) {
      if (program_.buffer(operand).kind == BufferKind::state) return std::nullopt;
      in.push_back(view(operand));
    }
    for (int result : what.out) out.push_back(view(result));
    if (out.empty() || out[0].rank == 0 || out[0].shape[0] < 2) return std::nullopt;
    const Candidate made{out[0].shape[0], kernel->apart(in, out).value_or(0)};
    if (made.operands == 0) return std::nullopt;
    for (std::size_t i = 0; i < in.size(); ++i)
      if (has(made.operands, i) && (in[i].rank == 0 || in[i].shape[0] != made.images)) return std::nullopt;
    return std::all_of(what.out.begin(), what.out.end(), [&](int result) { return by_images(result, made.images); })
               ? std::optional(made)
               : std::nullopt;
  }

  /// Whether part i along the first dimension of a view is within image i of its buffer.
  bool by_images(int buffer, std::int64_t images) const {
    const TensorView& window = view(buffer);
    const std::int64_t all = view(program_.base(buffer)).elements();
    if (all == 0 || all % images != 0 || window.rank == 0 || window.shape[0] != images || window.stride[0] != all / images) return false;
    std::int64_t low = sizes_.offsets[static_cast<std::size_t>(buffer)], high = low;
    for (int dim = 1; dim < window.rank; ++dim) {
      const std::int64_t reach = (window.shape[dim] - 1) * window.stride[dim];
      (reach < 0 ? low : high) += reach;
    }
    return low >= 0 && high < all / images;
  }

  /// From a call on, those that may run for some images before all of them run for others: an image needs of what they write
  /// its own parts only.
  int end_of_chain(int first) {
    candidates_.clear();
    chain_ = first;
    int end = first;
    for (; end < stage_.end_call; ++end) {
      const std::optional<Candidate> next = candidate_of(end);
      if (!next || (end > first && next->images != candidates_[0].images)) break;
      const std::vector<int>& in = call(end).in;
      bool own = true;
      for (std::size_t i = 0; i < in.size() && own; ++i)
        own = !written_from(first, in[i]) || (has(next->operands, i) && by_images(in[i], next->images));
      if (!own) break;
      candidates_.push_back(*next);
      for (int result : call(end).out) {
        int& by = written_by_[static_cast<std::size_t>(program_.base(result))];
        if (by < first) by = end;
      }
    }
    return end;
  }

  struct Choice {
    double gain = 0;  // no sizes overflow it
    std::int64_t each = 0;
    int first = 0, end = 0;
  };

  /// The best part of the calls [first, end), then those of what is left on both sides.
  void choose(int first, int end) {
    std::vector<std::pair<int, int>> left{{first, end}};
    while (!left.empty()) {
      std::tie(first, end) = left.back();
      left.pop_back();
      const Choice best = best_of(first, end);
      if (best.each == 0) continue;
      keep(best);
      if (best.first > first + 1) left.push_back({first, best.first});
      if (end > best.end + 1) left.push_back({best.end, end});
    }
  }

  void keep(const Choice& best) {
    MicroBatches made{best.first, best.end, candidate(best.first).images, best.each, {}, {}};
    for (int c = best.first; c < best.end; ++c) made.operands.push_back(candidate(c).operands);
    for (const Lifetime& life : stage_.lifetimes) {
      const auto buffer = static_cast<std::size_t>(life.buffer);
      if (program_.buffers[buffer].kind == BufferKind::temp && life.first >= best.first && life.last < best.end)
        made.inner.push_back(life.buffer);
    }
    found_.push_back(std::move(made));
  }

  /// The calls of [first, end) that gain most, one behind the other. Most programs hand on nothing that leaves the caches, or all of a
  /// chain gains: what calls from one on gain at most then spares the look at every part of thousands of calls.
  Choice best_of(int first, int end) const {
    Choice best;
    const std::int64_t images = candidate(first).images;
    std::vector<double> most(static_cast<std::size_t>(end - first) + 1);
    for (std::int64_t each = (images + kMostParts - 1) / kMostParts; each < images; each *= 2) {
      for (int c = end - 1; c >= first; --c) {
        const auto at = static_cast<std::size_t>(c - first);
        most[at] = most[at + 1] + std::max(0.0, gain_of(c, first, each));
      }
      for (int from = first; from + 1 < end && most[static_cast<std::size_t>(from - first)] > best.gain; ++from) {
        double gain = 0;
        for (int c = from; c < end; ++c) {
          gain += gain_of(c, from, each);
          if (gain > best.gain) best = {gain, each, from, c + 1};
        }
      }
    }
    return best;
  }

  /// What it gains, in bytes, that a call takes so many images at a time, with those from `first` on before it.
  double gain_of(int index, int first, std::int64_t each) const {
    const std::int64_t images = candidate(index).images, again = (images + each - 1) / each - 1;
    const std::vector<int>& in = call(index).in;
    std::int64_t handed = 0, read_again = kBytesOfCall;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const std::int64_t bytes = bytes_of(view(in[i]));
      if (!has(candidate(index).operands, i)) read_again += bytes;
      else if (written_from(first, in[i]) && bytes > cache_ && (each == 1 || bytes / images * each <= cache_)) handed += bytes;
    }
    // What is handed on is written and read.
    return 2 * static_cast<double>(handed) - static_cast<double>(kCostOfWeights * again) * static_cast<double>(read_again);
  }
};

}  // namespace

std::vector<MicroBatches> find_micro_batches(const LoadedProgram& loaded, const Stage& stage, const BufferSizes& sizes, int threads) {
  if (loaded.kernels.empty()) return {};
  return Finder(loaded, stage, sizes, threads).run();
}

std::vector<Lifetime> lifetimes_of(const Stage& stage, std::span<const MicroBatches> batches) {
  std::vector<Lifetime> lives = stage.lifetimes;
  for (const MicroBatches& part : batches) {
    for (Lifetime& life : lives) {
      if (std::find(part.inner.begin(), part.inner.end(), life.buffer) != part.inner.end()) continue;
      if (life.first >= part.first_call && life.first < part.end_call) life.first = part.first_call;
      if (life.last >= part.first_call && life.last < part.end_call) life.last = part.end_call - 1;
    }
  }
  return lives;
}

}  // namespace ingot
