#include "sample.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "level/sample.h"

namespace ingot {

namespace {

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

/// The likeliest tokens of a row and their log probabilities.
void report_top(const float* logits, std::int64_t vocabulary, float maximum, double log_total, std::int64_t count,
                std::int64_t* tokens, float* logprobs) {
  const auto before = [logits](std::int64_t a, std::int64_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); };
  std::vector<std::int64_t> best;
  for (std::int64_t i = 0; i < vocabulary; ++i) {  // count is small: a sorted list
    if (static_cast<std::int64_t>(best.size()) == count && !before(i, best.back())) continue;
    best.insert(std::upper_bound(best.begin(), best.end(), i, before), i);
    if (static_cast<std::int64_t>(best.size()) > count) best.pop_back();
  }
  for (std::size_t i = 0; i < best.size(); ++i) {
    tokens[i] = best[i];
    logprobs[i] = logits[best[i]] - maximum - static_cast<float>(log_total);
  }
}

void require_sampling(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
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

Sampler::Sampler(std::int64_t vocabulary, Sampling sampling, std::span<const std::int64_t> prompt)
    : vocabulary_(vocabulary), sampling_(std::move(sampling)),
      penalises_(sampling_.repetition != 1 || sampling_.presence != 0 || sampling_.frequency != 0) {
  const Sampling& s = sampling_;
  require_sampling(vocabulary > 0, "the vocabulary must not be empty");
  require_sampling(s.temperature >= 0 && std::isfinite(s.temperature), "temperature must be finite and not negative");
  require_sampling(s.top_p >= 0 && s.top_p <= 1, "top_p must be in [0, 1]");
  require_sampling(s.min_p >= 0 && s.min_p <= 1, "min_p must be in [0, 1]");
  require_sampling(s.repetition > 0 && std::isfinite(s.repetition), "repetition must be finite and positive");
  require_sampling(std::isfinite(s.presence) && std::isfinite(s.frequency), "presence and frequency must be finite");
  require_sampling(s.top_logprobs >= 0 && s.top_logprobs <= vocabulary, "top_logprobs must be in [0, vocabulary]");
  const auto known = [vocabulary](std::int64_t token) { return token >= 0 && token < vocabulary; };
  for (const auto& [token, value] : s.bias)
    require_sampling(known(token) && std::isfinite(value), "bias must be finite, of tokens in the vocabulary");
  for (const auto& word : s.bad_words) {
    require_sampling(!word.empty() && std::all_of(word.begin(), word.end(), known), "bad_words must be of tokens in the vocabulary");
    longest_ = std::max(longest_, word.size());
  }
  require_sampling(std::all_of(prompt.begin(), prompt.end(), known), "the prompt must be of tokens in the vocabulary");
  if (penalises_)
    for (const std::int64_t token : prompt) seen_[token];
  const std::size_t kept = std::min(prompt.size(), longest_);
  last_.assign(prompt.end() - static_cast<std::ptrdiff_t>(kept), prompt.end());
}

void Sampler::observe(std::int64_t token) {
  if (penalises_) ++seen_[token];
  if (longest_ < 2) return;
  if (last_.size() == longest_) last_.erase(last_.begin());
  last_.push_back(token);
}

void Sampler::change(float* logits) const {
  for (const auto& [token, value] : sampling_.bias) logits[token] += value;
  if (penalises_) {
    for (const auto& [token, times] : seen_) {
      float& logit = logits[token];
      logit = logit > 0 ? logit / sampling_.repetition : logit * sampling_.repetition;
      if (times > 0) logit -= sampling_.presence + static_cast<float>(times) * sampling_.frequency;
    }
  }
  for (const auto& word : sampling_.bad_words) {
    const std::size_t before = word.size() - 1;
    if (before <= last_.size() && std::equal(word.begin(), word.end() - 1, last_.end() - static_cast<std::ptrdiff_t>(before)))
      logits[word.back()] = -INFINITY;
  }
}

SampleFault sample_rows(const float* logits, std::int64_t rows, std::int64_t vocabulary, Sampler* const* samplers,
                        const std::int64_t* positions, const SampleResults& results, Level level) {
  Distribution row(half_for(sample_halves, level), vocabulary);
  std::vector<float> changed;
  for (std::int64_t r = 0; r < rows; ++r) {
    Sampler& sampler = *samplers[r];
    const Sampling& how = sampler.sampling();
    const float* const plain = logits + r * vocabulary;
    if (!row.read(plain)) return {kNotFinite, r};
    if (sampler.changes()) {
      changed.assign(plain, plain + vocabulary);
      sampler.change(changed.data());
      if (!row.read(changed.data())) return {"bias, penalties and bad words leave no token", r};
    }
    std::int64_t token = 0;
    if (how.temperature == 0) {
      token = row.first_greatest();
    } else {
      const std::int64_t top_k = how.top_k <= 0 ? vocabulary : std::min<std::int64_t>(how.top_k, vocabulary);
      const double uniform = uniform_at(how.seed, static_cast<std::uint64_t>(positions[r]));
      row.weigh(how.temperature);
      const bool whole = top_k == vocabulary && how.top_p >= 1.0f && how.min_p <= 0.0f;
      token = whole ? row.at(uniform) : sample_filtered(row, how.temperature, top_k, how.top_p, how.min_p, uniform);
    }
    if (sampler.changes()) row.read(plain);
    results.tokens[r] = token;
    results.logprobs[r] = row.logprob(token);
    if (how.top_logprobs > 0)
      report_top(plain, vocabulary, row.maximum(), std::log(row.total()), how.top_logprobs, results.top_tokens + r * results.most,
                 results.top_logprobs + r * results.most);
    sampler.observe(token);
  }
  return {};
}

SampleFault log_probs(const float* logits, std::int64_t rows, std::int64_t vocabulary, const std::int64_t* targets,
                      float* logprobs, Level level) {
  Distribution row(half_for(sample_halves, level), vocabulary);
  for (std::int64_t r = 0; r < rows; ++r) {
    if (targets[r] < 0 || targets[r] >= vocabulary) return {"a target is not in the vocabulary", r};
    if (!row.read(logits + r * vocabulary)) return {kNotFinite, r};
    logprobs[r] = row.logprob(targets[r]);
  }
  return {};
}

}  // namespace ingot
