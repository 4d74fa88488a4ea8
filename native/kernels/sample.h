// The choice of a token from logits, and log probabilities of given tokens. Not kernels of a Program: the runtime calls them
// on a step's logits.
#pragma once

#include <cstdint>

#include "../src/kernel.h"

namespace ingot {

/// Why nothing was computed from some row on; message is null when all is well.
struct SampleFault {
  const char* message = nullptr;
  std::int64_t row = 0;
};

/// How each row's token is chosen; arrays of one value per row.
struct SampleParameters {
  const float* temperature;      // 0: the first greatest logit; else logits are divided by it
  const std::int32_t* top_k;     // keep the k most likely tokens; 0 or less: all
  const float* top_p;            // of those, the shortest prefix whose probability reaches p; 1: all
  const float* min_p;            // of those, the tokens at least min_p times as likely as the first; 0: all
  const std::uint64_t* seed;
  const std::int64_t* position;  // the random number is a function of seed and position alone
};

/// Chooses a token for each row of logits [rows, vocabulary], and its log probability under the unmodified distribution.
///
/// Temperature comes first, then top-k, top-p (over the renormalised top k) and min-p. Tokens of equal logit rank by number.
/// A row's choice depends on nothing but that row.
SampleFault sample_rows(const float* logits, std::int64_t rows, std::int64_t vocabulary, const SampleParameters& parameters,
                        std::int64_t* tokens, float* logprobs, Level level);

/// logprobs[r] = log softmax(logits[r])[targets[r]].
SampleFault log_probs(const float* logits, std::int64_t rows, std::int64_t vocabulary, const std::int64_t* targets,
                      float* logprobs, Level level);

/// Uniform in [0, 1): the first word of Philox4x64-10 with key (seed, 0) and counter (position, 0, 0, 0), upper 53 bits.
double uniform_at(std::uint64_t seed, std::uint64_t position);

}  // namespace ingot
