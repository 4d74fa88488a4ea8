// elementwise: a scalar expression over broadcast operands, in tiles of at most 512 elements split among the workers.
//
// A chain of steps (level/chain.h) is computed in registers, in tiles of 8192.
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
  Elementwise(Expression expression, Level level) : expression_(std::move(expression)), table_(half_for(elementwise_halves, level)) {}

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
    const std::int64_t inner = loop.shape[loop.rank - 1], all = loop.shape[loop.rank - 2];
    const TileCode code = expression_.code();
    const std::size_t inputs = in.size();
    if (inputs > 0 && out.size() == 1 && inner >= kLeastChain) {
      const auto take = [&](const TileOperand* operand, std::int64_t rows, std::int64_t columns) {
        return table_.run_chain(code, operand, operand[inputs], rows, columns);
      };
      TileOperand first[kMaxOperands];
      place(loop, in, out, 0, 0, 0, first);
      if (take(first, 0, inner)) {  // every worker asks, also one without a share
        const std::int64_t width = std::min(inner, kChain);
        return each_tile(loop, in, out, width, inner > width ? 1 : std::min(all, kChain / width), worker,
                         [&](const TileOperand* operand, std::int64_t rows, std::int64_t columns) {
                           if (!take(operand, rows, columns)) refuse("elementwise", "a tile is no chain, where the whole is one");
                         });
      }
    }
    const std::int64_t width = std::min<std::int64_t>(inner, kTile);
    std::int64_t rows = inner > width ? 1 : std::min(all, kTile / width);
    if (rows > 16 && rows < all) rows -= rows % 16;  // whole vectors, so that operands are read in place
    each_tile(loop, in, out, width, rows, worker, [&](const TileOperand* operand, std::int64_t taken, std::int64_t columns) {
      table_.run_tile(code, operand, operand + inputs, static_cast<int>(taken), static_cast<int>(columns), worker.local);
    });
  }

 private:
  static constexpr std::int64_t kChain = 8192;    // elements of a tile that is computed in registers
  static constexpr std::int64_t kLeastChain = 32;  // and its least width: two vectors

  /// Calls take with the operands of each tile of the worker's share, its rows and its width.
  template <class Take>
  static void each_tile(const Loop& loop, Views in, Views out, std::int64_t width, std::int64_t rows, const Worker& worker, const Take& take) {
    const int inner = loop.rank - 1, rows_dim = loop.rank - 2;
    const std::int64_t across = (loop.shape[inner] + width - 1) / width;
    const std::int64_t down = (loop.shape[rows_dim] + rows - 1) / rows;
    std::int64_t tiles = across * down;
    for (int dim = 0; dim < rows_dim; ++dim) tiles *= loop.shape[dim];
    TileOperand operand[kMaxOperands];
    const Share share = share_of(tiles, worker.index, worker.count);
    for (std::int64_t tile = share.first; tile < share.last; ++tile) {
      std::int64_t rest = tile;
      const std::int64_t column = rest % across * width;
      rest /= across;
      const std::int64_t row = rest % down * rows;
      place(loop, in, out, rest / down, row, column, operand);
      take(operand, std::min(rows, loop.shape[rows_dim] - row), std::min(width, loop.shape[inner] - column));
    }
  }

  /// The operands from that row and column on; `outer`: the number of the outer dimensions' place.
  static void place(const Loop& loop, Views in, Views out, std::int64_t outer, std::int64_t row, std::int64_t column, TileOperand* operand) {
    const int inner = loop.rank - 1, rows_dim = loop.rank - 2, inputs = static_cast<int>(in.size());
    for (int i = 0; i < inputs + static_cast<int>(out.size()); ++i) {
      const TensorView& view = i < inputs ? in[i] : out[i - inputs];
      std::int64_t offset = column * loop.stride[i][inner] + row * loop.stride[i][rows_dim], rest = outer;
      for (int dim = rows_dim - 1; dim >= 0; --dim) {
        offset += rest % loop.shape[dim] * loop.stride[i][dim];
        rest /= loop.shape[dim];
      }
      operand[i] = {view.at(offset), view.dtype, loop.stride[i][rows_dim], loop.stride[i][inner]};
    }
  }

  Expression expression_;
  const ElementwiseTable& table_;
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
