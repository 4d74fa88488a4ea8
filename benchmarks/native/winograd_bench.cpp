// Times and checks Winograd convolutions (native/kernels/winograd.cpp) alone, without Python or the executor, beside the direct
// product of the same size: matmul_packed's level code on rows of 9 * channels values, which overlap as patches of pixels do.
//
// From the repository's root, after a build in build/dev:
//   g++ -std=c++20 -O2 -DINGOT_X86=1 -Inative/src -Inative/kernels -Inative/include -I$(python -c
//     'import nlohmann_json, os; print(os.path.join(os.path.dirname(nlohmann_json.__file__), "include"))')
//     benchmarks/native/winograd_bench.cpp build/dev/libingot_core.a -pthread -o bench
// Run: ./bench [threads = 2] [seconds per figure = 0.2] [level = avx512] [only this layer, or images,size,channels,outputs]. "warm": the same weights each time
// (the best), "cold": weights of 256 MiB in turn (the median). GFLOP/s count the direct product's operations.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "level/matmul.h"
#include "winograd.h"

using namespace ingot;

namespace {

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
  void meet() {
    const int seen = met_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1) + 1 == size_) {
      arrived_ = 0;
      met_.fetch_add(1, std::memory_order_release);
    } else {
      while (met_.load(std::memory_order_acquire) == seen) {
      }
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
  std::atomic<int> generation_{0}, done_{0}, arrived_{0}, met_{0};
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

struct Layer {
  const char* name;
  std::int64_t images, size, channels, outputs;
  double flops() const { return 18.0 * static_cast<double>(images * size * size * channels * outputs); }
  std::int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
};

const Instruction kSteps[] = {{Step::load, Class::float32, 0, 0, 0, 0},
                              {Step::load, Class::float32, 1, 1, 0, 0},
                              {Step::add, Class::float32, 2, 0, 1, 0},
                              {Step::max, Class::float32, 4, 2, 3, 0}};
const Place kPlaces[] = {{0, false}, {2048, false}, {4096, false}, {0, true}, {6144, false}};
const std::uint16_t kOutputs[] = {4};
const Class kClass = Class::float32;
alignas(64) const float kConstants[16] = {};
const TileCode kBiasRelu{kSteps, 4, kPlaces, 5, kOutputs, &kClass, 1, reinterpret_cast<const std::byte*>(kConstants)};

TensorView dense(std::byte* data, std::initializer_list<std::int64_t> shape) {
  TensorView view;
  view.data = data;
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape);
  std::int64_t stride = 1;
  for (int dim = view.rank - 1; dim >= 0; --dim) view.stride[dim] = stride, stride *= view.shape[dim];
  return view;
}

struct Bench {
  Team& team;
  RunTile run_tile;
  MatmulFunction direct;
  std::byte *x, *y, *bias, *shared;
  std::vector<std::byte*> local;

  void winograd(const Layer& l, const Winograd& w, const TensorView& panels) {
    const TileOperand extra{bias, DType::float32, 0, 1};
    WinogradOperands o{};
    o.x = dense(x, {l.images, l.size, l.size, l.channels});
    o.y = dense(y, {l.images, l.size, l.size, l.outputs});
    o.panels = panels;
    o.top = o.left = 1;
    o.code = &kBiasRelu, o.tile_scratch = 8192, o.run_tile = run_tile, o.extras = &extra, o.extra_count = 1;
    o.out = {y, DType::float32, l.outputs, 1};
    team.run([&](int i) {
      Worker worker;
      worker.index = i, worker.count = team.size(), worker.shared = shared, worker.local = local[static_cast<std::size_t>(i)], worker.region = &team;
      w.run(o, worker);
    });
  }

  void product(const Layer& l, const std::byte* panels) {
    const std::int64_t rows = l.images * l.size * l.size;
    team.run([&](int i) {
      const bool by_rows = rows >= 64 * team.size();
      const std::int64_t first = by_rows ? rows * i / team.size() : 0, last = by_rows ? rows * (i + 1) / team.size() : rows;
      const std::int64_t unit = by_rows ? 0 : l.panels() * i / team.size(), end = by_rows ? l.panels() : l.panels() * (i + 1) / team.size();
      const TileOperand extra{bias + unit * 128, DType::float32, 0, 1};
      MatmulJob job{};
      job.x = x + first * l.channels * 4;
      job.x_stride = l.channels * 4;
      job.rows = last - first, job.k = 9 * l.channels;
      job.w = panels + unit * 9 * l.channels * 128;
      job.units = end - unit, job.parts = 1, job.columns = l.outputs - unit * kPanel;
      job.code = &kBiasRelu, job.run_tile = run_tile, job.extras = &extra, job.extra_count = 1;
      job.out = {y + (first * l.outputs + unit * kPanel) * 4, DType::float32, l.outputs, 1};
      job.tile_scratch = local[static_cast<std::size_t>(i)];
      job.scratch = job.tile_scratch + 8192;
      direct(job);
    });
  }

  /// The greatest and the root mean square error over the outputs' greatest and root mean square, on a sample of the outputs.
  void check(const Layer& l, const float* panels) {
    const auto* in = reinterpret_cast<const float*>(x);
    const auto* out = reinterpret_cast<const float*>(y);
    const auto* b = reinterpret_cast<const float*>(bias);
    double most = 0, sum = 0, greatest = 0, squares = 0;
    for (int sample = 0; sample < 20000; ++sample) {
      const auto draw = [](std::int64_t n) { return static_cast<std::int64_t>((uniform() + 1) / 2 * static_cast<float>(n)) % n; };
      const std::int64_t image = draw(l.images), row = draw(l.size), column = draw(l.size), output = draw(l.outputs);
      double exact = b[output];
      for (int tap = 0; tap < 9; ++tap) {
        const std::int64_t r = row + tap / 3 - 1, c = column + tap % 3 - 1;
        if (r < 0 || c < 0 || r >= l.size || c >= l.size) continue;
        const float* pixel = in + ((image * l.size + r) * l.size + c) * l.channels;
        const float* w = panels + (output / kPanel * 9 + tap) * l.channels * kPanel + output % kPanel;
        for (std::int64_t k = 0; k < l.channels; ++k) exact += static_cast<double>(pixel[k]) * w[k * kPanel];
      }
      exact = std::max(exact, 0.0);
      const double error = std::abs(exact - out[((image * l.size + row) * l.size + column) * l.outputs + output]);
      most = std::max(most, error), greatest = std::max(greatest, exact), sum += error * error, squares += exact * exact;
    }
    std::printf("  error %.1e rms %.1e\n", most / greatest, std::sqrt(sum / squares));
  }
};

template <class F>
double timed(double seconds, bool best, const F& call) {
  std::vector<double> times;
  const double until = now() + seconds;
  do {
    const double start = now();
    call();
    times.push_back(now() - start);
  } while (now() < until || times.size() < 3);
  std::sort(times.begin(), times.end());
  return times[best ? 0 : times.size() / 2];
}

}  // namespace

void ingot::Worker::barrier() const { static_cast<Team*>(region)->meet(); }

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.2;
  const std::string name = argc > 3 ? argv[3] : "avx512", only = argc > 4 ? argv[4] : "";
  const Level level = name == "portable" ? Level::portable : name == "avx2" ? Level::avx2 : Level::avx512;
  Team team(threads);
  constexpr std::size_t kPool = 256 << 20;
  Bench bench{team, portable::run_tile, portable::matmul_float32, huge(512 << 20), huge(512 << 20), huge(1 << 20), huge(512 << 20), {}};
  if (level == Level::avx2) bench.run_tile = avx2::run_tile, bench.direct = avx2::matmul_float32;
  if (level == Level::avx512) bench.run_tile = avx512::run_tile, bench.direct = avx512::matmul_float32;
  for (int i = 0; i < threads; ++i) bench.local.push_back(huge(64 << 20));
  std::byte* pool = huge(kPool);
  auto* values = reinterpret_cast<float*>(pool);
  for (std::size_t i = 0; i < kPool / 4; ++i) values[i] = uniform() * 0.05f;
  values = reinterpret_cast<float*>(bench.bias);
  for (int i = 0; i < 4096; ++i) values[i] = uniform() * 0.1f;

  std::vector<Layer> layers = {{"resnet 56", 1, 56, 64, 64},    {"resnet 28", 1, 28, 128, 128}, {"resnet 14", 1, 14, 256, 256},
                          {"resnet 7", 1, 7, 512, 512},    {"unet 256", 1, 256, 32, 32},   {"unet 128", 1, 128, 64, 64},
                          {"unet 64", 1, 64, 128, 128},    {"unet 32", 1, 32, 256, 256},   {"unet 64w", 1, 64, 256, 128},
                          {"unet 16", 1, 16, 512, 512},    {"resnet 56 x8", 8, 56, 64, 64}, {"resnet 28 x8", 8, 28, 128, 128},
                          {"resnet 14 x8", 8, 14, 256, 256}, {"unet 256 x8", 8, 256, 32, 32}, {"unet 64 x8", 8, 64, 128, 128},
                          {"unet 32 x8", 8, 32, 256, 256}};
  Layer given{only.c_str(), 0, 0, 0, 0};
  if (std::sscanf(only.c_str(), "%ld,%ld,%ld,%ld", &given.images, &given.size, &given.channels, &given.outputs) == 4) layers = {given};
  std::printf("%-14s %22s %22s %14s\n", "GFLOP/s", "winograd warm, cold", "direct warm, cold", "ratio");
  for (const Layer& l : layers) {
    if (!only.empty() && only != l.name) continue;
    values = reinterpret_cast<float*>(bench.x);
    for (std::int64_t i = 0; i < l.images * l.size * l.size * l.channels + 9 * l.channels; ++i) values[i] = std::max(uniform(), 0.0f);
    const std::int64_t bytes = l.panels() * 9 * l.channels * 128;
    const auto copies = static_cast<std::size_t>(kPool / static_cast<std::size_t>(bytes) / (l.images > 1 ? 8 : 4));
    std::vector<std::unique_ptr<Winograd>> copy;
    std::vector<TensorView> panels;
    for (std::size_t i = 0; i < std::max<std::size_t>(1, std::min<std::size_t>(copies, 64)); ++i) {
      panels.push_back(dense(pool + static_cast<std::int64_t>(i) * bytes, {l.panels(), 9 * l.channels, kPanel}));
      copy.push_back(std::make_unique<Winograd>(l.outputs, l.channels, level));
      copy.back()->prepare(panels.back());
    }
    std::size_t next = 0;
    const double warm = timed(seconds, true, [&] { bench.winograd(l, *copy[0], panels[0]); });
    const double cold = timed(seconds, false, [&] { bench.winograd(l, *copy[next], panels[next]), next = (next + 1) % copy.size(); });
    bench.winograd(l, *copy[0], panels[0]);
    std::vector<std::byte> found(bench.y, bench.y + l.images * l.size * l.size * l.outputs * 4);
    next = 0;
    const double warm_direct = timed(seconds, true, [&] { bench.product(l, pool); });
    const double cold_direct = timed(seconds, false, [&] { bench.product(l, pool + static_cast<std::int64_t>(next) * bytes), next = (next + 1) % copy.size(); });
    std::memcpy(bench.y, found.data(), found.size());
    const double flops = l.flops() * 1e-9;
    std::printf("%-14s %10.0f %10.0f %12.0f %10.0f %9.2f %6.2f", l.name, flops / warm, flops / cold, flops / warm_direct, flops / cold_direct,
                warm_direct / warm, cold_direct / cold);
    bench.check(l, reinterpret_cast<const float*>(pool));
  }
  return 0;
}
