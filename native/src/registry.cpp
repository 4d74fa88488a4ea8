// Joins the families' tables into one.
#include "registry.h"

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
      {movement_kernels, host},
      {attention_kernels, INGOT_LEVELS_WITH(attention)},
      {pool_kernels, INGOT_LEVELS_WITH(pool)},
      {depthwise_kernels, INGOT_LEVELS_WITH(depthwise)},
      {paged_attention_kernels, INGOT_LEVELS_WITH(attention)},
      {dense_attention_kernels, INGOT_LEVELS_WITH(dense_attention)},
      {moe_kernels, INGOT_LEVELS_WITH(matmul)},
      {matmul_float64_kernels, host},
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

std::string versions_of(std::string_view name) {
  std::string versions;
  for (const KernelEntry& entry : kernel_table()) {
    if (name == entry.info->name) versions += (versions.empty() ? "" : ", ") + std::to_string(entry.info->version);
  }
  return versions;
}

}  // namespace ingot
