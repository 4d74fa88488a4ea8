// What a kernel is: the one interface between the executor and every kernel family.
//
// A family has two halves. The *host half* (this interface; compiled once, plain C++) checks parameters and shapes and
// splits the work. The *level half* (kernels/level/*.cpp; compiled once per instruction-set level with that level's flags,
// inside namespace ingot::INGOT_LEVEL, free functions on raw pointers and no standard-library templates, so that no wide
// instruction can leak into a lower level through a shared inline function) does the arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "dtype.h"
#include "levels.h"

namespace ingot {

constexpr int kMaxRank = 8;

/// A typed, strided window on memory. Strides count elements. Never owns.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::float32;
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};
  std::int64_t stride[kMaxRank] = {};

  std::int64_t elements() const noexcept;    // product of shape; checked by the planner not to overflow
  bool contiguous() const noexcept;          // row-major without gaps (size-1 dims may have any stride)
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data);
  }
  /// Where the element that many elements behind the first one lies.
  std::byte* at(std::int64_t element) const noexcept { return static_cast<std::byte*>(data) + element * bytes_of(dtype); }
};

/// "int32[5, 2]", for messages.
std::string describe(const TensorView& view);

/// What is known of an operand when the program is loaded: a dynamic dim is -1.
struct OperandType {
  DType dtype = DType::float32;
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};
  bool constant = false;  // a weight: its data is there when plan() is called
  bool state = false;     // a kv_cache, shape [blocks, 2, kv_heads, block_size * head_dim]; written in place though listed in `in`
};

using Views = std::span<const TensorView>;
using Types = std::span<const OperandType>;

/// A kernel cannot do what it is asked; the message says which parameter or operand, its value, and the rule.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Working memory that a call needs beside its operands, in bytes (the executor aligns both to 64).
struct Scratch {
  std::size_t shared = 0;
  std::size_t per_thread = 0;
};

/// One thread's view of the parallel region in which a call runs.
class Worker {
 public:
  int index = 0;
  int count = 1;
  std::byte* shared = nullptr;  // Scratch::shared bytes, the same for all workers
  std::byte* local = nullptr;   // Scratch::per_thread bytes of this worker
  /// All workers of the region meet. Every worker of a call must reach it the same number of times.
  void barrier() const;
  /// Reports a fault that only values show (an index out of range). The first message wins; the run ends in a typed
  /// error after this call. The kernel must still leave memory intact and reach its barriers.
  /// `element`: which of the operand's it is, in row-major order, where that says more than the message.
  void fail(const char* what, std::int64_t value, std::int64_t limit, std::int64_t element = -1) const;
  /// The same of a fault that no number says more about.
  void fail(const char* what) const;

  void* region = nullptr;  // the executor's
};

/// One call of a Program, made once at load; immutable afterwards, so that sessions share it.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// Once per set of shapes: checks everything that run() relies on and throws Refused. Only constants have data here.
  virtual Scratch plan(Views in, Views out, int threads) const = 0;
  /// Whether it may keep, from one call to the next, something made of the constant operand in[`operand`]. Engines that differ
  /// in other weights only share the kernel, and with it what it keeps.
  virtual bool keeps([[maybe_unused]] std::size_t operand) const { return true; }
  /// Of results whose first dimension counts what is computed apart, like the images of a batch: the operands that have it too, bit
  /// i for in[i]. Part i of the results is made of part i of these and of all of the others. None where that is not so. Asked
  /// before plan() has checked anything but the operands' types.
  virtual std::optional<std::uint64_t> apart([[maybe_unused]] Views in, [[maybe_unused]] Views out) const { return std::nullopt; }
  /// Whether out[0] may lie where in[`operand`] does, which has as many elements of the same size in the same order and which nobody
  /// needs afterwards: an element is read by the worker that writes it, before that, and never again. Asked before plan(), as apart().
  virtual bool replaces([[maybe_unused]] std::size_t operand, [[maybe_unused]] Views in, [[maybe_unused]] Views out) const { return false; }
  /// Called by every worker of the region; the executor puts a barrier behind it. Allocates nothing, throws nothing.
  virtual void run(Views in, Views out, const Worker& worker) const = 0;
};

/// An entry of the kernel table.
struct KernelInfo {
  const char* name;
  int version;
  const char* operands;  // "x, weight?, *extras -> y": ? may be absent, * is any number
  const char* params;    // "axis: integer, keepdims?: flag": ? may be absent; check_names() holds every call to it
  /// Validates parameters and operand types (throws Refused: out-of-range parameters too).
  std::unique_ptr<Kernel> (*make)(const nlohmann::json& params, Types in, Types out, Level level);
};

// One per family file in kernels/; registry.cpp joins them.
std::span<const KernelInfo> matmul_kernels();       // matmul_packed, matmul
std::span<const KernelInfo> matmul_plain_kernels();  // matmul_float64, matmul_integer
std::span<const KernelInfo> conv_kernels();         // conv_packed, conv_transpose_packed
std::span<const KernelInfo> elementwise_kernels();  // elementwise
std::span<const KernelInfo> norm_kernels();         // rms_norm, layer_norm, softmax, group_norm
std::span<const KernelInfo> pool_kernels();         // avg_pool, max_pool, adaptive_pool
std::span<const KernelInfo> resample_kernels();     // resize, grid_sample
std::span<const KernelInfo> depthwise_kernels();    // conv_depthwise
std::span<const KernelInfo> reduce_kernels();       // reduce, argmax
std::span<const KernelInfo> sort_kernels();         // sort, top_k, bucketize
std::span<const KernelInfo> nonzero_kernels();      // count_nonzero, nonzero
std::span<const KernelInfo> scan_kernels();         // cumsum, cumprod, logcumsumexp, cummax, cummin
std::span<const KernelInfo> recurrent_kernels();    // lstm, gru, rnn
std::span<const KernelInfo> sizes_kernels();        // read_sizes, sizes_of
std::span<const KernelInfo> selective_scan_kernels();  // selective_scan
std::span<const KernelInfo> fft_kernels();          // fft, rfft, irfft
std::span<const KernelInfo> movement_kernels();     // copy, bitcast, concat, embedding, take, gather, iota
std::span<const KernelInfo> scatter_kernels();      // scatter, scatter_nd, gather_nd, masked_scatter
std::span<const KernelInfo> attention_kernels();    // rope_table, rope, kv_write, rope_kv_write
std::span<const KernelInfo> paged_attention_kernels();  // paged_attention
std::span<const KernelInfo> dense_attention_kernels();  // attention
std::span<const KernelInfo> moe_kernels();          // moe

}  // namespace ingot
