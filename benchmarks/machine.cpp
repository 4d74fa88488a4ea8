// What this machine can do at most: read bandwidth and arithmetic, on as many threads as argv[1] says, as JSON.
// Compiled by benchmarks/machine.py with -march=native.
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "native/reads.h"

namespace {

constexpr std::size_t kBytes = std::size_t{4} << 30, kPiece = kBytes / 8;
constexpr int kRepeats = 5;

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cpus;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) cpus.push_back(i);
  }
  return cpus;
}

// Runs work(thread) on `threads` pinned threads that start together; seconds from the start to the last end.
template <class Work>
double timed(int threads, Work work) {
  const std::vector<int> cpus = allowed_cpus();
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpus[static_cast<std::size_t>(t) % cpus.size()], &one);
      pthread_setaffinity_np(pthread_self(), sizeof one, &one);
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) {
      }
      work(t);
    });
  }
  while (ready.load() < threads) {
  }
  const auto start = std::chrono::steady_clock::now();
  go.store(true, std::memory_order_release);
  for (std::thread& thread : pool) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Random data: a machine may treat pages of zeros in its own way. Every thread fills the part that it reads, which then lies near it.
void fill(std::byte* memory, int threads) {
  const std::size_t part = kBytes / static_cast<std::size_t>(threads);
  timed(threads, [&](int t) {
    std::uint64_t state = 88172645463325252u + static_cast<std::uint64_t>(t);
    std::byte* const from = memory + part * static_cast<std::size_t>(t);
    for (std::size_t i = 0; i + 8 <= part; i += 8) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      std::memcpy(from + i, &state, 8);
    }
  });
}

template <class Measure>
double median(Measure measure) {
  double seen[kRepeats];
  for (double& one : seen) one = measure();
  std::sort(seen, seen + kRepeats);
  return seen[kRepeats / 2];
}

volatile std::int64_t sink;

// A thread's part of so many bytes, in whole units.
std::size_t part_of(std::size_t bytes, int threads) { return bytes / static_cast<std::size_t>(threads) / reads::kUnit * reads::kUnit; }

// GB/s of one read of `bytes`, every thread its share of the memory from its own part on.
double read_once(const std::byte* memory, int threads, std::size_t bytes, std::size_t from, reads::Way way) {
  const std::size_t part = part_of(kBytes, threads), share = part_of(bytes, threads);
  const double seconds = timed(threads, [&](int t) { reads::read_range(memory + part * static_cast<std::size_t>(t) + from, share, way); });
  return static_cast<double>(share) * threads / seconds / 1e9;
}

struct Found {
  reads::Way way;
  double rate;  // GB/s
};

// Every way twice by a piece of the memory; then the best few by all of it, in turns. The best first; of the few the rate is the median.
std::vector<Found> read_by_all(const std::byte* memory, int threads) {
  constexpr std::size_t kFew = 3;
  std::vector<Found> found;
  for (const reads::Way way : reads::all_ways()) found.push_back({way, 0});
  std::size_t piece = 0;
  for (int turn = 0; turn < 2; ++turn)
    for (Found& one : found) {
      const std::size_t from = piece++ % (kBytes / kPiece) * part_of(kPiece, threads);
      one.rate = std::max(one.rate, read_once(memory, threads, kPiece, from, one.way));
    }
  const auto by_rate = [](const Found& a, const Found& b) { return a.rate > b.rate; };
  std::sort(found.begin(), found.end(), by_rate);
  std::vector<double> rates[kFew];
  for (int turn = 0; turn < kRepeats; ++turn)
    for (std::size_t i = 0; i < kFew; ++i) rates[i].push_back(read_once(memory, threads, kBytes, 0, found[i].way));
  for (std::size_t i = 0; i < kFew; ++i) {
    std::sort(rates[i].begin(), rates[i].end());
    found[i].rate = rates[i][kRepeats / 2];
  }
  std::sort(found.begin(), found.begin() + kFew, by_rate);
  return found;
}

// Every thread reads a range of its own that its cache holds, over and over.
double cache_bandwidth(const std::byte* memory, int threads) {
  constexpr std::size_t kRange = std::size_t{1} << 20, kTimes = 4000;
  const auto once = [&] {
    const double seconds = timed(threads, [&](int t) {
      for (std::size_t i = 0; i < kTimes; ++i) reads::read_range(memory + kRange * static_cast<std::size_t>(t), kRange, {1, 0, true});
    });
    return static_cast<double>(kRange * kTimes) * threads / seconds / 1e9;
  };
  once();
  return median(once);
}

constexpr int kSteps = 20'000'000;

// Multiply-adds from registers only, in enough independent chains to hide the latency.
void fma_float32() {
#if defined(__AVX512F__)
  __m512 sums[16];
  for (__m512& s : sums) s = _mm512_set1_ps(1.0f);
  const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (__m512& s : sums) s = _mm512_fmadd_ps(s, x, y);
  }
  float total = 0;
  for (__m512 s : sums) total += _mm512_reduce_add_ps(s);
  sink = static_cast<std::int64_t>(total);
#else
  __m256 sums[12];
  for (__m256& s : sums) s = _mm256_set1_ps(1.0f);
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (__m256& s : sums) s = _mm256_fmadd_ps(s, x, y);
  }
  float total = 0;
  for (__m256 s : sums) total += s[0];
  sink = static_cast<std::int64_t>(total);
#endif
}
#if defined(__AVX512F__)
constexpr double kFloatFlops = 16.0 * 16 * 2 * kSteps;
#else
constexpr double kFloatFlops = 12.0 * 8 * 2 * kSteps;
#endif

#if defined(__AVX512BF16__)
void dot_bfloat16() {
  __m512 sums[16];
  for (__m512& s : sums) s = _mm512_setzero_ps();
  const auto x = (__m512bh)_mm512_set1_epi16(0x3f00), y = (__m512bh)_mm512_set1_epi16(0x3a80);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (__m512& s : sums) s = _mm512_dpbf16_ps(s, x, y);
  }
  float total = 0;
  for (__m512 s : sums) total += _mm512_reduce_add_ps(s);
  sink = static_cast<std::int64_t>(total);
}
constexpr double kDotFlops = 16.0 * 32 * 2 * kSteps;
#endif

#if defined(__AVX512VNNI__)
void dot_int8() {
  __m512i sums[16];
  for (__m512i& s : sums) s = _mm512_setzero_si512();
  const __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(1);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (__m512i& s : sums) asm("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(x), "v"(y));  // the intrinsic got moves from GCC 12, twice the time
  }
  int total = 0;
  for (__m512i s : sums) total += _mm512_reduce_add_epi32(s);
  sink = total;
}
constexpr double kIntegerOperations = 16.0 * 64 * 2 * kSteps;
#endif

#if !defined(__AVX512VNNI__)
// What stands for the instruction without AVX-512: that of 256 bits, or products of bytes and of pairs, and a sum.
void dot_int8_narrow() {
#if defined(__AVX512BW__)
  typedef __m512i Bytes;
  const auto add = [](Bytes sum, Bytes x, Bytes y) { return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(x, y), y)); };
#else
  typedef __m256i Bytes;
#if defined(__AVXVNNI__)
  const auto add = [](Bytes sum, Bytes x, Bytes y) { return _mm256_dpbusd_avx_epi32(sum, x, y); };
#else
  const auto add = [](Bytes sum, Bytes x, Bytes y) { return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), y)); };
#endif
#endif
  Bytes sums[12] = {}, x, y;
  std::memset(&x, 3, sizeof x);
  std::memset(&y, 1, sizeof y);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (Bytes& s : sums) {
      s = add(s, x, y);
      asm("" : "+x"(s), "+x"(x));  // so that no product is made once for all
    }
  }
  for (const Bytes& s : sums) asm volatile("" : : "x"(s));
}
#if defined(__AVX512BW__)
constexpr double kNarrowOperations = 12.0 * 64 * 2 * kSteps;
#else
constexpr double kNarrowOperations = 12.0 * 32 * 2 * kSteps;
#endif
#endif

#if defined(__AMX_BF16__)
constexpr int kTileSteps = 2'000'000;

bool request_amx() { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0; }

struct alignas(64) Tiles {
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t columns[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void tiles_bfloat16() {
  Tiles config;
  alignas(64) std::uint16_t data[512];
  for (auto& value : data) value = 0x3a81;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, data, 64);
  _tile_loadd(5, data, 64);
  _tile_loadd(6, data, 64);
  _tile_loadd(7, data, 64);
  for (int i = 0; i < kTileSteps; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, data, 64);
  _tile_release();
}
constexpr double kTileFlops = 4.0 * 16 * 16 * 32 * 2 * kTileSteps;
#endif

#if defined(__AMX_INT8__)
void tiles_int8() {
  Tiles config;
  alignas(64) std::int8_t data[1024];
  for (auto& value : data) value = 1;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, data, 64);
  _tile_loadd(5, data, 64);
  _tile_loadd(6, data, 64);
  _tile_loadd(7, data, 64);
  for (int i = 0; i < kTileSteps; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_stored(0, data, 64);
  _tile_release();
}
constexpr double kIntegerTileOperations = 4.0 * 16 * 16 * 64 * 2 * kTileSteps;
#endif

struct Peak {
  const char* name;
  double operations;
  void (*work)();
};

std::vector<Peak> peaks() {
  std::vector<Peak> all{{"float32", kFloatFlops, fma_float32}};
#if defined(__AVX512BF16__)
  all.push_back({"bfloat16_dot", kDotFlops, dot_bfloat16});
#endif
#if defined(__AMX_BF16__)
  if (request_amx()) all.push_back({"bfloat16_tile", kTileFlops, tiles_bfloat16});
#endif
#if defined(__AVX512VNNI__)
  all.push_back({"int8_dot", kIntegerOperations, dot_int8});
#else
  all.push_back({"int8_narrow", kNarrowOperations, dot_int8_narrow});
#endif
#if defined(__AMX_INT8__)
  if (request_amx()) all.push_back({"int8_tile", kIntegerTileOperations, tiles_int8});
#endif
  return all;
}

// Operations a second of each in every pass. They take turns, so that a neighbour that comes and goes is beside all of them.
std::vector<std::vector<double>> arithmetic(int threads, const std::vector<Peak>& all) {
  std::vector<std::vector<double>> rates(all.size());
  for (int i = 0; i < 4 * kRepeats; ++i)
    for (std::size_t p = 0; p < all.size(); ++p)
      rates[p].push_back(all[p].operations * threads / timed(threads, [&](int) { all[p].work(); }) / 1e9);
  return rates;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(std::size_t{2} << 20, kBytes + (std::size_t{2} << 20)));
  if (memory == nullptr) return 1;
  madvise(memory, kBytes, MADV_HUGEPAGE);
  fill(memory, threads);
  if (argc > 4) {  // the read bandwidth alone, in that way
    const reads::Way way{std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]) != 0};
    std::printf("{\"read_bandwidth\": %.2f}\n", median([&] { return read_once(memory, threads, kBytes, 0, way); }));
    return 0;
  }
  const std::vector<Found> found = read_by_all(memory, threads);
  std::printf("{\"threads\": %d, \"reads\": [", threads);
  for (const Found& one : found)
    std::printf("%s{\"streams\": %d, \"ahead\": %d, \"near\": %d, \"rate\": %.2f}", &one == &found[0] ? "" : ", ", one.way.streams, one.way.ahead,
                one.way.near, one.rate);
  std::printf("], \"read_bandwidth\": %.2f", found[0].rate);
  std::printf(", \"read_one_thread\": %.2f", median([&] { return read_once(memory, 1, 2 * kPiece, 0, found[0].way); }));
  std::printf(", \"cache_bandwidth\": %.2f", cache_bandwidth(memory, threads));
  const std::vector<Peak> all = peaks();
  const std::vector<std::vector<double>> rates = arithmetic(threads, all);
  for (std::size_t p = 0; p < all.size(); ++p) {
    std::printf(", \"%s_gflops\": [", all[p].name);
    for (std::size_t i = 0; i < rates[p].size(); ++i) std::printf("%s%.1f", i == 0 ? "" : ", ", rates[p][i]);
    std::printf("]");
  }
  std::printf("}\n");
  return 0;
}
