// Times kernels of convolutions and products on the layers of real networks, as the executor calls them: host half, threads and
// barriers included, without Python and planning. The epilogue is a bias and a relu; of int8 they are a scale too, and the result is quantised.
//
// From the repository's root, after a build in build/dev:
//   g++ -std=c++20 -O3 -march=native -DINGOT_LEVEL=bench -Ibuild/dev/include -Inative/src -Inative/kernels -isystem
//     $(python -c "import nlohmann_json; print(nlohmann_json.__path__[0])")/include
//     benchmarks/native/kernel_bench.cpp build/dev/libingot_core.a -pthread -o bench
// Run: [INGOT_ISA=level] ./bench [dtype = float32] [only names that contain this] [threads = 2] [seconds per figure = 0.1].
// "cold" weights come one after the other from a pool of 512 MiB (the median of the repetitions), "warm" ones are the same each
// time (the best). Winograd's weights are transformed, and so always warm.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernel_timing.h"
#include "registry.h"

using namespace ingot;

namespace {

constexpr std::int64_t kPanel = 32;  // outputs of a panel of weights
constexpr std::int64_t kPool = std::int64_t{512} << 20;

struct Layer {
  const char* name;
  std::int64_t images, height, width, channels, outputs, kernel_height = 1, kernel_width = 1, stride = 1, groups = 1;
  int times = 1;  // in the network
};

const Layer kLayers[] = {
    {"resnet first 7x7/2", 1, 224, 224, 3, 64, 7, 7, 2},
    {"resnet 56 1x1", 1, 56, 56, 64, 64, 1, 1, 1, 1, 1},
    {"resnet 56 1x1 down", 1, 56, 56, 256, 64, 1, 1, 1, 1, 2},
    {"resnet 56 3x3", 1, 56, 56, 64, 64, 3, 3, 1, 1, 3},
    {"resnet 56 1x1 up", 1, 56, 56, 64, 256, 1, 1, 1, 1, 4},
    {"resnet 28 1x1 in", 1, 56, 56, 256, 128, 1, 1, 1, 1, 1},
    {"resnet 28 3x3/2", 1, 56, 56, 128, 128, 3, 3, 2, 1, 1},
    {"resnet 28 1x1/2", 1, 56, 56, 256, 512, 1, 1, 2, 1, 1},
    {"resnet 28 1x1 down", 1, 28, 28, 512, 128, 1, 1, 1, 1, 3},
    {"resnet 28 3x3", 1, 28, 28, 128, 128, 3, 3, 1, 1, 3},
    {"resnet 28 1x1 up", 1, 28, 28, 128, 512, 1, 1, 1, 1, 4},
    {"resnet 14 1x1 in", 1, 28, 28, 512, 256, 1, 1, 1, 1, 1},
    {"resnet 14 3x3/2", 1, 28, 28, 256, 256, 3, 3, 2, 1, 1},
    {"resnet 14 1x1/2", 1, 28, 28, 512, 1024, 1, 1, 2, 1, 1},
    {"resnet 14 1x1 down", 1, 14, 14, 1024, 256, 1, 1, 1, 1, 5},
    {"resnet 14 3x3", 1, 14, 14, 256, 256, 3, 3, 1, 1, 5},
    {"resnet 14 1x1 up", 1, 14, 14, 256, 1024, 1, 1, 1, 1, 6},
    {"resnet 7 1x1 in", 1, 14, 14, 1024, 512, 1, 1, 1, 1, 1},
    {"resnet 7 3x3/2", 1, 14, 14, 512, 512, 3, 3, 2, 1, 1},
    {"resnet 7 1x1/2", 1, 14, 14, 1024, 2048, 1, 1, 2, 1, 1},
    {"resnet 7 1x1 down", 1, 7, 7, 2048, 512, 1, 1, 1, 1, 2},
    {"resnet 7 3x3", 1, 7, 7, 512, 512, 3, 3, 1, 1, 2},
    {"resnet 7 1x1 up", 1, 7, 7, 512, 2048, 1, 1, 1, 1, 3},
    {"unet 256 3x3 first", 1, 256, 256, 3, 32, 3, 3},
    {"unet 256 3x3", 1, 256, 256, 32, 32, 3, 3},
    {"unet 256 3x3 in", 1, 256, 256, 64, 32, 3, 3},
    {"unet 128 3x3", 1, 128, 128, 64, 64, 3, 3},
    {"unet 64 3x3", 1, 64, 64, 128, 128, 3, 3},
    {"unet 32 3x3", 1, 32, 32, 256, 256, 3, 3},
    {"stgcn 150 9x1", 1, 150, 18, 64, 64, 9, 1},
    {"stgcn 75 9x1", 1, 75, 18, 128, 128, 9, 1},
    {"stgcn 38 9x1", 1, 38, 18, 256, 256, 9, 1},
    {"resnext 28 3x3 32 groups", 1, 28, 28, 256, 256, 3, 3, 1, 32},
    {"dilated 28 3x3 (as /2)", 8, 28, 28, 128, 128, 3, 3},
    {"bert 128 768x768", 1, 1, 128, 768, 768, 1, 1, 1, 1, 4},
    {"bert 128 768x3072", 1, 1, 128, 768, 3072},
    {"bert 128 3072x768", 1, 1, 128, 3072, 768},
    {"bert 1024 768x768", 1, 1, 1024, 768, 768, 1, 1, 1, 1, 4},
    {"bert 1024 768x3072", 1, 1, 1024, 768, 3072},
    {"bert 1024 3072x768", 1, 1, 1024, 3072, 768},
    {"product 128 1024x256", 1, 1, 128, 256, 1024},
    {"product 512 2048x2048", 1, 1, 512, 2048, 2048},
};

struct Memory {
  Pages x{256 << 20, "x"}, y{256 << 20, "y"}, floats{1 << 20, "scales and biases"}, pool{static_cast<std::size_t>(kPool) + (64 << 20), "weights"}, scratch{64 << 20, "scratch"};
};

double time_of(Timing& timing, const Kernel& kernel, int threads, double seconds, bool cold, Memory& memory) {
  const Scratch scratch = kernel.plan(timing.in, {&timing.y, 1}, threads);
  const std::size_t local = (scratch.per_thread + 4095) / 4096 * 4096 + 64;
  if (scratch.shared + 4096 + local * threads > memory.scratch.size()) std::abort();
  timing.call = [&](const std::vector<TensorView>& in, Worker& worker) { kernel.run(in, {&timing.y, 1}, worker); };
  timing.pool = memory.pool.data();
  timing.step = (timing.in[1].elements() * static_cast<std::int64_t>(size_of(timing.in[1].dtype)) + 4095) / 4096 * 4096;
  timing.copies = cold ? std::max<std::int64_t>(1, kPool / timing.step) : 1;
  timing.local = memory.scratch.data();
  timing.shared = memory.scratch.data() + local * threads;
  timing.local_bytes = local;
  timing.seconds = seconds;
  const std::vector<double> times = timing.run(threads);
  return cold ? times[times.size() / 2] : times[0];
}

/// Seconds of a call.
double measure(const Layer& layer, DType dtype, int threads, double seconds, bool cold, Memory& memory) {
  const std::int64_t pad_h = layer.kernel_height / 2, pad_w = layer.kernel_width / 2, s = layer.stride;
  const std::int64_t out_h = (layer.height + 2 * pad_h - layer.kernel_height) / s + 1, out_w = (layer.width + 2 * pad_w - layer.kernel_width) / s + 1;
  const std::int64_t k = layer.kernel_height * layer.kernel_width * layer.channels / layer.groups;
  const std::int64_t panels = layer.groups * ((layer.outputs / layer.groups + kPanel - 1) / kPanel);
  const auto epilogue = nlohmann::json::parse(
      dtype != DType::int8
          ? R"({"steps": [["input", "float32", 0], ["input", "float32", 1], ["add", "float32", 0, 1], ["const", "float32", 0], ["max", "float32", 2, 3]], "outputs": [4]})"
          : R"({"steps": [["input", "float32", 0], ["input", "float32", 1], ["mul", "float32", 0, 1], ["input", "float32", 2], ["add", "float32", 2, 3],
                ["const", "float32", 0], ["max", "float32", 4, 5], ["const", "float32", 0.001], ["mul", "float32", 6, 7], ["round", "float32", 8],
                ["eq", "bool", 9, 9], ["where", "float32", 10, 9, 5], ["const", "float32", -3], ["add", "float32", 11, 12],
                ["const", "float32", -128], ["max", "float32", 13, 14], ["const", "float32", 127], ["min", "float32", 15, 16],
                ["to_int", "int64", 17, "int32"], ["wrap", "int64", 18, "int8"]], "outputs": [19]})");
  const bool product = layer.kernel_height * layer.kernel_width * s == 1;
  Timing timing{};
  timing.in.push_back(view(memory.x.data(), dtype, {layer.images, layer.height, layer.width, layer.channels}));
  const std::int64_t depth = dtype == DType::bfloat16 ? 2 : dtype == DType::int8 ? 4 : 1, steps = (k + depth - 1) / depth;
  timing.in.push_back(depth == 1 ? view(memory.pool.data(), dtype, {panels, steps, kPanel})
                                 : view(memory.pool.data(), dtype, {panels, steps, kPanel, depth}));
  const std::size_t operands = dtype == DType::int8 ? 4 : 3;
  while (timing.in.size() < operands) timing.in.push_back(view(memory.floats.data(), DType::float32, {layer.outputs}));
  timing.y = view(memory.y.data(), dtype, {layer.images, out_h, out_w, layer.outputs});
  nlohmann::json params = {{"epilogue", epilogue}};
  if (product)
    params.update({{"n", layer.outputs}, {"k", k}, {"parts", 1}});
  else
    params.update({{"outputs", layer.outputs}, {"channels", layer.channels}, {"kernel", {layer.kernel_height, layer.kernel_width}},
                   {"stride", {s, s}}, {"pre_padding", {pad_h, pad_w}}, {"dilation", {1, 1}}, {"groups", layer.groups}});
  OperandType in[4], out{timing.y.dtype, 4, {}};
  for (std::size_t i = 0; i < operands; ++i) {
    in[i].dtype = timing.in[i].dtype;
    in[i].rank = timing.in[i].rank;
    std::copy_n(timing.in[i].shape, in[i].rank, in[i].shape);
    in[i].constant = i > 0;
  }
  std::copy_n(timing.y.shape, 4, out.shape);
  const auto kernel = find_kernel(product ? "matmul_packed" : "conv_packed", 1)->make(params, {in, operands}, {&out, 1}, current_level());
  return time_of(timing, *kernel, threads, seconds, cold, memory);
}

/// Seconds of a call of matmul: one a [m, k] times each of the batches of b [k, n], as of a graph's adjacency and its nodes.
double measure_batched(std::int64_t batches, std::int64_t m, std::int64_t k, std::int64_t n, DType dtype, int threads, double seconds,
                       Memory& memory) {
  Timing timing{};
  timing.in = {view(memory.x.data(), dtype, {m, k}), view(memory.pool.data(), dtype, {batches, k, n})};
  timing.y = view(memory.y.data(), dtype, {batches, m, n});
  const OperandType in[2] = {{dtype, 2, {m, k}}, {dtype, 3, {batches, k, n}}}, out{dtype, 3, {batches, m, n}};
  const auto kernel = find_kernel("matmul", 1)->make(nlohmann::json::object(), {in, 2}, {&out, 1}, current_level());
  return time_of(timing, *kernel, threads, seconds, false, memory);
}

}  // namespace

int main(int argc, char** argv) {
  DType dtype = DType::float32;
  if (argc > 1 && !dtype_from_name(argv[1], &dtype)) return 1;
  const char* only = argc > 2 ? argv[2] : "";
  const int threads = argc > 3 ? std::atoi(argv[3]) : 2;
  const double seconds = argc > 4 ? std::atof(argv[4]) : 0.1;
  Memory memory;
  fill(memory.x.data(), 64 << 20, dtype);
  fill(memory.floats.data(), 1 << 20, DType::float32);
  fill(memory.pool.data(), 64 << 20, dtype);
  for (std::int64_t at = 64 << 20; at < kPool + (64 << 20); at += 64 << 20) std::memcpy(memory.pool.data() + at, memory.pool.data(), 64 << 20);
  const double most = roof(threads, dtype);
  std::printf("%s, level %s, %d threads; roof %.0f GFLOP/s\n", name_of(dtype).data(), name_of(current_level()).data(), threads, most * 1e-9);
  for (const std::int64_t batches : {150, 1200}) {
    if (dtype == DType::int8 || std::strstr("stgcn 18x54 54x64", only) == nullptr) break;
    const double warm = measure_batched(batches, 18, 54, 64, dtype, threads, seconds, memory);
    const double flop = 2.0 * static_cast<double>(batches) * 18 * 54 * 64;
    std::printf("%-28s x%-4ld warm %8.1f us %6.0f GFLOP/s %4.0f%%\n", "stgcn 18x54 54x64", batches, warm * 1e6, flop / warm * 1e-9,
                100 * flop / warm / most);
  }
  for (const Layer& layer : kLayers) {
    if (std::strstr(layer.name, only) == nullptr) continue;
    for (const std::int64_t images : {layer.images, layer.images * 8}) {
      if (layer.height == 1 && images != 1) continue;
      Layer one = layer;
      one.images = images;
      const double cold = measure(one, dtype, threads, seconds, true, memory), warm = measure(one, dtype, threads, seconds, false, memory);
      const std::int64_t s = one.stride;
      const double flop = 2.0 * images * ((one.height + s - 1) / s) * ((one.width + s - 1) / s) * one.outputs * one.channels / one.groups *
                          one.kernel_height * one.kernel_width;
      std::printf("%-28s x%-3ld warm %9.1f us %6.0f GFLOP/s %4.0f%%   cold %9.1f us %6.0f GFLOP/s %4.0f%%\n", one.name, images, warm * 1e6,
                  flop / warm * 1e-9, 100 * flop / warm / most, cold * 1e6, flop / cold * 1e-9, 100 * flop / cold / most);
    }
  }
  return 0;
}
