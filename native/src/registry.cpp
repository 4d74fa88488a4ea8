// Joins the families' tables into one.
#include "registry.h"

namespace ingot {

namespace {

// The levels for which CMakeLists.txt compiles a half of the family.
constexpr Level kPortable[] = {Level::portable};
#if INGOT_X86
constexpr Level kCommonLevels[] = {Level::portable, Level::avx2, Level::avx512};
constexpr Level kMatmulLevels[] = {Level::portable, Level::avx2, Level::avx512, Level::avx512_bf16, Level::amx};
constexpr Level kAttentionLevels[] = {Level::portable, Level::avx2, Level::avx512, Level::avx512_bf16};
#else
constexpr std::span<const Level> kCommonLevels = kPortable;
constexpr std::span<const Level> kMatmulLevels = kPortable;
constexpr std::span<const Level> kAttentionLevels = kPortable;
#endif

std::vector<KernelEntry> join() {
  struct Family {
    std::span<const KernelInfo> (*kernels)();
    std::span<const Level> levels;
  };
  const Family families[] = {
      {conv_kernels, kMatmulLevels},
      {matmul_kernels, kMatmulLevels}, {elementwise_kernels, kCommonLevels}, {norm_kernels, kCommonLevels},
      {reduce_kernels, kCommonLevels}, {movement_kernels, kPortable},        {attention_kernels, kAttentionLevels},
      {pool_kernels, kCommonLevels},   {depthwise_kernels, kCommonLevels},
      {paged_attention_kernels, kAttentionLevels}, {dense_attention_kernels, kAttentionLevels}, {moe_kernels, kMatmulLevels},
      {matmul_float64_kernels, kPortable},
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
