// Templates of valid programs, and the cases made from them.
//
// A template stands in config.fuzz of an engine of the corpus (fuzz/template.py writes it; the engine's own program is
// the template with its first choices):
//
//   vars      [{"name", "choices": [...]} | {"name", "sizes": [low, high]} | {"name", "value": expression}, ...]
//   program   a Program in which "$name" stands for a variable and ["$", op, a, b] for arithmetic on integers
//   fills     what the values of an input or weight are, by name; see array.h
//   cache     blocks and block_size of its kv_caches
//   magnitude of a sum whose order depends on strides: how large the numbers are together that make up one result
//
// A case takes a value for each variable, declares some sizes as symbols, puts operands behind views of larger buffers
// and results into parts of larger ones, whose other parts are filled by copies.
#pragma once

#include <optional>

#include "case.h"

namespace ingot::fuzz {

class Template {
 public:
  Template(std::string name, Json description) : name_(std::move(name)), json_(std::move(description)) {}

  const std::string& name() const noexcept { return name_; }
  /// The kernel or way of control that it is there for: its name up to the first '.'.
  std::string kernel() const { return name_.substr(0, name_.find('.')); }

  /// The case of that seed; bit i of `plain` leaves buffer i (modulo 64) as it is. None when it would be too large.
  std::optional<Case> make(std::uint64_t seed, std::uint64_t plain, Level level) const;

 private:
  std::string name_;
  Json json_;
};

}  // namespace ingot::fuzz
