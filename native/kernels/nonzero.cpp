// count_nonzero, nonzero: how many elements are not zero, and where they are, in row-major order.
//
// -0 is zero and NaN is not. Operands and results may have any strides. A program calls the first to know the size of the second's
// result; one that gives the second another size ends in a typed error.
#include <algorithm>

#include "check.h"
#include "strided.h"

namespace ingot {

namespace {

constexpr std::int64_t kRun = 128;  // elements that are looked at together: a byte counts them, and a byte says which

/// Elements of a row that lie `step` apart, of which those are zero that have no bit of the mask.
template <class Bits>
struct Run {
  const Bits* from;
  std::int64_t step, count;  // count <= kRun
  Bits mask;

  /// How many are not zero. A sum as wide as the elements lets the compiler use vectors.
  std::int64_t nonzero() const {
    Bits sum = 0;
    if (step == 1)
      for (std::int64_t i = 0; i < count; ++i) sum = static_cast<Bits>(sum + ((from[i] & mask) != 0));
    else
      for (std::int64_t i = 0; i < count; ++i) sum = static_cast<Bits>(sum + ((from[i * step] & mask) != 0));
    return static_cast<std::int64_t>(sum);
  }

  /// Writes which ones they are, and gives their number. Each is written, and stays if it is not zero: which ones are is not to be
  /// foreseen.
  std::int64_t places(std::uint8_t* to) const {
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      to[found] = static_cast<std::uint8_t>(i);
      found += (from[i * step] & mask) != 0;
    }
    return found;
  }
};

/// Calls f(row, first, run) for runs that make up the share, which is given by row-major numbers: row is the number of a row along
/// the last dimension, first the place of the run's first element there.
template <class Bits, class F>
void each_in(const TensorView& x, Bits mask, const Share& share, const F& f) {
  TensorView rows = x;
  --rows.rank;
  const std::int64_t width = x.shape[rows.rank], step = x.stride[rows.rank];
  for (std::int64_t at = share.first; at < share.last;) {
    const std::int64_t row = at / width, first = at % width, last = std::min(width, first + share.last - at);
    const Bits* from = x.as<const Bits>() + offset_of(rows, row);
    for (std::int64_t i = first; i < last; i += kRun) f(row, i, Run<Bits>{from + i * step, step, std::min(kRun, last - i), mask});
    at += last - first;
  }
}

template <class F>
void each_run(const TensorView& x, const Share& share, const F& f) {
  const bool sign = is_float(x.dtype);
  switch (bytes_of(x.dtype)) {
    case 1: return each_in<std::uint8_t>(x, 0xff, share, f);
    case 2: return each_in<std::uint16_t>(x, sign ? 0x7fff : 0xffff, share, f);
    case 4: return each_in<std::uint32_t>(x, sign ? 0x7fffffffu : 0xffffffffu, share, f);
    default: return each_in<std::uint64_t>(x, sign ? ~std::uint64_t{0} >> 1 : ~std::uint64_t{0}, share, f);
  }
}

/// Counts what each worker has in its share; all know all counts afterwards.
std::int64_t* counts_of_all(const TensorView& x, const Worker& worker) {
  auto* const counts = reinterpret_cast<std::int64_t*>(worker.shared);
  std::int64_t count = 0;
  each_run(x, share_of(x.elements(), worker.index, worker.count),
           [&](std::int64_t, std::int64_t, const auto& run) { count += run.nonzero(); });
  counts[worker.index] = count;
  worker.barrier();
  return counts;
}

std::int64_t sum_of(const std::int64_t* counts, int workers) {
  std::int64_t sum = 0;
  for (int w = 0; w < workers; ++w) sum += counts[w];
  return sum;
}

Scratch counts_memory(int threads) { return {static_cast<std::size_t>(threads) * sizeof(std::int64_t), 0}; }

class CountNonzero final : public Kernel {
 public:
  Scratch plan(Views, Views out, int threads) const override {
    require_shape("count_nonzero", "the output", out[0], {1});
    return counts_memory(threads);
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const std::int64_t* const counts = counts_of_all(in[0], worker);
    if (worker.index == 0) *out[0].as<std::int64_t>() = sum_of(counts, worker.count);
  }
};

class Nonzero final : public Kernel {
 public:
  Scratch plan(Views in, Views out, int threads) const override {
    require_shape("nonzero", "the output", out[0], {in[0].rank, out[0].shape[1]});
    return counts_memory(threads);
  }

  void run(Views in, Views out, const Worker& worker) const override {
    const TensorView &x = in[0], &y = out[0];
    const std::int64_t* const counts = counts_of_all(x, worker);
    const std::int64_t found = sum_of(counts, worker.count);
    if (found != y.shape[1]) return worker.fail("nonzero: the output has another size than there are elements", found, y.shape[1]);
    std::int64_t* to = y.as<std::int64_t>() + sum_of(counts, worker.index) * y.stride[1];
    std::int64_t room = counts[worker.index];  // never more, should x change meanwhile
    each_run(x, share_of(x.elements(), worker.index, worker.count), [&](std::int64_t row, std::int64_t first, const auto& run) {
      std::uint8_t places[kRun];
      const std::int64_t found = std::min(run.places(places), room), step = y.stride[1];
      std::int64_t* const last = to + (x.rank - 1) * y.stride[0];
      if (step == 1)
        for (std::int64_t j = 0; j < found; ++j) last[j] = first + places[j];
      else
        for (std::int64_t j = 0; j < found; ++j) last[j * step] = first + places[j];
      for (int d = x.rank - 2; d >= 0; --d, row /= x.shape[d + 1]) {
        const std::int64_t place = row % x.shape[d];
        for (std::int64_t j = 0; j < found; ++j) to[d * y.stride[0] + j * step] = place;
      }
      to += found * step;
      room -= found;
    });
  }
};

template <class K>
std::unique_ptr<Kernel> make(const char* name, const nlohmann::json& params, Types in, Types out, int rank) {
  require_operands(name, in, 1, 1, out, 1);
  Params(name, params).done();
  require_dtype(name, "x", in[0].dtype, kOrderedTypes);
  require_dtype(name, "the output", out[0].dtype, {DType::int64});
  require(in[0].rank > 0, name, "x must have at least one dimension");
  require_rank(name, "the output", out[0].rank, rank);
  return std::make_unique<K>();
}

std::unique_ptr<Kernel> make_count(const nlohmann::json& params, Types in, Types out, Level) {
  return make<CountNonzero>("count_nonzero", params, in, out, 1);
}

std::unique_ptr<Kernel> make_nonzero(const nlohmann::json& params, Types in, Types out, Level) {
  return make<Nonzero>("nonzero", params, in, out, 2);
}

constexpr KernelInfo kKernels[] = {
    {"count_nonzero", 1, "x -> size", "", make_count},
    {"nonzero", 1, "x -> places", "", make_nonzero},
};

}  // namespace

std::span<const KernelInfo> nonzero_kernels() { return kKernels; }

}  // namespace ingot
