// Times the level code of matmul_packed alone, without Python or the executor.
//
// From the repository's root, after a build in build/dev (bfloat16; -DBENCH_DTYPE=float32 or int8 for these; narrower weights
// by -DBENCH_PACKING=int8, or int4 with -DBENCH_GROUP=32, 64 or 128, and -DBENCH_SCALES=float32 for scales of 32 bits in the place of 16):
//   g++ -std=c++20 -O3 -march=native -DINGOT_LEVEL=bench -Ibuild/dev/include -Inative/src -Inative/kernels -isystem
//     $(python -c "import nlohmann_json; print(nlohmann_json.__path__[0])")/include
//     benchmarks/native/matmul_bench.cpp build/dev/libingot_core.a -pthread -o bench
// Run: [INGOT_ISA=level] ./bench [threads = 2] [seconds per figure = 0.3] [only so many shapes: 5 are those of a language model] [rows: prints only
// the seconds of each shape with so many rows and cold weights, as JSON: the mean of the repetitions, since a model that is held against it is
// held up by others too]. "cold" weights come one after the other from a pool of 1 GiB of huge pages (the median of the repetitions), "warm" ones
// are the same each time (the best).
#include <numeric>
#include <utility>

#include "bench.h"

namespace {

constexpr Packing kPacking = Packing::BENCH_PACKING;
constexpr int kGroup = kPacking == Packing::int4 ? BENCH_GROUP : 0;
constexpr int kScaleBytes = static_cast<int>(size_of(DType::BENCH_SCALES));

struct Product {
  std::int64_t rows, n, k;
  int parts;
  std::int64_t panels() const { return (n + kPanel - 1) / kPanel * parts; }
  std::int64_t panel_bytes() const {
    if (kPacking == Packing::same) return kPanel * round_up(k, kDepth) * kWidth;
    return round_up(k, packed_depth(kPacking)) / packed_depth(kPacking) * kPackedBytes;
  }
  std::int64_t groups() const { return kGroup == 0 ? 0 : (k + kGroup - 1) / kGroup; }
  std::int64_t scales_bytes() const { return panels() * groups() * kPanel * kScaleBytes; }
  std::int64_t panels_bytes() const { return panels() * panel_bytes(); }
  std::int64_t weight_bytes() const { return panels_bytes() + scales_bytes(); }
};

const Epilogue& epilogue_of(const Product& p) {
  static const Epilogue identity(Expression("bench", R"({"steps": [["input", "float32", 0]], "outputs": [0]})"_json, {kFloats, 1}, {&kOut, 1}),
                                 current_level());
  static const Epilogue gate(Expression("bench", R"({"steps": [["input", "float32", 0], ["input", "float32", 1], ["silu", "float32", 0],
                                                               ["mul", "float32", 2, 1]], "outputs": [3]})"_json, kFloats, {&kOut, 1}),
                             current_level());
  return p.parts == 2 ? gate : identity;
}

void multiply(Team& team, const Product& p, const std::byte* x, const std::byte* w, const std::byte* scales, std::byte* y, std::vector<std::byte*>& scratch) {
  const PackedProduct& product = product_for(current_level(), kDType, kPacking == Packing::int4 ? DType::uint8 : kDType);
  const Epilogue& epilogue = epilogue_of(p);
  const std::int64_t units = (p.n + kPanel - 1) / kPanel;
  team.run([&](int i) {
    const std::int64_t first = units * i / team.size(), last = units * (i + 1) / team.size();
    MatmulJob job{};
    job.x = x;
    job.x_stride = p.k * kWidth;
    job.rows = p.rows;
    job.k = p.k;
    job.w = w + p.panel_bytes() * p.parts * first;
    job.packing = kPacking;
    job.group = kGroup;
    job.scale_bytes = kScaleBytes;
    job.scales = scales + first * p.parts * p.groups() * kPanel * kScaleBytes;
    job.units = last - first;
    job.parts = p.parts;
    job.columns = p.n - first * kPanel;
    Frame frame(scratch[i]);
    job.unpacked = frame.take<std::byte>(2 * kUnpackedPanel);
    job.epilogue = epilogue.job(nullptr, 0, epilogue.take(frame));
    job.epilogue.out = {y + first * kPanel * kOutWidth, kOut, p.n, 1};
    job.scratch = frame.take<std::byte>(0);
    product.run(job);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.3;
  const std::size_t most = argc > 3 ? static_cast<std::size_t>(std::atoi(argv[3])) : 100;
  const int only_rows = argc > 4 ? std::atoi(argv[4]) : 0;
  Team team(threads);
  std::byte* pool = huge(kPool + (64 << 20));
  fill(pool, 1 << 22);
  for (std::int64_t at = 1 << 22; at < kPool + (64 << 20); at += (1 << 22)) std::memcpy(pool + at, pool, 1 << 22);
  // By themselves, since any bits would be denormals now and then, which some CPUs take a hundred times as long for.
  std::byte* const scales = huge(kPool / 4 + (64 << 20));
  for (std::int64_t i = 0; i < (4 << 20) / kScaleBytes; ++i) {
    const float scale = 1e-3f * (uniform() + 2);
    if (kScaleBytes == 2) reinterpret_cast<std::uint16_t*>(scales)[i] = static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(scale) >> 13) - (112 << 10));
    else reinterpret_cast<float*>(scales)[i] = scale;
  }
  for (std::int64_t at = 1 << 22; at < kPool / 4 + (64 << 20); at += (1 << 22)) std::memcpy(scales + at, scales, 1 << 22);
  std::byte* x = huge(64 << 20);
  std::byte* y = huge(256 << 20);
  fill(x, 4 << 20);
  std::vector<std::byte*> scratch;
  for (int i = 0; i < threads; ++i) scratch.push_back(huge(64 << 20));

  const std::vector<Product> all = {{1, 2048, 2048, 1}, {1, 2560, 2048, 1}, {1, 5632, 2048, 2}, {1, 2048, 5632, 1}, {1, 32000, 2048, 1},
                            {1, 256, 256, 1},   {1, 512, 256, 1},   {1, 768, 256, 2},   {1, 256, 768, 1},   {1, 1024, 256, 1}, {1, 256, 1024, 1}};
  const std::vector<Product> shapes(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(most, all.size())));
  const auto repeat = [&](const Product& p, bool cold) {
    const std::int64_t bytes = p.weight_bytes(), step = round_up(p.panels_bytes(), 4096), scales_step = round_up(p.scales_bytes(), 4096);
    const std::int64_t most = scales_step == 0 ? kPool : kPool / 4 / scales_step;
    const std::int64_t copies = cold ? std::max<std::int64_t>(1, std::min(most, kPool / step)) : 1;
    std::vector<double> times;
    std::int64_t next = 0;
    multiply(team, p, x, pool, scales, y, scratch);  // where results and scratch go, pages are new
    const double until = now() + seconds;
    const int batch = p.rows == 1 ? static_cast<int>(std::max<std::int64_t>(1, (8 << 20) / bytes)) : 1;
    do {
      const double start = now();
      for (int i = 0; i < batch; ++i, next = (next + 1) % copies) multiply(team, p, x, pool + next * step, scales + next * scales_step, y, scratch);
      times.push_back((now() - start) / batch);
    } while (now() < until);
    return times;
  };
  const auto measure = [&](const Product& p, bool cold) {
    std::vector<double> times = repeat(p, cold);
    std::sort(times.begin(), times.end());
    return cold ? times[times.size() / 2] : times[0];
  };
  const auto mean = [&](const Product& p) {
    const std::vector<double> times = repeat(p, true);
    return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  };
  if (only_rows != 0) {
    const char* before = "{\"seconds\": [";
    for (Product p : shapes) {
      p.rows = only_rows;
      std::printf("%s%.9f", std::exchange(before, ", "), mean(p));
    }
    std::printf("]}\n");
    return 0;
  }

  const double read = bandwidth(team, pool);
  std::printf("level %s, threads %d, read bandwidth %.1f GB/s\n", name_of(current_level()).data(), threads, read * 1e-9);

  // The same bits for one row and for many.
  for (Product p : {Product{200, 320, 1000, 1}, Product{37, 96, 2048, 2}}) {
    multiply(team, p, x, pool, scales, y, scratch);
    std::vector<std::byte> whole(y, y + p.rows * p.n * kOutWidth);
    const std::int64_t rows = p.rows;
    bool same = true;
    for (std::int64_t r = 0; r < rows; ++r) {
      p.rows = 1;
      multiply(team, p, x + r * p.k * kWidth, pool, scales, y, scratch);
      same = same && std::memcmp(y, whole.data() + r * p.n * kOutWidth, p.n * kOutWidth) == 0;
    }
    std::printf("rows alone and together: %s\n", same ? "the same bits" : "DIFFERENT BITS");
  }

  std::printf("%-22s %28s %28s\n", "one row: n x k, parts", "cold us, GB/s, of read", "warm us, GB/s");
  for (const Product& p : shapes) {
    const double cold = measure(p, true), warm = measure(p, false);
    const double bytes = static_cast<double>(p.weight_bytes());
    std::printf("%6ld x %5ld, %d %12.2f %8.1f %5.0f%% %16.2f %8.1f\n", p.n * p.parts, p.k, p.parts, cold * 1e6, bytes / cold * 1e-9,
                100 * bytes / cold / read, warm * 1e6, bytes / warm * 1e-9);
  }
  std::printf("%-22s %s\n", "GFLOP/s: n x k, parts", "rows: 4, 16, 32, 128, 512 (cold weights); 512 (warm)");
  for (const Product& shape : shapes) {
    std::printf("%6ld x %5ld, %d", shape.n * shape.parts, shape.k, shape.parts);
    for (int rows : {4, 16, 32, 128, 512, -512}) {
      Product p = shape;
      p.rows = std::abs(rows);
      const double time = measure(p, rows > 0);
      std::printf(" %8.0f", 2e-9 * static_cast<double>(p.rows * p.n * p.parts * p.k) / time);
    }
    std::printf("\n");
  }
  return 0;
}
