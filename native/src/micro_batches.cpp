// Which calls run in micro-batches: those that may, then those that gain.
#include "micro_batches.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "tensor.h"

namespace ingot {
namespace {

constexpr std::int64_t kCacheOfWorker = std::int64_t{2} << 20;  // bytes of what calls hand on that stay in a worker's caches
constexpr std::int64_t kBytesOfCall = std::int64_t{1} << 16;  // that memory moves while workers meet for one call more
constexpr std::int64_t kCostOfWeights = 4;  // of a byte of weights that is read again; products wait for it, and few rows use it
constexpr std::int64_t kFewRows = 64;  // below which a product takes as long as its weights are read: workers then share these
constexpr std::int64_t kEnoughRows = 256;  // for each byte of a value, from which on weights come while others are multiplied
constexpr std::int64_t kMostParts = 64;  // of what a stream has, or of half a batch

/// A call that may run in micro-batches.
struct Candidate {
  std::int64_t images;
  std::uint64_t operands;  // those that have a part for each image
};

class Finder {
 public:
  Finder(const LoadedProgram& loaded, const Stage& stage, const BufferSizes& sizes, int threads)
      : program_(*loaded.program), loaded_(loaded), stage_(stage), sizes_(sizes), threads_(threads), cache_(threads * kCacheOfWorker),
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
  int threads_;
  std::int64_t cache_;  // of all workers
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
    if (kernel == nullptr || !what.binds.empty() || what.in.size() + what.out.size() > kMostOfGroup) return std::nullopt;
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
    int streams = 1;
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

  /// A worker has more than one group of images, so that others take some of a slower one's: but not in the last calls, where products of
  /// so few rows would wait for their weights.
  void keep(const Choice& best) {
    const std::int64_t own = candidate(best.first).images / best.streams, half = (own + 1) / 2;
    int cut = best.first;
    for (int c = best.first; c < best.end && best.streams > 1 && best.each > half; ++c)
      if (half * rows_of(view(call(c).out[0])) >= kEnoughRows * static_cast<std::int64_t>(size_of(view(call(c).out[0]).dtype))) cut = c + 1;
    if (cut > best.first) add(best.first, cut, half, best.streams);
    if (cut < best.end) add(cut, best.end, best.each, best.streams);
  }

  void add(int first, int end, std::int64_t each, int streams) {
    found_.push_back({first, end, candidate(first).images, each, streams, {}});
    for (int c = first; c < end; ++c) found_.back().operands.push_back(candidate(c).operands);
  }

  /// The calls of [first, end) that gain most, one behind the other. Most programs hand on nothing that leaves the caches, or all of a
  /// chain gains: what calls from one on gain at most then spares the look at every part of thousands of calls.
  Choice best_of(int first, int end) const {
    Choice best;
    const std::int64_t images = candidate(first).images;
    if (threads_ > 1 && images >= threads_) consider(first, end, threads_, images / threads_, best);
    consider(first, end, 1, (images + 1) / 2, best);
    return best;
  }

  /// The same of so many images at a time and fewer, in so many streams. Of what gains as much, more images at a time are better.
  void consider(int first, int end, int streams, std::int64_t most_images, Choice& best) const {
    std::vector<double> most(static_cast<std::size_t>(end - first) + 1);
    MicroBatches part{first, end, candidate(first).images, 0, streams, {}};
    for (std::int64_t parts = 1; parts <= kMostParts && parts < 2 * most_images; parts *= 2) {
      part.each = (most_images + parts - 1) / parts;
      for (int c = end - 1; c >= first; --c) {
        const auto at = static_cast<std::size_t>(c - first);
        most[at] = most[at + 1] + std::max(0.0, gain_of(c, first, part));
      }
      for (int from = first; from + 1 < end && most[static_cast<std::size_t>(from - first)] > best.gain; ++from) {
        double gain = 0;
        for (int c = from; c < end; ++c) {
          gain += gain_of(c, from, part);
          if (gain > best.gain) best = {gain, part.each, streams, from, c + 1};
        }
      }
    }
  }

  /// Of an image.
  static std::int64_t rows_of(const TensorView& out) {
    std::int64_t rows = 1;
    for (int dim = 1; dim + 1 < out.rank; ++dim) rows *= out.shape[dim];
    return rows;
  }

  /// What it gains, in bytes, that a call runs so, with those from `first` on before it.
  double gain_of(int index, int first, const MicroBatches& part) const {
    const std::int64_t cache = cache_ / part.streams;
    const std::vector<int>& in = call(index).in;
    std::int64_t handed = 0, weights = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const std::int64_t bytes = bytes_of(view(in[i]));
      if (!has(candidate(index).operands, i)) {
        weights += bytes;
      } else if (written_from(first, in[i]) && bytes > cache_) {
        // What is made of several images takes half of the caches. An image that is too large for one worker's caches may fit into those of all.
        const std::int64_t image = bytes / part.images;
        const bool least = part.each == 1 && (part.streams == 1 || image > cache_);
        if (least || image * part.each <= (part.each > 1 ? cache / 2 : cache)) handed += bytes;
      }
    }
    const std::int64_t rows = part.each * rows_of(view(call(index).out[0]));
    const std::int64_t again = part.rounds() - (part.streams > 1 && rows < kFewRows ? 0 : 1), meetings = part.meetings() - 1;
    // What is handed on is written and read.
    return 2 * static_cast<double>(handed) - static_cast<double>(kCostOfWeights) * (static_cast<double>(again) * static_cast<double>(weights) +
                                                                                   static_cast<double>(meetings * kBytesOfCall));
  }
};

}  // namespace

std::vector<MicroBatches> find_micro_batches(const LoadedProgram& loaded, const Stage& stage, const BufferSizes& sizes, int threads) {
  if (loaded.kernels.empty()) return {};
  return Finder(loaded, stage, sizes, threads).run();
}

Lifetimes lifetimes_of(const Program& program, const Stage& stage, std::span<const MicroBatches> batches) {
  Lifetimes lives;
  lives.inner.resize(batches.size());
  for (Lifetime life : stage.lifetimes) {
    const auto within = [&](const MicroBatches& part, int call) { return call >= part.first_call && call < part.end_call; };
    std::vector<Lifetime>* all = &lives.outer;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const MicroBatches& part = batches[i];
      if (within(part, life.first) && within(part, life.last) && program.buffer(life.buffer).kind == BufferKind::temp) {
        all = &lives.inner[i];
        break;
      }
      if (within(part, life.first)) life.first = part.first_call;
      if (within(part, life.last)) life.last = part.end_call - 1;
    }
    all->push_back(life);
  }
  return lives;
}

}  // namespace ingot
