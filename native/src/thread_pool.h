// The thread pool: one per process and number of threads. The caller is worker 0; the others spin for at most 100 µs
// after a region and then sleep. Threads are never joined: they hold nothing but their own stacks.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <type_traits>

namespace ingot {

/// Where the workers of a region meet. Fit for few threads on a shared line; whoever waits long gives up its processor.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void wait() noexcept;

 private:
  const int count_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> generation_{0};
};

class ThreadPool {
 public:
  /// The pool with that many threads, the caller's included. In a forked child it is a fresh one.
  static ThreadPool& get(int threads);

  /// Calls work(worker) once per worker and returns when all have. One region at a time: other callers wait.
  template <class Work>
  void run(Work&& work) {
    run([](void* context, int worker) { (*static_cast<std::remove_reference_t<Work>*>(context))(worker); }, &work);
  }

  Barrier& barrier() noexcept { return barrier_; }
  int threads() const noexcept { return threads_; }

 private:
  using Call = void (*)(void* context, int worker);

  explicit ThreadPool(int threads) : threads_(threads), barrier_(threads) {}

  const int threads_;
  Barrier barrier_;
  std::mutex one_region_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> region_{0};  // counts regions; a worker waits for it to change
  alignas(64) std::atomic<int> running_{0};           // workers other than the caller that are not done

  void run(Call call, void* context);
  void start();
  void serve(int worker);
};

/// The smaller of the process's CPU affinity and its cgroup's quota, at least 1.
int default_threads();

constexpr int kMaxThreads = 1024;

}  // namespace ingot
