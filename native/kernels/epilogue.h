// A kernel's epilogue: the scalar expression on its float32 results (the first operands) and the call's extra operands.
#pragma once

#include <span>
#include <utility>

#include "broadcast.h"
#include "check.h"
#include "expression.h"
#include "level/epilogue.h"
#include "level/frame.h"

namespace ingot {

/// What a kernel's epilogue may end in.
constexpr std::initializer_list<DType> kEpilogueResults = {DType::float32, DType::bfloat16, DType::float16, DType::int8, DType::uint8};

class Epilogue {
 public:
  /// Reads the parameter epilogue: operands are `values` results of the kernel, then the extras.
  Epilogue(Params& params, int values, Types extras, Types out, Level level)
      : Epilogue(Expression(params, "epilogue", values, extras, out), level) {}
  Epilogue(Expression expression, Level level) : expression_(std::move(expression)), run_tile_(run_tile_for(level)) {}

  /// A worker's memory for it.
  std::byte* take(Frame& frame) const { return frame.take<std::byte>(static_cast<std::int64_t>(expression_.scratch())); }
  /// Everything but the output.
  EpilogueJob job(const TileOperand* extras, std::size_t extra_count, std::byte* memory) const noexcept {
    return {expression_.code(), run_tile_, extras, static_cast<int>(extra_count), {}, memory};
  }

 private:
  Expression expression_;
  RunTile run_tile_;
};

/// A worker's memory for float32 results and the epilogue on them.
struct EpilogueMemory {
  std::byte* epilogue;
  float* values;

  EpilogueMemory(Frame& frame, const Epilogue& epilogue_of, std::int64_t count)
      : epilogue(epilogue_of.take(frame)), values(frame.take<float>(count)) {}
};

/// Refuses an extra operand that does not broadcast to y.
inline void require_broadcasts(std::string_view kernel, const TensorView& extra, const TensorView& y) {
  require(broadcasts(extra, y), kernel, "an operand of the epilogue does not broadcast to y");
}

}  // namespace ingot
