// The kernel table: every kernel of every family, by name and version.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernel.h"

namespace ingot {

struct KernelEntry {
  const KernelInfo* info;
  std::vector<Level> levels;  // at which its family has a half
};

/// The whole table, in the order of the families.
const std::vector<KernelEntry>& kernel_table();

/// The kernel of that name and version; nullptr when this build has none.
const KernelInfo* find_kernel(std::string_view name, std::int64_t version);

/// Throws Refused for a call whose parameters have other names than the kernel's entry in the table says.
void check_names(const KernelInfo& kernel, const nlohmann::json& params);

/// The versions of a kernel that are here, for messages: "1, 2"; empty when the name is unknown.
std::string versions_of(std::string_view name);

}  // namespace ingot
