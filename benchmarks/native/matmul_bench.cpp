// Times the level code of matmul_packed alone, without Python or the executor.
//
// From the repository's root, after build/dev is configured, one command line per level (bfloat16; -DBENCH_DTYPE=float32 for float32):
//   amx:          g++ -std=c++20 -O3 -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -DINGOT_LEVEL=amx
//                 -Ibuild/dev/include -Inative/src -Inative/kernels benchmarks/native/matmul_bench.cpp native/kernels/level/{matmul_amx,elementwise}.cpp -pthread -o bench
//   avx512_bf16:  the same with -DINGOT_LEVEL=avx512_bf16 and native/kernels/level/{matmul,elementwise}.cpp
//   avx2:         the same with -mavx2 -mfma -mf16c instead of -march=native, and -DINGOT_LEVEL=avx2
// Run: ./bench [threads = 2] [seconds per figure = 0.3]. "cold" weights come one after the other from a pool of 1 GiB of huge
// pages (the median of the repetitions), "warm" ones are the same each time (the best).
#include "bench.h"

namespace {

struct Product {
  std::int64_t rows, n, k;
  int parts;
  std::int64_t weight_bytes() const {
    const std::int64_t units = (n + kPanel - 1) / kPanel;
    return units * parts * kPanel * (kDType == DType::bfloat16 ? round_up(k, 2) : k) * kWidth;
  }
};

const Instruction kIdentity[] = {{Step::load, Class::float32, 0, 0, 0, 0}};
const Instruction kGate[] = {{Step::load, Class::float32, 0, 0, 0, 0},
                             {Step::load, Class::float32, 1, 1, 0, 0},
                             {Step::silu_mul, Class::float32, 2, 0, 1, 0}};
const Place kPlaces[] = {{0, false}, {2048, false}, {4096, false}};
const std::uint16_t kOutputs[] = {0, 2};
const Class kClass = Class::float32;

void multiply(Team& team, const Product& p, const std::byte* x, const std::byte* w, std::byte* y, std::vector<std::byte*>& scratch) {
  const TileCode code{p.parts == 2 ? kGate : kIdentity, p.parts == 2 ? 3 : 1, kPlaces, p.parts == 2 ? 3 : 1,
                      kOutputs + (p.parts - 1), &kClass, 1, nullptr};
  const std::int64_t units = (p.n + kPanel - 1) / kPanel;
  team.run([&](int i) {
    const std::int64_t first = units * i / team.size(), last = units * (i + 1) / team.size();
    MatmulJob job{};
    job.x = x;
    job.x_stride = p.k * kWidth;
    job.rows = p.rows;
    job.k = p.k;
    job.w = w + p.weight_bytes() / units * first;
    job.units = last - first;
    job.parts = p.parts;
    job.columns = p.n - first * kPanel;
    job.code = &code;
    job.run_tile = INGOT_LEVEL::elementwise_table.run_tile;
    job.out = {y + first * kPanel * kWidth, kDType, p.n, 1};
    job.tile_scratch = scratch[i];
    job.scratch = scratch[i] + 8192;
    INGOT_LEVEL::JOIN(matmul_, BENCH_DTYPE)(job);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.3;
  syscall(SYS_arch_prctl, 0x1023, 18);  // asks for the AMX tile registers; fails harmlessly elsewhere
  Team team(threads);
  std::byte* pool = huge(kPool + (64 << 20));
  fill(pool, 1 << 22);
  for (std::int64_t at = 1 << 22; at < kPool + (64 << 20); at += (1 << 22)) std::memcpy(pool + at, pool, 1 << 22);
  std::byte* x = huge(64 << 20);
  std::byte* y = huge(256 << 20);
  fill(x, 4 << 20);
  std::vector<std::byte*> scratch;
  for (int i = 0; i < threads; ++i) scratch.push_back(huge(64 << 20));

  const double read = bandwidth(team, pool);
  std::printf("threads %d, read bandwidth %.1f GB/s\n", threads, read * 1e-9);

  const Product shapes[] = {{1, 2048, 2048, 1}, {1, 2560, 2048, 1}, {1, 5632, 2048, 2}, {1, 2048, 5632, 1}, {1, 32000, 2048, 1},
                            {1, 256, 256, 1},   {1, 512, 256, 1},   {1, 768, 256, 2},   {1, 256, 768, 1},   {1, 1024, 256, 1}, {1, 256, 1024, 1}};
  // The same bits for one row and for many.
  for (Product p : {Product{200, 320, 1000, 1}, Product{37, 96, 2048, 2}}) {
    multiply(team, p, x, pool, y, scratch);
    std::vector<std::byte> whole(y, y + p.rows * p.n * kWidth);
    const std::int64_t rows = p.rows;
    bool same = true;
    for (std::int64_t r = 0; r < rows; ++r) {
      p.rows = 1;
      multiply(team, p, x + r * p.k * kWidth, pool, y, scratch);
      same = same && std::memcmp(y, whole.data() + r * p.n * kWidth, p.n * kWidth) == 0;
    }
    std::printf("rows alone and together: %s\n", same ? "the same bits" : "DIFFERENT BITS");
  }

  const auto measure = [&](const Product& p, bool cold) {
    const std::int64_t bytes = p.weight_bytes(), step = round_up(bytes, 4096);
    const std::int64_t copies = cold ? std::max<std::int64_t>(1, kPool / step) : 1;
    std::vector<double> times;
    std::int64_t next = 0;
    const double until = now() + seconds;
    const int batch = p.rows == 1 ? static_cast<int>(std::max<std::int64_t>(1, (8 << 20) / bytes)) : 1;
    do {
      const double start = now();
      for (int i = 0; i < batch; ++i, next = (next + 1) % copies) multiply(team, p, x, pool + next * step, y, scratch);
      times.push_back((now() - start) / batch);
    } while (now() < until);
    std::sort(times.begin(), times.end());
    return cold ? times[times.size() / 2] : times[0];
  };
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
