#include "sample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "level/sample.h"

namespace ingot {

namespace {

const SampleTable& table_for([[maybe_unused]] Level level) {
#if INGOT_X86
  if (level >= Level::avx512) return avx512::sample_table;
  if (level >= Level::avx2) return avx2::sample_table;
#endif
  return portable::sample_table;
}

constexpr const char* kNotFinite = "a logit is NaN or infinite, or none is finite";

/// One row of logits: its greatest value and its weights exp((logit - greatest) / temperature).
class Distribution {
 public:
  Distribution(const SampleTable& table, std::int64_t vocabulary)
      : table_(table), count_(vocabulary), sums_(static_cast<std::size_t>((vocabulary + kWeightBlock - 1) / kWeightBlock)) {}

  /// False when the row has a NaN, +infinity, or nothing above -infinity.
  bool read(const float* logits) {
    logits_ = logits;
    maximum_ = table_.maximum(logits, count_);
    return std::isfinite(maximum_);
  }

  std::int64_t first_greatest() const { return std::find(logits_, logits_ + count_, maximum_) - logits_; }

  float logprob(std::int64_t token) {
    table_.weigh(logits_, count_, maximum_, 1.0f, nullptr, sums_.data());
    return logits_[token] - maximum_ - static_cast<float>(std::log(total()));
  }

  void weigh(float temperature) {
    weights_.resize(static_cast<std::size_t>(count_));
    table_.weigh(logits_, count_, maximum_, temperature, weights_.data(), sums_.data());
  }

  double total() const {
    double total = 0;
    for (const float sum : sums_) total += sum;
    return total;
  }

  /// The token at which the running sum of the weights, in token order, passes `uniform` of the total.
  std::int64_t at(double uniform) const {
    const double target = uniform * total();
    double sum = 0;
    std::size_t block = 0;
    while (block + 1 < sums_.size() && sum + sums_[block] <= target) sum += sums_[block++];
    const auto begin = static_cast<std::int64_t>(block) * kWeightBlock;
    std::int64_t chosen = -1;  // a weight of zero is never chosen; a block's own sum may differ from its elements' by rounding
    for (std::int64_t i = begin; i < std::min(count_, begin + kWeightBlock); ++i) {
      if (weights_[i] == 0) continue;
      chosen = i;
      sum += weights_[i];
      if (sum > target) break;
    }
    return chosen >= 0 ? chosen : first_greatest();
  }

  std::int64_t count() const { return count_; }
  float logit(std::int64_t token) const { return logits_[token]; }
  float weight(std::int64_t token) const { return weights_[token]; }
  float maximum() const { return maximum_; }

 private:
  const SampleTable& table_;
  std::int64_t count_;
  const float* logits_ = nullptr;
  float maximum_ = 0;
  std::vector<float> weights_, sums_;
};

/// The tokens of a row by falling logit, sorted only as far as asked. Candidates are collected in three tiers (within 8, then
/// within 20 temperatures of the greatest logit, then all): the first nearly always suffices.
class Ranking {
 public:
  Ranking(const Distribution& row, float temperature) : row_(row), temperature_(temperature) {}

  /// The token of that rank; ranks must be asked for below the vocabulary's size.
  std::int64_t operator[](std::int64_t rank) {
    while (rank >= static_cast<std::int64_t>(tokens_.size())) collect();
    while (rank >= sorted_) sort_more();
    return tokens_[static_cast<std::size_t>(rank)];
  }

 private:
  void collect() {
    constexpr float kTiers[] = {8.0f, 20.0f};
    const bool all = tier_ == 2;
    const float bound = all ? -INFINITY : row_.maximum() - kTiers[tier_] * temperature_;
    const float above = tier_ == 0 ? INFINITY : bound_;
    for (std::int64_t i = 0; i < row_.count(); ++i)
      if (row_.logit(i) >= bound && row_.logit(i) < above) tokens_.push_back(i);
    bound_ = bound;
    ++tier_;
  }

  void sort_more() {
    const auto before = [this](std::int64_t a, std::int64_t b) {
      const float x = row_.logit(a), y = row_.logit(b);
      return x > y || (x == y && a < b);
    };
    const auto size = static_cast<std::int64_t>(tokens_.size());
    const std::int64_t next = std::min(size, std::max<std::int64_t>(64, 4 * sorted_));
    if (next < size) std::nth_element(tokens_.begin() + sorted_, tokens_.begin() + next, tokens_.end(), before);
    std::sort(tokens_.begin() + sorted_, tokens_.begin() + next, before);
    sorted_ = next;
  }

  const Distribution& row_;
  float temperature_;
  float bound_ = 0;
  int tier_ = 0;
  std::int64_t sorted_ = 0;
  std::vector<std::int64_t> tokens_;
};

/// Every filter keeps a prefix of the ranking, so the shortest prefix is kept.
std::int64_t sample_filtered(const Distribution& row, float temperature, std::int64_t top_k, float top_p, float min_p,
                             double uniform) {
  Ranking ranking(row, temperature);
  double mass = row.total();
  if (top_k < row.count()) {
    mass = 0;
    for (std::int64_t rank = 0; rank < top_k; ++rank) mass += row.weight(ranking[rank]);
  }
  std::int64_t kept = 1;
  double sum = row.weight(ranking[0]);
  while (kept < top_k && (top_p >= 1.0f || sum < static_cast<double>(top_p) * mass)) {
    const float weight = row.weight(ranking[kept]);
    if (weight == 0 || weight < min_p) break;
    sum += weight;
    ++kept;
  }
  const double target = uniform * sum;
  double running = 0;
  for (std::int64_t rank = 0; rank < kept; ++rank) {
    running += row.weight(ranking[rank]);
    if (running > target) return ranking[rank];
  }
  return ranking[kept - 1];
}

const char* fault_in(float temperature, float top_p, float min_p) {
  if (!(temperature >= 0 && std::isfinite(temperature))) return "temperature must be finite and not negative";
  if (!(top_p >= 0 && top_p <= 1)) return "top_p must be in [0, 1]";
  if (!(min_p >= 0 && min_p <= 1)) return "min_p must be in [0, 1]";
  return nullptr;
}

}  // namespace

double uniform_at(std::uint64_t seed, std::uint64_t position) {
  // Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
  __extension__ using Wide = unsigned __int128;
  std::uint64_t counter[4] = {position, 0, 0, 0}, key[2] = {seed, 0};
  for (int round = 0; round < 10; ++round) {
    const Wide a = static_cast<Wide>(0xD2E7470EE14C6C93u) * counter[0], b = static_cast<Wide>(0xCA5A826395121157u) * counter[2];
    const std::uint64_t next[4] = {static_cast<std::uint64_t>(b >> 64) ^ counter[1] ^ key[0], static_cast<std::uint64_t>(b),
                                   static_cast<std::uint64_t>(a >> 64) ^ counter[3] ^ key[1], static_cast<std::uint64_t>(a)};
    std::copy(next, next + 4, counter);
    key[0] += 0x9E3779B97F4A7C15u;
    key[1] += 0xBB67AE8584CAA73Bu;
  }
  return static_cast<double>(counter[0] >> 11) * 0x1p-53;
}

SampleFault sample_rows(const float* logits, std::int64_t rows, std::int64_t vocabulary, const SampleParameters& parameters,
                        std::int64_t* tokens, float* logprobs, Level level) {
  Distribution row(table_for(level), vocabulary);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float temperature = parameters.temperature[r], top_p = parameters.top_p[r], min_p = parameters.min_p[r];
    if (const char* message = fault_in(temperature, top_p, min_p)) return {message, r};
    if (!row.read(logits + r * vocabulary)) return {kNotFinite, r};
    if (temperature == 0) {
      tokens[r] = row.first_greatest();
    } else {
      const std::int64_t top_k = parameters.top_k[r] <= 0 ? vocabulary : std::min<std::int64_t>(parameters.top_k[r], vocabulary);
      const double uniform = uniform_at(parameters.seed[r], static_cast<std::uint64_t>(parameters.position[r]));
      row.weigh(temperature);
      const bool whole = top_k == vocabulary && top_p >= 1.0f && min_p <= 0.0f;
      tokens[r] = whole ? row.at(uniform) : sample_filtered(row, temperature, top_k, top_p, min_p, uniform);
    }
    logprobs[r] = row.logprob(tokens[r]);
  }
  return {};
}

SampleFault log_probs(const float* logits, std::int64_t rows, std::int64_t vocabulary, const std::int64_t* targets,
                      float* logprobs, Level level) {
  Distribution row(table_for(level), vocabulary);
  for (std::int64_t r = 0; r < rows; ++r) {
    if (targets[r] < 0 || targets[r] >= vocabulary) return {"a target is not in the vocabulary", r};
    if (!row.read(logits + r * vocabulary)) return {kNotFinite, r};
    logprobs[r] = row.logprob(targets[r]);
  }
  return {};
}

}  // namespace ingot
