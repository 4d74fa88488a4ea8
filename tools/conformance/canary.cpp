// Two races and one read behind the end of memory: what a sanitizer must report before the tests may say that it found
// nothing. The second race is by accesses that the compiler leaves unchecked, and that kernels tell of (seen.h).
#include <cstdlib>
#include <thread>

#define INGOT_LEVEL canary
#include "../../native/kernels/level/seen.h"

namespace {
int counted = 0;
void count() {
  for (int i = 0; i < 1000; ++i) ++counted;
}
}  // namespace

extern "C" int race() {
  std::thread a(count), b(count);
  a.join();
  b.join();
  return counted;
}

extern "C" int race_told() {
  static int told = 0;
  const auto write = [] {
    for (int i = 0; i < 1000; ++i) ingot::canary::writes(&told, 4);
  };
  std::thread a(write), b(write);
  a.join();
  b.join();
  return told;
}

extern "C" int read_behind(int bytes) {
  auto* memory = static_cast<volatile char*>(std::malloc(static_cast<std::size_t>(bytes)));
  const int found = memory[bytes];
  std::free(const_cast<char*>(memory));
  return found;
}
