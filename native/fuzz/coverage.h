// What the fuzzer reached, in memory that its processes share: a process that a fault ends loses no counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "case.h"
#include "level.h"

namespace ingot::fuzz {

constexpr int kMostKernels = 128;  // and ways of control
constexpr int kMostTemplates = 2048;

struct KernelCounts {
  std::uint64_t ran[kLevelCount];  // calls planned and run, by the level of the kernel's own half
  std::uint64_t compared;      // cases of its templates: both layouts ran and agreed
  std::uint64_t layouts;       // layouts that were declined; such a case is tried again with plainer ones
  std::uint64_t declined;      // cases that were declined to the end
  std::uint64_t values;        // both layouts ended in the same fault of values
  std::uint64_t faults;
  char why[160];               // the last case declined to the end
};

/// Zeroed by the system; only plain numbers.
struct Counts {
  std::uint64_t cases, invalid, large, tokens, faults;
  char invalid_message[400];  // the first: a template or the mutator is wrong
  KernelCounts kernels[kMostKernels];
  // The case in work, for the parent when its process dies.
  std::uint32_t template_index;
  std::uint32_t muted[kMostTemplates];  // templates that showed faults often enough
  std::uint64_t seed, plain;
  std::uint32_t level;
  std::uint32_t token_case;  // 1: it is a changed file, not made from a template
};

/// One for each job.
Counts* shared_counts(int jobs);
/// Adds a job's counts to another's.
void add_counts(Counts& sum, const Counts& job);

/// Adds the calls of a run at that level.
void count_calls(Counts& counts, const Outcome& outcome, Level level);
KernelCounts* counts_of(Counts& counts, const std::string& kernel);

/// The table, and the names of what never ran, each "kernel at level".
void print_table(const Counts& counts);
std::vector<std::string> never_ran(const Counts& counts, const std::vector<Level>& levels);

}  // namespace ingot::fuzz
