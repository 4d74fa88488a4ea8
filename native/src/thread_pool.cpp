// Spinning, sleeping and meeting.
#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <system_error>
#include <thread>

#include "error.h"

namespace ingot {
namespace {

using Clock = std::chrono::steady_clock;

// Between the steps of a language model the host chooses tokens and plans for 40 to 70 µs: workers that slept meanwhile would be
// late for each step.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr int kPausesBetweenLooks = 32;
// A worker that is running arrives within a few microseconds; one that is not needs a processor, perhaps this one.
// Longer spinning gains nothing on an idle machine and costs a hundred times as much per barrier on a busy one.
constexpr int kPausesBeforeYield = 128;
constexpr int kYieldsBeforeSleep = 4096;

inline void pause() noexcept {
#if INGOT_X86
  __builtin_ia32_pause();
#else
  __asm__ volatile("yield");
#endif
}

/// Waits until `word` is no longer `old`, which another thread is about to see to. Spins, then lets others run, then
/// sleeps, for the other may not have a processor to itself.
template <class Word>
void wait_for_change(const std::atomic<Word>& word, Word old) noexcept {
  for (int tries = 0; word.load(std::memory_order_acquire) == old; ++tries) {
    if (tries < kPausesBeforeYield) {
      pause();
    } else if (tries < kPausesBeforeYield + kYieldsBeforeSleep) {
      sched_yield();
    } else {
      word.wait(old, std::memory_order_acquire);
    }
  }
}

/// Every pool of the process. A forked child has the memory but not the threads, so it begins with an empty registry.
/// It leaves the parent's as it is, where a lock may be held by a thread that does not exist.
struct Registry {
  std::mutex mutex;
  std::map<int, ThreadPool*> pools;
};

std::atomic<Registry*> registry{nullptr};

void renew_registry() { registry.store(new Registry, std::memory_order_release); }

}  // namespace

void Barrier::wait() noexcept {
  if (count_ == 1) return;
  const std::uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    generation_.notify_all();
    return;
  }
  wait_for_change(generation_, generation);
}

ThreadPool& ThreadPool::get(int threads) {
  static const bool once = [] {
    renew_registry();
    return pthread_atfork(nullptr, nullptr, renew_registry) == 0;
  }();
  (void)once;
  Registry& all = *registry.load(std::memory_order_acquire);
  const std::lock_guard lock(all.mutex);
  ThreadPool*& pool = all.pools[threads];
  if (pool == nullptr) {
    // When a thread cannot be started, those that run go on waiting for work that never comes; their pool must outlive
    // them.
    auto* fresh = new ThreadPool(threads);
    fresh->start();
    pool = fresh;
  }
  return *pool;
}

void ThreadPool::start() {
  try {
    for (int worker = 1; worker < threads_; ++worker) std::thread([this, worker] { serve(worker); }).detach();
  } catch (const std::system_error& error) {
    throw Error(code::memory, "cannot start " + std::to_string(threads_ - 1) + " threads: " + error.what());
  }
}

void ThreadPool::run(Call call, void* context) {
  if (threads_ == 1) {
    call(context, 0);
    return;
  }
  const std::lock_guard lock(one_region_);
  call_ = call;
  context_ = context;
  running_.store(threads_ - 1, std::memory_order_relaxed);
  region_.fetch_add(1, std::memory_order_release);
  region_.notify_all();
  call(context, 0);
  for (int running = running_.load(std::memory_order_acquire); running != 0;) {
    wait_for_change(running_, running);
    running = running_.load(std::memory_order_acquire);
  }
}

void ThreadPool::serve(int worker) {
  std::uint32_t seen = 0;
  for (;;) {
    const auto spin_end = Clock::now() + kSpin;
    for (int pauses = 1; region_.load(std::memory_order_acquire) == seen; ++pauses) {
      pause();
      if (pauses % kPausesBetweenLooks == 0 && Clock::now() > spin_end) {
        region_.wait(seen, std::memory_order_acquire);
        break;
      }
    }
    seen = region_.load(std::memory_order_acquire);
    call_(context_, worker);
    running_.fetch_sub(1, std::memory_order_release);
    running_.notify_one();
  }
}

int default_threads() {
  int threads = std::max(1u, std::thread::hardware_concurrency());
#ifdef __linux__
  cpu_set_t affinity;
  if (sched_getaffinity(0, sizeof affinity, &affinity) == 0) threads = std::max(1, CPU_COUNT(&affinity));
  double quota = 0, period = 0;
  if (std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "re")) {
    if (std::fscanf(file, "%lf %lf", &quota, &period) != 2) quota = 0;  // "max 100000": no quota
    std::fclose(file);
  }
  if (quota > 0 && period > 0) threads = std::clamp(static_cast<int>(std::ceil(quota / period)), 1, threads);
#endif
  return std::min(threads, kMaxThreads);
}

}  // namespace ingot
