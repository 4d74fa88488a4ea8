// Times paged_attention on steps of decoding, as the executor calls it: host half, threads and barriers, without Python.
//
// From the repository's root, after a build in build/dev:
//   g++ -std=c++20 -O3 -march=native -DINGOT_LEVEL=bench -Ibuild/dev/include -Inative/src -Inative/kernels -isystem
//     $(python -c "import nlohmann_json; print(nlohmann_json.__path__[0])")/include
//     benchmarks/native/attention_bench.cpp build/dev/libingot_core.a -pthread -o bench
// Run: [INGOT_ISA=level] ./bench [dtype = bfloat16] [threads = 2] [seconds per figure = 0.05] [kv heads = 2] [query tokens = 1]
// [only figures whose "width group requests context" begins so].
// The dtype is the cache's; with int8 queries and results are bfloat16. Blocks of 16 tokens lie in random order. "cold" states come one after the other from 256 MiB or more, "warm" ones are the same
// each time. "of": the rate at which the threads read the same pieces of K and V in the same order, fetched 4 KiB ahead. The floor of
// a figure is the greater of that time and the products at the float32 roof.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <vector>

#include "cache_width.h"
#include "kernel_timing.h"
#include "registry.h"

using namespace ingot;

namespace {

constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kPool = std::int64_t{768} << 20, kCold = std::int64_t{256} << 20;

struct Case {
  std::int64_t width, group, requests, context;
};

/// K and V of a share of the heads of all requests.
void read(const std::vector<TensorView>& in, int index, int workers) {
  using namespace bench;
  const auto* state = static_cast<const std::byte*>(in[1].data);
  const std::int64_t requests = in[4].shape[0], blocks = in[4].shape[1], heads = in[1].shape[2];
  const std::int64_t bytes = in[1].shape[3] * static_cast<std::int64_t>(size_of(in[1].dtype));
  const auto* table = in[4].as<const std::int32_t>();
  Ints sum[4] = {};
  for (std::int64_t i = requests * heads * index / workers; i < requests * heads * (index + 1) / workers; ++i) {
    const auto piece = [&](std::int64_t n) {
      return state + ((table[i / heads * blocks + std::min(n / 2, blocks - 1)] * 2 + n % 2) * heads + i % heads) * bytes;
    };
    const std::int64_t pieces = std::max<std::int64_t>(1, 4096 / bytes);
    for (std::int64_t n = 0; n < 2 * blocks; ++n) {
      const std::byte *here = piece(n), *ahead = piece(n + pieces);
      for (std::int64_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch(ahead + at);
        sum[at / 64 % 4] = sum[at / 64 % 4] + bits(load(reinterpret_cast<const float*>(here + at)));
      }
    }
  }
  for (const Ints& one : sum) __asm__ volatile("" : : "v"(one.v));
}

struct Memory {
  Pages pool{static_cast<std::size_t>(kPool), "states"}, rows{64 << 20, "rows"}, scratch{128 << 20, "scratch"};
};

double time_of(Timing& timing, int threads) {
  const std::vector<double> times = timing.run(threads);
  return times[timing.copies > 1 ? times.size() / 2 : times.size() / 10];
}

/// The scales of keys and values up to about 1, as floats are: behind each group of 16 tokens.
void set_scales(std::byte* pool, std::int64_t width) {
  const std::int64_t group = kBlock * stored_width(DType::int8, width);
  for (std::int64_t n = 0; (n + 1) * group <= kPool; ++n) {
    float* const scale = reinterpret_cast<float*>(pool + (n + 1) * group) - kBlock;
    for (std::int64_t i = 0; i < kBlock; ++i) scale[i] = static_cast<float>(1 + (n + 5 * i) % 16) * (1.0f / (16 * 127));
  }
}

void measure(const Case& c, DType state, int threads, double seconds, std::int64_t kv, std::int64_t queries, double most, Memory& memory) {
  const std::int64_t blocks_each = (c.context + kBlock - 1) / kBlock, blocks = blocks_each * c.requests, rows = c.requests * queries;
  std::vector<std::int32_t> start(static_cast<std::size_t>(c.requests + 1)), length(static_cast<std::size_t>(c.requests)), table(static_cast<std::size_t>(blocks));
  for (std::int64_t i = 0; i <= c.requests; ++i) start[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * queries);
  std::fill(length.begin(), length.end(), static_cast<std::int32_t>(c.context));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  const DType dtype = state == DType::int8 ? DType::bfloat16 : state;  // of q and the results
  Timing timing{};
  timing.in = {view(memory.rows.data(), dtype, {rows, kv * c.group, c.width}), view(memory.pool.data(), state, {blocks, 2, kv, kBlock * stored_width(state, c.width)}),
               view(start.data(), DType::int32, {c.requests + 1}), view(length.data(), DType::int32, {c.requests}),
               view(table.data(), DType::int32, {c.requests, blocks_each})};
  timing.y = view(memory.rows.data() + (32 << 20), dtype, {rows, kv * c.group, c.width});
  timing.step = timing.in[1].elements() * static_cast<std::int64_t>(size_of(state));
  if (timing.step > kPool) return;
  OperandType in[5], out{dtype, 3, {}};
  for (int i = 0; i < 5; ++i) {
    in[i].dtype = timing.in[static_cast<std::size_t>(i)].dtype, in[i].rank = timing.in[static_cast<std::size_t>(i)].rank;
    std::fill_n(in[i].shape, in[i].rank, -1);
  }
  in[1].state = true;
  std::fill_n(out.shape, 3, -1);
  if (state == DType::int8) set_scales(memory.pool.data(), c.width);
  const nlohmann::json params = {{"scale", 0.125}, {"window", nullptr}, {"softcap", nullptr}};
  const auto kernel = find_kernel("paged_attention", 1)->make(params, {in, 5}, {&out, 1}, current_level());
  const Scratch scratch = kernel->plan(timing.in, {&timing.y, 1}, threads);
  timing.local_bytes = (scratch.per_thread + 4095) / 4096 * 4096 + 64;
  timing.local = memory.scratch.data();
  timing.shared = memory.scratch.data() + timing.local_bytes * static_cast<std::size_t>(threads);
  if (timing.local_bytes * static_cast<std::size_t>(threads) + scratch.shared > memory.scratch.size()) std::abort();
  timing.pool = memory.pool.data();
  timing.seconds = seconds;
  const double flop = 4.0 * static_cast<double>(rows * kv * c.group * c.width) * (static_cast<double>(c.context) - static_cast<double>(queries - 1) / 2);
  std::printf("%4ld %2ld %3ld %5ld ", c.width, c.group, c.requests, c.context);
  for (const bool cold : {false, true}) {
    timing.copies = cold ? std::max<std::int64_t>(1, kCold / timing.step) : 1;
    timing.call = [](const std::vector<TensorView>& in, Worker& worker) { read(in, worker.index, worker.count); };
    const double reading = time_of(timing, threads);
    timing.call = [&](const std::vector<TensorView>& in, Worker& worker) { kernel->run(in, {&timing.y, 1}, worker); };
    const double took = time_of(timing, threads), floor = std::max(reading, flop / most);
    std::printf("| %s %9.1f us %6.1f GB/s of %6.1f %6.0f GFLOP/s %4.0f%% ", cold ? "cold" : "warm", took * 1e6, static_cast<double>(timing.step) / took * 1e-9,
                static_cast<double>(timing.step) / reading * 1e-9, flop / took * 1e-9, 100 * floor / took);
  }
  std::printf("\n");
  std::fflush(stdout);
}

bool chosen(const Case& c, const char* beginning) {
  char name[100];
  std::snprintf(name, sizeof name, "%ld %ld %ld %ld", c.width, c.group, c.requests, c.context);
  return std::strncmp(name, beginning, std::strlen(beginning)) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  DType dtype = DType::bfloat16;
  if (argc > 1 && !dtype_from_name(argv[1], &dtype)) return 1;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const double seconds = argc > 3 ? std::atof(argv[3]) : 0.05;
  const std::int64_t kv = argc > 4 ? std::atoi(argv[4]) : 2, queries = argc > 5 ? std::atoi(argv[5]) : 1;
  Memory memory;
  fill(memory.rows.data(), 64 << 20, dtype == DType::int8 ? DType::bfloat16 : dtype);
  fill(memory.pool.data(), 32 << 20, dtype);
  for (std::int64_t at = 32 << 20; at < kPool; at += 32 << 20) std::memcpy(memory.pool.data() + at, memory.pool.data(), 32 << 20);
  const double most = roof(threads, DType::float32);
  std::printf("%s, level %s, %d threads, %ld kv heads, %ld query tokens; roof %.0f GFLOP/s float32\nwidth group requests context\n", name_of(dtype).data(),
              name_of(current_level()).data(), threads, kv, queries, most * 1e-9);
  for (const std::int64_t width : {64, 128})
    for (const std::int64_t group : {1, 2, 4, 8})
      for (const std::int64_t requests : {1, 8, 64})
        for (const std::int64_t context : {128, 512, 2048, 4096, 8192})
          if (queries <= context && chosen({width, group, requests, context}, argc > 6 ? argv[6] : "")) measure({width, group, requests, context}, dtype, threads, seconds, kv, queries, most, memory);
  return 0;
}
