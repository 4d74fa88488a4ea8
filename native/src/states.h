// The states of a session: memory that one run leaves to the next, the KV caches of attention layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory.h"
#include "plan.h"

namespace ingot {

struct CacheOptions {
  std::int64_t blocks = 0;       // of every kv_cache; at least 1 when the program has one
  std::int64_t block_size = 16;  // tokens in a block, a multiple of 16
};

class States {
 public:
  /// Zeroed, in huge pages, taken from the system when first touched. Throws Error("argument") for options that do not
  /// fit the program, Error("memory").
  States(const Program& program, const CacheOptions& options);

  std::span<const StateView> views() const noexcept { return views_; }
  std::uint64_t bytes() const noexcept;

 private:
  std::vector<StateView> views_;
  std::vector<Pages> memory_;
};

}  // namespace ingot
