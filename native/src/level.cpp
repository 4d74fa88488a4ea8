// Level detection. CPUID says what the processor has, XGETBV which registers the system saves, and AMX needs a
// permission.
#include "level.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "error.h"

#if INGOT_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ingot {
namespace {

#define INGOT_LEVEL_TEXT(level, extended) #level,
constexpr std::string_view kNames[] = {INGOT_LEVELS(INGOT_LEVEL_TEXT)};

// For every level, whether the processor and its operating system have what the level adds to the one that it extends.

bool has_portable() { return true; }

#if INGOT_X86

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

constexpr bool bit(unsigned word, int index) { return (word >> index & 1u) != 0; }

unsigned long long saved_state() {
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<unsigned long long>(high) << 32 | low;
}

/// Linux hands the AMX tile registers to a process only when it asks.
bool request_tiles() {
#ifdef __linux__
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_avx2() {
  const Registers one = cpuid(1, 0), seven = cpuid(7, 0);
  const bool osxsave = bit(one.ecx, 27);
  return osxsave && (saved_state() & 0x6) == 0x6 && bit(one.ecx, 12) && bit(one.ecx, 29) && bit(seven.ebx, 5);  // fma, f16c, avx2
}

bool has_avx512() {
  const Registers seven = cpuid(7, 0);
  const bool f = bit(seven.ebx, 16), dq = bit(seven.ebx, 17), bw = bit(seven.ebx, 30), vl = bit(seven.ebx, 31);
  return (saved_state() & 0xe6) == 0xe6 && f && dq && bw && vl;
}

bool has_avx_vnni() { return bit(cpuid(7, 1).eax, 4); }

bool has_avx512_vnni() { return bit(cpuid(7, 0).ecx, 11); }

bool has_avx512_bf16() { return bit(cpuid(7, 1).eax, 5); }

bool has_amx() {
  const Registers seven = cpuid(7, 0);
  const bool amx_bf16 = bit(seven.edx, 22), amx_tile = bit(seven.edx, 24), amx_int8 = bit(seven.edx, 25);
  return (saved_state() & 0x60000) == 0x60000 && amx_bf16 && amx_tile && amx_int8 && request_tiles();
}

#endif

std::vector<Level> detect() {
  std::vector<Level> levels;
  const auto add = [&](Level level, bool (*has)()) {
    const Level extended = extended_by(level);
    if ((extended == level || std::find(levels.begin(), levels.end(), extended) != levels.end()) && has()) levels.push_back(level);
  };
#define INGOT_ADD_LEVEL(level, extended) add(Level::level, has_##level);
  INGOT_LEVELS(INGOT_ADD_LEVEL)
  return levels;
}

std::string usable_names() {
  std::string names;
  for (Level level : usable_levels()) names += (names.empty() ? "" : ", ") + std::string(name_of(level));
  return names;
}

Level choose() {
  const char* forced = std::getenv("INGOT_ISA");
  if (forced == nullptr || *forced == '\0') return usable_levels().back();
  for (Level level : usable_levels()) {
    if (name_of(level) == forced) return level;
  }
  bool known = false;
  for (std::string_view name : kNames) known = known || name == forced;
  throw Error(code::argument, "INGOT_ISA=" + std::string(forced) +
                                  (known ? ": this machine cannot run that level" : ": there is no such level") +
                                  "; usable here: " + usable_names());
}

}  // namespace

std::string_view name_of(Level level) noexcept { return kNames[static_cast<int>(level)]; }

const std::vector<Level>& usable_levels() {
  static const std::vector<Level> levels = detect();
  return levels;
}

Level current_level() {
  static const Level level = choose();
  return level;
}

}  // namespace ingot
