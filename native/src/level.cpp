// Level detection. CPUID says what the processor has, XGETBV which registers the system saves, and AMX needs a
// permission.
#include "level.h"

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

constexpr std::string_view kNames[kLevelCount] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};

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

std::vector<Level> detect() {
  std::vector<Level> levels = {Level::portable};
  const Registers one = cpuid(1, 0);
  const Registers seven = cpuid(7, 0);
  const Registers seven_one = cpuid(7, 1);
  if (!bit(one.ecx, 27)) return levels;  // OSXSAVE
  const unsigned long long state = saved_state();
  const bool ymm = (state & 0x6) == 0x6;
  const bool fma = bit(one.ecx, 12), f16c = bit(one.ecx, 29), avx2 = bit(seven.ebx, 5);
  if (!(ymm && fma && f16c && avx2)) return levels;
  levels.push_back(Level::avx2);
  const bool zmm = (state & 0xe6) == 0xe6;
  const bool f = bit(seven.ebx, 16), dq = bit(seven.ebx, 17), bw = bit(seven.ebx, 30), vl = bit(seven.ebx, 31);
  if (!(zmm && f && dq && bw && vl)) return levels;
  levels.push_back(Level::avx512);
  if (!bit(seven_one.eax, 5)) return levels;
  levels.push_back(Level::avx512_bf16);
  const bool tiles = (state & 0x60000) == 0x60000;
  const bool amx_bf16 = bit(seven.edx, 22), amx_tile = bit(seven.edx, 24), amx_int8 = bit(seven.edx, 25);
  if (tiles && amx_bf16 && amx_tile && amx_int8 && request_tiles()) levels.push_back(Level::amx);
  return levels;
}

#else

std::vector<Level> detect() { return {Level::portable}; }

#endif

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
