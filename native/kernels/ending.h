// The scalar expression at the end of a kernel, over its float32 results (operand 0) and the call's extra operands.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "check.h"
#include "expression.h"
#include "level/finish.h"

namespace ingot {

class Ending {
 public:
  /// Reads the parameter expr; the others are what `without_expression` leaves.
  Ending(std::string_view kernel, const nlohmann::json& params, std::span<const OperandType> extras, DType out, Level level);

  /// Bytes of working memory per thread, a multiple of 64.
  std::size_t scratch() const noexcept { return (expression_.scratch() + 63) / 64 * 64; }
  /// Everything but the output; `code` holds what it points to.
  Finish finish(TileCode& code, const TileOperand* extras, std::size_t extra_count, std::byte* scratch) const noexcept;

 private:
  Expression expression_;
  RunTile run_tile_;
};

/// The parameters but expr, for Params to read.
nlohmann::json without_expression(const nlohmann::json& params);

/// Refuses an extra operand that does not broadcast to y.
void require_broadcasts(std::string_view kernel, const TensorView& extra, const TensorView& y);

}  // namespace ingot
