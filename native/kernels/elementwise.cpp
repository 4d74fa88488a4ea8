// elementwise: a scalar expression over broadcast operands, in tiles of at most 512 elements split among the workers.
//
// Limits: operands may have any strides and any dtype, and broadcast to the outputs' one shape, which are contiguous.
// Every operand is read in the class of its dtype. Expressions are checked when the program is loaded (expression.h).
#include <algorithm>

#include "broadcast.h"
#include "check.h"
#include "expression.h"

namespace ingot {

namespace {

constexpr int kMaxOperands = kMaxInputs + kMaxOutputs;

/// The loop over the outputs' shape, dimensions merged where every operand allows it. Operands: inputs, then outputs.
struct Loop {
  int rank = 0;
  std::int64_t shape[kMaxRank];
  std::int64_t stride[kMaxOperands][kMaxRank];
};

Loop merged_loop(Views in, Views out) {
  const int operands = static_cast<int>(in.size() + out.size());
  const auto operand = [&](int i) -> const TensorView& {
    return i < static_cast<int>(in.size()) ? in[i] : out[i - in.size()];
  };
  Loop loop;
  for (int dim = 0; dim < out[0].rank; ++dim) {
    const std::int64_t size = out[0].shape[dim];
    if (size == 1) continue;
    bool merges = loop.rank > 0;
    for (int i = 0; i < operands && merges; ++i)
      merges = loop.stride[i][loop.rank - 1] == size * broadcast_stride(operand(i), out[0].rank, dim);
    if (!merges) loop.shape[loop.rank++] = 1;
    loop.shape[loop.rank - 1] *= size;
    for (int i = 0; i < operands; ++i) loop.stride[i][loop.rank - 1] = broadcast_stride(operand(i), out[0].rank, dim);
  }
  while (loop.rank < 2) {  // rows and columns always exist
    for (int i = 0; i < operands; ++i) {
      loop.stride[i][1] = loop.rank == 1 ? loop.stride[i][0] : 0;
      loop.stride[i][0] = 0;
    }
    loop.shape[1] = loop.rank == 1 ? loop.shape[0] : 1;
    loop.shape[0] = 1;
    loop.rank = 2;
  }
  return loop;
}

class Elementwise final : public Kernel {
 public:
  Elementwise(Expression expression, Level level) : expression_(std::move(expression)), run_tile_(run_tile_for(level)) {}

  Scratch plan(Views in, Views out, int) const override {
    for (const TensorView& y : out) {
      require_same_shape("elementwise", "an output", y, out[0]);
      require_contiguous("elementwise", "an output", y);
    }
    for (std::size_t i = 0; i < in.size(); ++i)
      if (!broadcasts(in[i], out[0])) refuse("elementwise", "operand " + std::to_string(i) + " does not broadcast to the outputs' shape");
    return {0, expression_.scratch()};
  }

  std::optional<std::uint64_t> apart(Views in, Views out) const override { return apart_by_broadcast(in, out[0]); }

  void run(Views in, Views out, const Worker& worker) const override {
    if (out[0].elements() == 0) return;
    const Loop loop = merged_loop(in, out);
    const int inner = loop.rank - 1, rows_dim = loop.rank - 2;
    const std::int64_t width = std::min<std::int64_t>(loop.shape[inner], kTile);
    std::int64_t rows = loop.shape[inner] > width ? 1 : std::min<std::int64_t>(loop.shape[rows_dim], kTile / width);
    if (rows > 16 && rows < loop.shape[rows_dim]) rows -= rows % 16;  // whole vectors, so that operands are read in place
    const std::int64_t across = (loop.shape[inner] + width - 1) / width;
    const std::int64_t down = (loop.shape[rows_dim] + rows - 1) / rows;
    std::int64_t tiles = across * down;
    for (int dim = 0; dim < rows_dim; ++dim) tiles *= loop.shape[dim];
    const int inputs = static_cast<int>(in.size()), operands = inputs + static_cast<int>(out.size());
    const TileCode code = expression_.code();
    TileOperand operand[kMaxOperands];
    const Share share = share_of(tiles, worker.index, worker.count);
    for (std::int64_t tile = share.first; tile < share.last; ++tile) {
      std::int64_t rest = tile;
      const std::int64_t column = rest % across * width;
      rest /= across;
      const std::int64_t row = rest % down * rows;
      rest /= down;
      for (int i = 0; i < operands; ++i) {
        const TensorView& view = i < inputs ? in[i] : out[i - inputs];
        std::int64_t offset = column * loop.stride[i][inner] + row * loop.stride[i][rows_dim];
        std::int64_t outer = rest;
        for (int dim = rows_dim - 1; dim >= 0; --dim) {
          offset += outer % loop.shape[dim] * loop.stride[i][dim];
          outer /= loop.shape[dim];
        }
        operand[i] = {view.at(offset), view.dtype, loop.stride[i][rows_dim], loop.stride[i][inner]};
      }
      run_tile_(code, operand, operand + inputs, static_cast<int>(std::min(rows, loop.shape[rows_dim] - row)),
                static_cast<int>(std::min(width, loop.shape[inner] - column)), worker.local);
    }
  }

 private:
  Expression expression_;
  RunTile run_tile_;
};

std::unique_ptr<Kernel> make_elementwise(const nlohmann::json& json, Types in, Types out, Level level) {
  require_operands("elementwise", in, 0, kMaxInputs, out, std::max<std::size_t>(1, std::min<std::size_t>(out.size(), kMaxOutputs)));
  Params params("elementwise", json);
  Expression expression(params, "expression", 0, in, out);
  params.done();
  return std::make_unique<Elementwise>(std::move(expression), level);
}

constexpr KernelInfo kKernels[] = {
    {"elementwise", 1, "*xs -> *ys", "expression: expression", make_elementwise},
};

}  // namespace

std::span<const KernelInfo> elementwise_kernels() { return kKernels; }

}  // namespace ingot
