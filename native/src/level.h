// The instruction-set level of this process: what the machine and its operating system allow, or what INGOT_ISA forces.
#pragma once

#include <string_view>
#include <vector>

#include "kernel.h"

namespace ingot {

std::string_view name_of(Level level) noexcept;

/// Every level that can run here, in the order of preference: each after the one that it extends, the best last.
const std::vector<Level>& usable_levels();

/// The level in use: the best usable one, or the one named by the environment variable INGOT_ISA (read once).
/// Throws Error("argument") when INGOT_ISA names no level, or one that cannot run here.
Level current_level();

}  // namespace ingot
