#include "ending.h"

#include <nlohmann/json.hpp>

namespace ingot {

namespace {

Expression read(std::string_view kernel, const nlohmann::json& params, std::span<const OperandType> extras, DType out) {
  if (!params.is_object() || !params.contains("expr")) refuse(kernel, "parameter expr is missing");
  std::vector<DType> inputs(1, DType::float32);
  for (const OperandType& extra : extras) inputs.push_back(extra.dtype);
  return Expression(kernel, params["expr"], inputs, {&out, 1});
}

}  // namespace

Ending::Ending(std::string_view kernel, const nlohmann::json& params, std::span<const OperandType> extras, DType out, Level level)
    : expression_(read(kernel, params, extras, out)), run_tile_(run_tile_for(level)) {}

Finish Ending::finish(TileCode& code, const TileOperand* extras, std::size_t extra_count, std::byte* scratch) const noexcept {
  code = expression_.code();
  return {&code, run_tile_, extras, static_cast<int>(extra_count), {}, scratch};
}

nlohmann::json without_expression(const nlohmann::json& params) {
  nlohmann::json rest = params;
  if (rest.is_object()) rest.erase("expr");
  return rest;
}

void require_broadcasts(std::string_view kernel, const TensorView& extra, const TensorView& y) {
  bool fits = extra.rank <= y.rank;
  for (int dim = 0; dim < extra.rank && fits; ++dim)
    fits = extra.shape[dim] == 1 || extra.shape[dim] == y.shape[dim + y.rank - extra.rank];
  require(fits, kernel, "an operand of expr does not broadcast to y");
}

}  // namespace ingot
