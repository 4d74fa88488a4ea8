// Counting and printing.
#include "coverage.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string_view>

#include "registry.h"

namespace ingot::fuzz {
namespace {

/// What is counted: every kernel, and every way of control, which is the same at all levels.
struct Row {
  std::string_view name;
  std::vector<Level> levels;  // at which it has a half
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> made;
    for (const KernelEntry& entry : kernel_table()) made.push_back({entry.info->name, entry.levels});
    for (const char* way : {"cond", "while", "scan"}) made.push_back({way, {Level::portable}});
    if (made.size() > kMostKernels) throw std::runtime_error("too many kernels to count");
    return made;
  }();
  return all;
}

bool has_level(const Row& row, Level level) {
  return std::find(row.levels.begin(), row.levels.end(), level) != row.levels.end();
}

/// The level whose half runs at `level`.
Level own_level(const Row& row, Level level) {
  while (!has_level(row, level)) level = extended_by(level);
  return level;
}

}  // namespace

Counts* shared_counts(int jobs) {
  const std::size_t bytes = sizeof(Counts) * static_cast<std::size_t>(jobs);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<Counts*>(memory);
}

void add_counts(Counts& sum, const Counts& job) {
  if (sum.invalid == 0) std::copy_n(job.invalid_message, sizeof job.invalid_message, sum.invalid_message);
  sum.cases += job.cases;
  sum.invalid += job.invalid;
  sum.large += job.large;
  sum.tokens += job.tokens;
  sum.faults += job.faults;
  for (int k = 0; k < kMostKernels; ++k) {
    KernelCounts& to = sum.kernels[k];
    const KernelCounts& from = job.kernels[k];
    for (int level = 0; level < kLevelCount; ++level) to.ran[level] += from.ran[level];
    to.compared += from.compared;
    to.layouts += from.layouts;
    to.declined += from.declined;
    to.values += from.values;
    to.faults += from.faults;
    if (to.why[0] == 0) std::copy_n(from.why, sizeof to.why, to.why);
  }
}

KernelCounts* counts_of(Counts& counts, const std::string& kernel) {
  for (std::size_t k = 0; k < rows().size(); ++k)
    if (kernel == rows()[k].name) return &counts.kernels[k];
  return nullptr;
}

void count_calls(Counts& counts, const Outcome& outcome, Level level) {
  for (const std::string& name : outcome.kernels)
    for (std::size_t k = 0; k < rows().size(); ++k)
      if (name == rows()[k].name) ++counts.kernels[k].ran[static_cast<int>(own_level(rows()[k], level))];
}

void print_table(const Counts& counts) {
  std::printf("%-22s", "calls run, by level");
  for (int level = 0; level < kLevelCount; ++level)
    std::printf("%12s", std::string(name_of(static_cast<Level>(level))).c_str());
  std::printf("%10s%10s%10s%10s%10s\n", "agreed", "layouts-", "declined", "values", "faults");
  for (std::size_t k = 0; k < rows().size(); ++k) {
    const KernelCounts& kernel = counts.kernels[k];
    std::printf("%-22s", rows()[k].name.data());
    for (int level = 0; level < kLevelCount; ++level) {
      const bool has = has_level(rows()[k], static_cast<Level>(level));
      has ? std::printf("%12llu", static_cast<unsigned long long>(kernel.ran[level])) : std::printf("%12s", "-");
    }
    for (std::uint64_t count : {kernel.compared, kernel.layouts, kernel.declined, kernel.values, kernel.faults})
      std::printf("%10llu", static_cast<unsigned long long>(count));
    std::printf("\n");
  }
  for (std::size_t k = 0; k < rows().size(); ++k) {
    if (counts.kernels[k].declined != 0) std::printf("declined, for example: %s\n", counts.kernels[k].why);
  }
}

std::vector<std::string> never_ran(const Counts& counts, const std::vector<Level>& levels) {
  std::vector<std::string> missing;
  for (std::size_t k = 0; k < rows().size(); ++k) {
    const Row& row = rows()[k];
    if (row.name == "sizes_of") continue;  // its results have no elements: such calls are planned and left out
    for (Level level : levels)
      if (own_level(row, level) == level && counts.kernels[k].ran[static_cast<int>(level)] == 0)
        missing.push_back(std::string(row.name) + " at " + std::string(name_of(level)));
  }
  return missing;
}

}  // namespace ingot::fuzz
