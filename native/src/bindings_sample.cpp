// ingot._native.sample and log_probs: the choice of tokens from a step's logits.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

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

nb::tuple sample(const Logits& logits, const PerRow<float>& temperature, const PerRow<std::int32_t>& top_k, const PerRow<float>& top_p,
                 const PerRow<float>& min_p, const PerRow<std::uint64_t>& seed, const PerRow<std::int64_t>& position) {
  const std::size_t rows = logits.shape(0);
  require_vocabulary(logits);
  require_rows("temperature", temperature.size(), rows);
  require_rows("top_k", top_k.size(), rows);
  require_rows("top_p", top_p.size(), rows);
  require_rows("min_p", min_p.size(), rows);
  require_rows("seed", seed.size(), rows);
  require_rows("position", position.size(), rows);
  Result<std::int64_t> tokens = new_result<std::int64_t>(rows);
  Result<float> logprobs = new_result<float>(rows);
  const SampleParameters parameters{temperature.data(), top_k.data(), top_p.data(), min_p.data(), seed.data(), position.data()};
  SampleFault fault;
  {
    const nb::gil_scoped_release released;
    fault = sample_rows(logits.data(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(logits.shape(1)), parameters,
                        tokens.data(), logprobs.data(), current_level());
  }
  report(fault);
  return nb::make_tuple(tokens, logprobs);
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

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("sample", sample, "logits"_a.noconvert(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "seed"_a, "position"_a,
        "Chooses a token per row of logits (float32 [rows, vocabulary]): temperature (0: the first greatest), then top-k, top-p and "
        "min-p. Returns (token ids int64, their log probabilities under the unmodified distribution float32). The random number is "
        "a function of seed and position.");
  m.def("log_probs", score, "logits"_a.noconvert(), "targets"_a,
        "log softmax of each row of logits (float32 [rows, vocabulary]) at its target (int64), float32.");
}

}  // namespace ingot
