// Times and checks Winograd convolutions (native/kernels/winograd.cpp) alone, without Python or the executor, beside the direct
// product of the same size: matmul_packed's level code on rows of 9 * channels values, which overlap as patches of pixels do.
//
// From the repository's root, after a build in build/dev:
//   g++ -std=c++20 -O3 -march=native -DINGOT_LEVEL=bench -Ibuild/dev/include -Inative/src -Inative/kernels -isystem
//     $(python -c "import nlohmann_json; print(nlohmann_json.__path__[0])")/include
//     benchmarks/native/winograd_bench.cpp build/dev/libingot_core.a -pthread -o bench
// Run: [INGOT_ISA=level] ./bench [threads = 2] [seconds per figure = 0.2] [only this layer, or images,size,channels,outputs]. "warm": the same weights
// each time (the best), "cold": one after the other from 64 MiB, 256 once transformed (the median). GFLOP/s count the direct
// product's operations.
#include <memory>
#include <string>

#define BENCH_DTYPE float32
#include "bench.h"
#include "winograd.h"

namespace {

struct Layer {
  const char* name;
  std::int64_t images, size, channels, outputs;
  double flops() const { return 18.0 * static_cast<double>(images * size * size * channels * outputs); }
  std::int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
};

const Epilogue& bias_relu() {
  static const Epilogue epilogue(
      Expression("bench", R"({"steps": [["input", "float32", 0], ["input", "float32", 1], ["add", "float32", 0, 1], ["const", "float32", 0],
                                        ["max", "float32", 2, 3]], "outputs": [4]})"_json, kFloats, {kFloats, 1}), current_level());
  return epilogue;
}

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
  std::byte *x, *y, *bias;
  std::vector<std::byte*> local;

  void winograd(const Layer& l, const Winograd& w, const TensorView& panels) {
    const TileOperand extra{bias, DType::float32, 0, 1};
    WinogradOperands o{};
    o.x = dense(x, {l.images, l.size, l.size, l.channels});
    o.y = dense(y, {l.images, l.size, l.size, l.outputs});
    o.panels = panels;
    o.top = o.left = 1;
    o.extras = &extra, o.extra_count = 1;
    o.out = {y, DType::float32, l.outputs, 1};
    team.run([&](int i) {
      Worker worker;
      worker.index = i, worker.count = team.size(), worker.local = local[static_cast<std::size_t>(i)];
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
      Frame frame(local[static_cast<std::size_t>(i)]);
      job.epilogue = bias_relu().job(&extra, 1, bias_relu().take(frame));
      job.epilogue.out = {y + (first * l.outputs + unit * kPanel) * 4, DType::float32, l.outputs, 1};
      job.scratch = frame.take<std::byte>(0);
      product_for(current_level(), DType::float32).run(job);
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

const Layer kLayers[] = {
    {"resnet 56", 1, 56, 64, 64},      {"resnet 28", 1, 28, 128, 128},    {"resnet 14", 1, 14, 256, 256},
    {"resnet 7", 1, 7, 512, 512},      {"unet 256", 1, 256, 32, 32},      {"unet 128", 1, 128, 64, 64},
    {"unet 64", 1, 64, 128, 128},      {"unet 32", 1, 32, 256, 256},      {"unet 64w", 1, 64, 256, 128},
    {"unet 16", 1, 16, 512, 512},      {"resnet 56 x8", 8, 56, 64, 64},   {"resnet 28 x8", 8, 28, 128, 128},
    {"resnet 14 x8", 8, 14, 256, 256}, {"resnet 7 x8", 8, 7, 512, 512},   {"unet 256 x8", 8, 256, 32, 32},
    {"unet 128 x8", 8, 128, 64, 64},   {"unet 64 x8", 8, 64, 128, 128},   {"unet 32 x8", 8, 32, 256, 256},
};

void measure(Bench& bench, const Layer& l, double seconds, std::byte* pool) {
  auto* x = reinterpret_cast<float*>(bench.x);
  for (std::int64_t i = 0; i < l.images * l.size * l.size * l.channels + 9 * l.channels; ++i) x[i] = std::max(uniform(), 0.0f);
  const std::int64_t bytes = l.panels() * 9 * l.channels * 128;
  const auto copies = static_cast<std::size_t>(std::clamp<std::int64_t>((64 << 20) / bytes / (l.images > 1 ? 2 : 1), 1, 64));
  std::vector<std::unique_ptr<Winograd>> copy;
  std::vector<TensorView> panels;
  for (std::size_t i = 0; i < copies; ++i) {
    panels.push_back(dense(pool + static_cast<std::int64_t>(i) * bytes, {l.panels(), 9 * l.channels, kPanel}));
    copy.push_back(std::make_unique<Winograd>(l.outputs, l.channels, bias_relu(), current_level()));
    copy.back()->prepare(panels.back(), dense(nullptr, {l.images, l.size, l.size, l.outputs}));
  }
  std::size_t next = 0;
  const auto turn = [&] { return next = (next + 1) % copies; };
  const double warm = timed(seconds, true, [&] { bench.winograd(l, *copy[0], panels[0]); });
  const double cold = timed(seconds, false, [&] { bench.winograd(l, *copy[turn()], panels[next]); });
  bench.winograd(l, *copy[0], panels[0]);
  const std::vector<std::byte> found(bench.y, bench.y + l.images * l.size * l.size * l.outputs * 4);
  const double warm_direct = timed(seconds, true, [&] { bench.product(l, pool); });
  const double cold_direct = timed(seconds, false, [&] { bench.product(l, pool + static_cast<std::int64_t>(turn()) * bytes); });
  std::memcpy(bench.y, found.data(), found.size());
  const double flops = l.flops() * 1e-9;
  std::printf("%-14s %10.0f %10.0f %12.0f %10.0f %9.2f %6.2f", l.name, flops / warm, flops / cold, flops / warm_direct, flops / cold_direct,
              warm_direct / warm, cold_direct / cold);
  bench.check(l, reinterpret_cast<const float*>(pool));
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.2;
  const std::string only = argc > 3 ? argv[3] : "";
  Team team(threads);
  Bench bench{team, huge(512 << 20), huge(512 << 20), huge(1 << 20), {}};
  for (int i = 0; i < threads; ++i) bench.local.push_back(huge(64 << 20));
  std::byte* pool = huge(kPool);
  fill(pool, (64 << 20) / kWidth);
  for (std::int64_t at = 64 << 20; at < kPool; at += 64 << 20) std::memcpy(pool + at, pool, 64 << 20);
  fill(bench.bias, 4096);
  std::printf("level %s, %d threads; roof %.0f GFLOP/s, read bandwidth %.1f GB/s\n", name_of(current_level()).data(), threads, roof(team) * 1e-9,
              bandwidth(team, pool) * 1e-9);
  std::printf("%-14s %22s %22s %14s\n", "GFLOP/s", "winograd warm, cold", "direct warm, cold", "ratio");
  Layer given{only.c_str(), 0, 0, 0, 0};
  const bool one = std::sscanf(only.c_str(), "%ld,%ld,%ld,%ld", &given.images, &given.size, &given.channels, &given.outputs) == 4;
  if (one) measure(bench, given, seconds, pool);
  for (const Layer& l : kLayers)
    if (!one && (only.empty() || only == l.name)) measure(bench, l, seconds, pool);
  return 0;
}
