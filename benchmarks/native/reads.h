// Ways to read memory, for roofs that no kernel exceeds: which is the fastest depends on the processor, and on what else its memory does.
// Streams of 64 KiB lie beside each other, as panels of weights do.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reads {

constexpr std::size_t kStream = std::size_t{64} << 10, kUnit = 8 * kStream;  // ranges are whole units

/// Streams side by side, and how many bytes before its loads each is fetched, into the first cache (near) or the second; 0: by hardware alone.
struct Way {
  int streams, ahead;
  bool near;
};

inline std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const int streams : {1, 2, 4, 8}) {
    ways.push_back({streams, 0, true});
    for (const int ahead : {512, 1024, 2048, 4096, 8192}) ways.push_back({streams, ahead, true});
    for (const int ahead : {1024, 4096}) ways.push_back({streams, ahead, false});
  }
  return ways;
}

#if defined(__AVX512F__)
typedef __m512i Line;
inline Line add_line(Line sum, const std::byte* p) { return _mm512_add_epi64(sum, _mm512_load_si512(p)); }
#else
typedef __m256i Line;
inline Line add_line(Line sum, const std::byte* p) {
  const auto* v = reinterpret_cast<const __m256i*>(p);
  return _mm256_add_epi64(_mm256_add_epi64(sum, _mm256_load_si256(v)), _mm256_load_si256(v + 1));
}
#endif

/// Sums a range, so many streams at a time, in eight chains of full-width loads. The next streams are fetched at the end of these.
template <int kStreams, bool kFetched, bool kNear>
void read_streams(const std::byte* p, std::size_t bytes, std::size_t ahead) {
  constexpr int kLines = 8 / kStreams;  // of each stream in a turn
  Line sums[8] = {};
  for (const std::byte* const end = p + bytes; p < end; p += kStreams * kStream) {
    for (std::size_t at = 0; at < kStream; at += kLines * 64) {
      const std::size_t fetched = at + ahead < kStream ? at + ahead : at + ahead + (kStreams - 1) * kStream;
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const std::size_t line = static_cast<std::size_t>(i / kLines) * kStream + static_cast<std::size_t>(i % kLines) * 64;
        if constexpr (kFetched) _mm_prefetch(p + fetched + line, kNear ? _MM_HINT_T0 : _MM_HINT_T1);
        sums[i] = add_line(sums[i], p + at + line);
      }
    }
  }
  for (const Line& sum : sums) __asm__ volatile("" : : "x"(sum));
}

template <int kStreams>
void read_by(const std::byte* p, std::size_t bytes, Way way) {
  const auto ahead = static_cast<std::size_t>(way.ahead);
  if (way.ahead == 0) read_streams<kStreams, false, false>(p, bytes, 0);
  else if (way.near) read_streams<kStreams, true, true>(p, bytes, ahead);
  else read_streams<kStreams, true, false>(p, bytes, ahead);
}

/// Reads whole units, aligned to lines.
inline void read_range(const std::byte* p, std::size_t bytes, Way way) {
  switch (way.streams) {
    case 1: return read_by<1>(p, bytes, way);
    case 2: return read_by<2>(p, bytes, way);
    case 4: return read_by<4>(p, bytes, way);
    default: return read_by<8>(p, bytes, way);
  }
}

}  // namespace reads
