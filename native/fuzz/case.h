// A case: one program twice, once with its operands behind strided views and once with the same values in plain
// buffers, and everything that its run depends on. Both must give the same results.
//
// A case is saved as an engine file, so that `fuzz_reader FILE` runs it again: two entries, `strided` and `plain`; the
// weights and both sets of inputs as tensors; the rest in config.fuzz_case.
#pragma once

#include <string>

#include "array.h"
#include "container.h"
#include "session.h"

namespace ingot::fuzz {

struct Variant {
  Json program;
  Arrays inputs;
  int threads = 1;
};

struct Case {
  std::string name;  // of the template that it was made from
  Level level = Level::portable;
  CacheOptions cache{1, 16};
  /// Above -1 the order in which its results are summed up depends on the layout, so that they may differ a little:
  /// this is the sum of the magnitudes of what makes up one.
  double magnitude = -1;
  Arrays weights;  // of both variants
  Variant strided, plain;
};

std::string encode(const Case& one);
bool is_case(const Json& header);
Case decode(const Container& container);

/// A whole file around the JSON of a header without digest: padded, with its length and digest.
std::string seal(std::string text, const std::string& data);

/// Our header of an engine with one program.
Json engine_header(const std::string& entry, const Json& program);

/// What became of one variant.
struct Outcome {
  std::string code = "ok";  // or that of the error
  std::string message;
  Arrays outputs;
  std::vector<std::string> kernels;  // that ran, once per call
};

Outcome run_variant(const Case& one, const Variant& variant);

/// Where two outcomes contradict each other; empty when they do not. A refusal contradicts nothing: a kernel may
/// decline a layout. Results agree bit for bit, but for NaNs and where the
/// order of sums is open.
std::string contradiction(const Case& one, const Outcome& strided, const Outcome& plain);

}  // namespace ingot::fuzz
