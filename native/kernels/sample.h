// The choice of a token from logits, and log probabilities of given tokens. Not kernels of a Program: the runtime calls them
// on a step's logits.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../src/kernel.h"

namespace ingot {

/// Why nothing was computed from some row on; message is null when all is well.
struct SampleFault {
  const char* message = nullptr;
  std::int64_t row = 0;
};

/// How one request's tokens are chosen.
struct Sampling {
  float temperature = 0;  // 0: the first greatest logit; else logits are divided by it
  std::int32_t top_k = 0;  // keep the k most likely tokens; 0 or less: all
  float top_p = 1;         // of those, the shortest prefix whose probability reaches p; 1: all
  float min_p = 0;         // of those, the tokens at least min_p times as likely as the first; 0: all
  std::uint64_t seed = 0;
  float repetition = 1;  // a token seen in prompt or answer: its logit divided by this if positive, else multiplied (Keskar 2019)
  float presence = 0;    // taken off the logit of a token that the answer has
  float frequency = 0;   // taken off that often as the answer has it
  std::vector<std::pair<std::int64_t, float>> bias;     // added to a token's logit before all else
  std::vector<std::vector<std::int64_t>> bad_words;     // sequences that never come: their last token is forbidden after the others
  int top_logprobs = 0;                                 // how many of the likeliest tokens are reported beside the chosen one
};

/// The choice of tokens for one request, with the memory that penalties and forbidden sequences need.
class Sampler {
 public:
  /// Throws std::invalid_argument that names what is out of range.
  Sampler(std::int64_t vocabulary, Sampling sampling, std::span<const std::int64_t> prompt);

  std::int64_t vocabulary() const { return vocabulary_; }
  const Sampling& sampling() const { return sampling_; }
  /// Whether logits are changed before a token is chosen.
  bool changes() const { return penalises_ || !sampling_.bias.empty() || !sampling_.bad_words.empty(); }
  void change(float* logits) const;
  /// The token that was chosen.
  void observe(std::int64_t token);

 private:
  std::int64_t vocabulary_;
  Sampling sampling_;
  bool penalises_;
  std::size_t longest_ = 0;                         // of the forbidden sequences
  std::vector<std::int64_t> last_;                  // tokens, as many as the longest forbidden sequence needs
  std::unordered_map<std::int64_t, std::int32_t> seen_;  // tokens of prompt and answer, and how often the answer has them
};

/// Where the results go; tops are [rows, most] and may be null when `most` is 0.
struct SampleResults {
  std::int64_t* tokens;
  float* logprobs;
  std::int64_t most;
  std::int64_t* top_tokens;  // -1 behind those that a row asks for
  float* top_logprobs;
};

/// Chooses a token for each row of logits [rows, vocabulary], its log probability under the unmodified distribution, and the
/// likeliest tokens of that.
///
/// Bias, penalties and forbidden sequences come first, then temperature, top-k, top-p (over the renormalised top k) and min-p.
/// Tokens of equal logit rank by number. The random number is a function of seed and position alone. A row's choice depends on
/// nothing but that row and its sampler, which remembers it.
SampleFault sample_rows(const float* logits, std::int64_t rows, std::int64_t vocabulary, Sampler* const* samplers,
                        const std::int64_t* positions, const SampleResults& results, Level level);

/// logprobs[r] = log softmax(logits[r])[targets[r]].
SampleFault log_probs(const float* logits, std::int64_t rows, std::int64_t vocabulary, const std::int64_t* targets,
                      float* logprobs, Level level);

/// Uniform in [0, 1): the first word of Philox4x64-10 with key (seed, 0) and counter (position, 0, 0, 0), upper 53 bits.
double uniform_at(std::uint64_t seed, std::uint64_t position);

}  // namespace ingot
