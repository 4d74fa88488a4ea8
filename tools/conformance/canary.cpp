// One race and one read behind the end of memory: what a sanitizer must report before the tests may say that it found
// nothing.
#include <cstdlib>
#include <thread>

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

extern "C" int read_behind(int bytes) {
  auto* memory = static_cast<volatile char*>(std::malloc(static_cast<std::size_t>(bytes)));
  const int found = memory[bytes];
  std::free(const_cast<char*>(memory));
  return found;
}
