// Tells the thread sanitizer of accesses that it does not see by itself: the compiler leaves masked vectors and tiles
// unchecked. Other builds have nothing of this; for the address sanitizer red zones look for strays (red_zone.h).
#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_read_range(void* at, long bytes);
extern "C" void __tsan_write_range(void* at, long bytes);
#endif

namespace ingot::INGOT_LEVEL {

/// The next instruction reads these bytes; none when there are none.
[[gnu::always_inline]] static inline void reads([[maybe_unused]] const void* at, [[maybe_unused]] std::ptrdiff_t bytes) {
#if defined(__SANITIZE_THREAD__)
  if (bytes > 0) __tsan_read_range(const_cast<void*>(at), bytes);
#endif
}

/// The next instruction writes them.
[[gnu::always_inline]] static inline void writes([[maybe_unused]] void* at, [[maybe_unused]] std::ptrdiff_t bytes) {
#if defined(__SANITIZE_THREAD__)
  if (bytes > 0) __tsan_write_range(at, bytes);
#endif
}

}  // namespace ingot::INGOT_LEVEL
