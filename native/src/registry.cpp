// Joins the families' tables into one.
#include "registry.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "json.h"

namespace ingot {

namespace {

std::vector<KernelEntry> join() {
  struct Family {
    std::span<const KernelInfo> (*kernels)();
    std::vector<Level> levels;
  };
#define INGOT_LIST_LEVEL(level, ...) Level::level,
#define INGOT_LEVELS_WITH(family) {INGOT_LEVELS_OF_##family(INGOT_LIST_LEVEL)}
  const std::vector<Level> host = {Level::portable};
  const Family families[] = {
      {conv_kernels, INGOT_LEVELS_WITH(matmul)},
      {matmul_kernels, INGOT_LEVELS_WITH(matmul)},
      {elementwise_kernels, INGOT_LEVELS_WITH(elementwise)},
      {norm_kernels, INGOT_LEVELS_WITH(norm)},
      {reduce_kernels, INGOT_LEVELS_WITH(reduce)},
      {sort_kernels, host},
      {nonzero_kernels, host},
      {sizes_kernels, host},
      {scan_kernels, INGOT_LEVELS_WITH(reduce)},
      {recurrent_kernels, INGOT_LEVELS_WITH(recurrent)},
      {selective_scan_kernels, INGOT_LEVELS_WITH(selective_scan)},
      {fft_kernels, INGOT_LEVELS_WITH(fft)},
      {movement_kernels, host},
      {scatter_kernels, host},
      {attention_kernels, INGOT_LEVELS_WITH(attention)},
      {pool_kernels, INGOT_LEVELS_WITH(pool)},
      {resample_kernels, INGOT_LEVELS_WITH(resample)},
      {depthwise_kernels, INGOT_LEVELS_WITH(depthwise)},
      {paged_attention_kernels, INGOT_LEVELS_WITH(attention)},
      {dense_attention_kernels, INGOT_LEVELS_WITH(dense_attention)},
      {moe_kernels, INGOT_LEVELS_WITH(matmul)},
      {matmul_plain_kernels, host},
  };
  std::vector<KernelEntry> table;
  for (const Family& family : families) {
    for (const KernelInfo& info : family.kernels()) table.push_back({&info, family.levels});
  }
  return table;
}

}  // namespace

const std::vector<KernelEntry>& kernel_table() {
  static const std::vector<KernelEntry> table = join();
  return table;
}

const KernelInfo* find_kernel(std::string_view name, std::int64_t version) {
  for (const KernelEntry& entry : kernel_table()) {
    if (name == entry.info->name && version == entry.info->version) return entry.info;
  }
  return nullptr;
}

void check_names(const KernelInfo& kernel, const nlohmann::json& params) {
  const std::string prefix = std::string(kernel.name) + ": ";
  if (!params.is_object()) throw Refused(prefix + "params must be an object");
  std::set<std::string, std::less<>> known;
  std::string names;
  for (std::string_view rest = kernel.params; !rest.empty();) {
    std::string_view name = rest.substr(0, rest.find(": "));
    rest.remove_prefix(std::min(rest.size(), std::min(rest.find(", "), rest.size()) + 2));
    const bool optional = name.ends_with('?');
    if (optional) name.remove_suffix(1);
    if (!optional && !params.contains(name)) throw Refused(prefix + "parameter " + std::string(name) + " is missing");
    names += (names.empty() ? "" : ", ") + std::string(name);
    known.emplace(name);
  }
  for (const auto& item : params.items())
    if (!known.contains(item.key()))
      throw Refused(prefix + "unknown parameter " + quote(item.key()) + (names.empty() ? "; it has none" : "; it has " + names));
}

std::string versions_of(std::string_view name) {
  std::string versions;
  for (const KernelEntry& entry : kernel_table()) {
    if (name == entry.info->name) versions += (versions.empty() ? "" : ", ") + std::to_string(entry.info->version);
  }
  return versions;
}

}  // namespace ingot
