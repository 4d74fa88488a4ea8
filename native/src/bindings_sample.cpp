// ingot._native.sample and log_probs: the choice of tokens from a step's logits.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "error.h"
#include "level.h"
#include "sample.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ingot {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using PerRow = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Result = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T>
Result<T> new_result(std::size_t rows) {
  T* const data = new T[rows]();
  return Result<T>(data, {rows}, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); }));
}

void require_rows(const char* name, std::size_t count, std::size_t rows) {
  if (count != rows)
    throw Error(code::argument, std::string(name) + " has " + std::to_string(count) + " values for " + std::to_string(rows) + " rows of logits");
}

void require_vocabulary(const Logits& logits) {
  if (logits.shape(1) == 0) throw Error(code::argument, "logits have no columns");
}

void report(const SampleFault& fault) {
  if (fault.message != nullptr) throw Error(code::value, "row " + std::to_string(fault.row) + " of the logits: " + fault.message);
}

void make_sampler(Sampler* place, std::int64_t vocabulary, const PerRow<std::int64_t>& prompt, float temperature, std::int32_t top_k,
                  float top_p, float min_p, std::uint64_t seed, float repetition, float presence, float frequency,
                  std::vector<std::pair<std::int64_t, float>> bias, std::vector<std::vector<std::int64_t>> bad_words, int top_logprobs) {
  try {
    new (place) Sampler(vocabulary,
                        {temperature, top_k, top_p, min_p, seed, repetition, presence, frequency, std::move(bias), std::move(bad_words),
                         top_logprobs},
                        {prompt.data(), prompt.size()});
  } catch (const std::invalid_argument& e) {
    throw Error(code::argument, e.what());
  }
}

template <class T>
using Table = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

template <class T>
Table<T> new_table(std::size_t rows, std::size_t columns, T value) {
  T* const data = new T[rows * columns];
  std::fill_n(data, rows * columns, value);
  return Table<T>(data, {rows, columns}, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); }));
}

nb::tuple sample(const Logits& logits, const std::vector<Sampler*>& samplers, const PerRow<std::int64_t>& positions) {
  const std::size_t rows = logits.shape(0);
  require_vocabulary(logits);
  require_rows("samplers", samplers.size(), rows);
  require_rows("positions", positions.size(), rows);
  const auto vocabulary = static_cast<std::int64_t>(logits.shape(1));
  int most = 0;
  for (const Sampler* sampler : samplers) {
    if (sampler == nullptr) throw Error(code::argument, "a sampler is None");
    if (sampler->vocabulary() != vocabulary)
      throw Error(code::argument, "a sampler is for a vocabulary of " + std::to_string(sampler->vocabulary()) + ", the logits have " +
                                      std::to_string(vocabulary) + " columns");
    most = std::max(most, sampler->sampling().top_logprobs);
  }
  Result<std::int64_t> tokens = new_result<std::int64_t>(rows);
  Result<float> logprobs = new_result<float>(rows);
  Table<std::int64_t> top_tokens = new_table<std::int64_t>(rows, static_cast<std::size_t>(most), -1);
  Table<float> top_logprobs = new_table<float>(rows, static_cast<std::size_t>(most), 0);
  SampleFault fault;
  {
    const nb::gil_scoped_release released;
    fault = sample_rows(logits.data(), static_cast<std::int64_t>(rows), vocabulary, samplers.data(), positions.data(),
                        {tokens.data(), logprobs.data(), most, top_tokens.data(), top_logprobs.data()}, current_level());
  }
  report(fault);
  return nb::make_tuple(tokens, logprobs, top_tokens, top_logprobs);
}

Result<float> score(const Logits& logits, const PerRow<std::int64_t>& targets) {
  const std::size_t rows = logits.shape(0);
  require_vocabulary(logits);
  require_rows("targets", targets.size(), rows);
  Result<float> logprobs = new_result<float>(rows);
  SampleFault fault;
  {
    const nb::gil_scoped_release released;
    fault = log_probs(logits.data(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(logits.shape(1)), targets.data(),
                      logprobs.data(), current_level());
  }
  report(fault);
  return logprobs;
}

nb::tuple draws(const std::vector<const Sampler*>& samplers, const PerRow<std::int64_t>& positions) {
  const std::size_t rows = samplers.size();
  if (positions.size() != rows)
    throw Error(code::argument, "positions has " + std::to_string(positions.size()) + " values for " + std::to_string(rows) + " samplers");
  for (const Sampler* sampler : samplers)
    if (sampler == nullptr) throw Error(code::argument, "a sampler is None");
  Result<float> temperature = new_result<float>(rows), top_p = new_result<float>(rows), min_p = new_result<float>(rows);
  Result<std::int32_t> top_k = new_result<std::int32_t>(rows);
  Result<double> uniform = new_result<double>(rows);
  Result<bool> plain = new_result<bool>(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    const Sampling& how = samplers[i]->sampling();
    const std::int64_t all = samplers[i]->vocabulary();
    temperature.data()[i] = how.temperature;
    top_k.data()[i] = static_cast<std::int32_t>(how.top_k <= 0 ? all : std::min<std::int64_t>(how.top_k, all));
    top_p.data()[i] = how.top_p;
    min_p.data()[i] = how.min_p;
    uniform.data()[i] = how.temperature == 0 ? 0.0 : uniform_at(how.seed, static_cast<std::uint64_t>(positions.data()[i]));
    plain.data()[i] = !samplers[i]->changes() && how.top_logprobs == 0;
  }
  return nb::make_tuple(temperature, top_k, top_p, min_p, uniform, plain);
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<Sampler>(m, "Sampler", "How one request's tokens are chosen, and what it has seen.")
      .def("__init__", make_sampler, "vocabulary"_a, "prompt"_a, nb::kw_only(), "temperature"_a = 0.0f, "top_k"_a = 0, "top_p"_a = 1.0f,
           "min_p"_a = 0.0f, "seed"_a = 0, "repetition"_a = 1.0f, "presence"_a = 0.0f, "frequency"_a = 0.0f,
           "bias"_a = std::vector<std::pair<std::int64_t, float>>(), "bad_words"_a = std::vector<std::vector<std::int64_t>>(),
           "top_logprobs"_a = 0);
  m.def("sample", sample, "logits"_a.noconvert(), "samplers"_a, "positions"_a,
        "Chooses a token per row of logits (float32 [rows, vocabulary]): bias, penalties and forbidden sequences, temperature (0: the "
        "first greatest), then top-k, top-p and min-p. The samplers remember it. Returns (token ids int64, their log probabilities "
        "under the unmodified distribution float32, the likeliest tokens int64 [rows, most], -1 where a row asked for fewer, their "
        "log probabilities). The random number is a function of seed and position.");
  m.def("draws", draws, "samplers"_a, "positions"_a,
        "What a device needs to choose as these samplers would: (temperature float32, top_k int32 from 1 to the vocabulary, top_p and "
        "min_p float32, the random number float64, and whether the logits alone decide: no penalty, bias, forbidden sequence, and no "
        "likeliest tokens to report), one of each sampler.");
  m.def("log_probs", score, "logits"_a.noconvert(), "targets"_a,
        "log softmax of each row of logits (float32 [rows, vocabulary]) at its target (int64), float32.");
}

}  // namespace ingot
