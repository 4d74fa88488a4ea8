// What the benchmarks of single kernels share: calls as the executor makes them, with threads and barriers; operands; and the roof.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <vector>

#include "executor.h"
#include "level.h"
#include "level/simd.h"
#include "memory.h"

namespace ingot {

inline double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Worker 0's times of calls in one parallel region; operand 1 is taken from each of the pool's copies in turn.
struct Timing {
  std::function<void(const std::vector<TensorView>& in, Worker& worker)> call;
  std::vector<TensorView> in;
  TensorView y;
  std::byte* pool;
  std::int64_t copies, step;
  std::byte *shared, *local;
  std::size_t local_bytes;
  double seconds;

  /// Sorted, of at least five calls.
  std::vector<double> run(int threads) {
    Region region{};
    region.pool = &ThreadPool::get(threads);
    region_ = &region;
    times_.clear();
    done_ = false;
    region.pool->run(work, this);
    std::sort(times_.begin(), times_.end());
    return times_;
  }

 private:
  static void work(void* context, int index) {
    Timing& t = *static_cast<Timing*>(context);
    Worker worker;
    worker.index = index;
    worker.count = t.region_->pool->threads();
    worker.shared = t.shared;
    worker.local = t.local + t.local_bytes * static_cast<std::size_t>(index);
    worker.region = t.region_;
    std::vector<TensorView> in = t.in;
    const double until = now() + t.seconds;
    for (std::int64_t turn = 0;; ++turn) {
      in[1].data = t.pool + turn % t.copies * t.step;
      worker.barrier();
      const double start = now();
      t.call(in, worker);
      worker.barrier();
      if (index == 0) t.times_.push_back(now() - start);
      if (index == 0 && now() > until && t.times_.size() > 5) t.done_ = true;
      worker.barrier();
      if (t.done_) return;
    }
  }

  Region* region_ = nullptr;
  std::vector<double> times_;
  std::atomic<bool> done_{false};
};

inline TensorView view(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView v;
  v.data = data;
  v.dtype = dtype;
  v.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), v.shape);
  std::int64_t stride = 1;
  for (int dim = v.rank - 1; dim >= 0; stride *= v.shape[dim--]) v.stride[dim] = stride;
  return v;
}

inline void fill(std::byte* p, std::int64_t bytes, DType dtype) {
  std::uint64_t state = 88172645463325252u;
  for (std::int64_t at = 0; at < bytes; at += static_cast<std::int64_t>(size_of(dtype))) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const float v = static_cast<float>(static_cast<std::int64_t>(state >> 40) - (1 << 23)) * 0x1p-23f;
    if (dtype == DType::float32) std::memcpy(p + at, &v, 4);
    else if (dtype == DType::bfloat16) std::memcpy(p + at, reinterpret_cast<const std::byte*>(&v) + 2, 2);
    else if (dtype == DType::int8) p[at] = static_cast<std::byte>(static_cast<std::int8_t>(v * 127));
    else std::memset(p + at, 0x2c, 2);
  }
}

/// Whether the level in use has a dot product of pairs of that type.
inline bool multiplies_pairs([[maybe_unused]] DType dtype) {
#if defined(__AVX512BF16__)
  return dtype == DType::bfloat16 && current_level() >= Level::avx512_bf16;
#else
  return false;
#endif
}

/// Whether it has one of quads of int8.
inline bool multiplies_quads([[maybe_unused]] DType dtype) {
#if defined(__AVX512VNNI__)
  return dtype == DType::int8 && current_level() >= Level::avx512_vnni;
#else
  return false;
#endif
}

/// Multiply-adds of the widest vectors from registers, on all threads, in FLOP/s.
inline double roof(int threads, DType dtype) {
  struct Context {
    DType dtype;
    double best = 0;
  } context{dtype};
  constexpr std::int64_t kSteps = 40000;
  for (int repeat = 0; repeat < 20; ++repeat) {
    const double start = now();
    ThreadPool::get(threads).run(
        [](void* c, [[maybe_unused]] int index) {
          using namespace bench;
#if defined(__AVX512VNNI__)
          if (multiplies_quads(static_cast<Context*>(c)->dtype)) {
            __m512i sums[12] = {};
            const __m512i a = _mm512_set1_epi8(1);
            for (std::int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
              for (int i = 0; i < 12; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], a, a);
            }
            for (int i = 0; i < 12; ++i) __asm__ volatile("" : : "v"(sums[i]));
            return;
          }
#endif
#if defined(__AVX512BF16__)
          if (multiplies_pairs(static_cast<Context*>(c)->dtype)) {
            __m512 sums[12] = {};
            const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80);
            for (std::int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
              for (int i = 0; i < 12; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], a, a);
            }
            for (int i = 0; i < 12; ++i) __asm__ volatile("" : : "v"(sums[i]));
            return;
          }
#endif
          Vec sums[12];
          for (Vec& sum : sums) sum = zero();
          const Vec a = broadcast(0.5f), b = broadcast(1);
          for (std::int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
            for (int i = 0; i < 12; ++i) sums[i] = fma(sums[i], a, b);
          }
          volatile float sink = 0;
          for (const Vec& sum : sums) sink = sink + reduce_add(sum);
        },
        &context);
    const double flop = 12.0 * kSteps * 32 * threads * (multiplies_quads(dtype) ? 4 : multiplies_pairs(dtype) ? 2 : 1);
    context.best = std::max(context.best, flop / (now() - start));
  }
  return context.best;
}

}  // namespace ingot
