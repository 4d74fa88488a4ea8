// What the benchmarks of the level code share: a team of spinning threads, memory in huge pages, and the machine's roofs.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "level.h"
#include "level/simd.h"
#include "product.h"
#include "reads.h"

#ifndef BENCH_DTYPE
#define BENCH_DTYPE bfloat16
#endif
#ifndef BENCH_PACKING
#define BENCH_PACKING same
#endif
#ifndef BENCH_GROUP
#define BENCH_GROUP 32
#endif
#ifndef BENCH_SCALES
#define BENCH_SCALES float16
#endif

using namespace ingot;

namespace {

constexpr DType kDType = DType::BENCH_DTYPE;
const DType kFloats[] = {DType::float32, DType::float32};
constexpr DType kOut = kDType == DType::int8 ? DType::bfloat16 : kDType;
constexpr std::int64_t kWidth = bytes_of(kDType), kOutWidth = bytes_of(kOut), kDepth = kWidth == 4 ? 1 : 4 / kWidth;
constexpr std::int64_t kPool = std::int64_t{1} << 30;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Threads that spin for their next piece of work.
class Team {
 public:
  explicit Team(int size) : size_(size) {
    for (int i = 1; i < size; ++i) threads_.emplace_back([this, i] { serve(i); });
  }
  ~Team() {
    stop_ = true;
    generation_.fetch_add(1);
    for (std::thread& thread : threads_) thread.join();
  }
  template <class F>
  void run(const F& work) {
    call_ = [](const void* f, int i) { (*static_cast<const F*>(f))(i); };
    work_ = &work;
    done_ = 0;
    generation_.fetch_add(1, std::memory_order_release);
    work(0);
    while (done_.load(std::memory_order_acquire) != size_ - 1) {
    }
  }
  int size() const { return size_; }

 private:
  void serve(int index) {
    for (int seen = 0;;) {
      while (generation_.load(std::memory_order_acquire) == seen) {
      }
      ++seen;
      if (stop_) return;
      call_(work_, index);
      done_.fetch_add(1, std::memory_order_release);
    }
  }
  int size_;
  std::vector<std::thread> threads_;
  std::atomic<int> generation_{0}, done_{0};
  std::atomic<bool> stop_{false};
  void (*call_)(const void*, int) = nullptr;
  const void* work_ = nullptr;
};

std::byte* huge(std::size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) std::abort();
  madvise(p, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(p);
}

std::uint64_t state = 88172645463325252u;
float uniform() {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return static_cast<float>(static_cast<std::int64_t>(state >> 40) - (1 << 23)) * 0x1p-23f;
}
void fill(std::byte* p, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float v = uniform();
    if constexpr (kDType == DType::int8) p[i] = static_cast<std::byte>(static_cast<std::int8_t>(v * 127));
    else std::memcpy(p + i * kWidth, reinterpret_cast<const std::byte*>(&v) + 4 - kWidth, kWidth);  // bfloat16: the upper half
  }
}

constexpr std::int64_t kRoofSteps = 20000;

/// Arithmetic of the level's vectors from registers, in FLOP/s.
double roof(Team& team) {
  double best = 0;
  for (int repeat = 0; repeat < 20; ++repeat) {
    const double start = now();
    team.run([&](int) {
      using namespace INGOT_LEVEL;
#if defined(__AVX512BF16__)
      __m512 sums[24] = {};
      const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80), b = (__m512bh)_mm512_set1_epi32(0x3f803f80);
      for (std::int64_t step = 0; step < kRoofSteps; ++step)
        for (int i = 0; i < 24; ++i) {
          sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
          __asm__ volatile("" : "+v"(sums[i]));
        }
#else
      Vec sums[12];
      for (Vec& sum : sums) sum = zero();
      const Vec a = broadcast(0.5f), b = broadcast(1);
      for (std::int64_t step = 0; step < 2 * kRoofSteps; ++step) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; ++i) sums[i] = fma(sums[i], a, b);
      }
      float sink = 0;
      for (const Vec& sum : sums) sink += reduce_add(sum);
      volatile float kept = sink;
      (void)kept;
#endif
    });
    best = std::max(best, 24.0 * kRoofSteps * 16 * 2 * (kDType == DType::bfloat16 ? 2 : 1) * team.size() / (now() - start));
  }
  return best;
}

/// Of the fastest way to read the pool.
double bandwidth(Team& team, const std::byte* pool) {
  const std::size_t part = kPool / team.size() / reads::kUnit * reads::kUnit;
  double best = 0;
  for (int repeat = 0; repeat < 2; ++repeat)
    for (const reads::Way way : reads::all_ways()) {
      const double start = now();
      team.run([&](int i) { reads::read_range(pool + part * i, part, way); });
      best = std::max(best, static_cast<double>(part) * team.size() / (now() - start));
    }
  return best;
}

}  // namespace
