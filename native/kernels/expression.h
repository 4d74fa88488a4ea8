// A scalar expression (JSON: {"steps": [[op, class, args...], ...], "outputs": [step, ...]}) compiled to bytecode over tiles.
// Shared by the kernel `elementwise` and by all epilogues. Compiled once at load, immutable afterwards.
//
// Every step is checked: its name, its class, the number and the classes of its arguments (earlier steps only), operand
// indices and constants. There are at most 256 steps, 64 operands and 16 outputs. Anything else throws Refused naming
// the step.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "../src/kernel.h"
#include "check.h"
#include "level/tile.h"

namespace ingot {

class Expression {
 public:
  /// `kernel` names the caller in messages; every operand need not be used, and outputs.size() must match.
  Expression(std::string_view kernel, const nlohmann::json& json, std::span<const DType> inputs,
             std::span<const DType> outputs);
  /// Of the parameter `name`, over `values` float32 results of the kernel and then the call's operands `extras`.
  Expression(Params& params, const char* name, int values, Types extras, Types out);

  /// A float32 operand as it is.
  static Expression identity(std::string_view kernel);

  TileCode code() const noexcept;
  /// Bytes of working memory per thread for run_tile.
  std::size_t scratch() const noexcept { return scratch_; }

 private:
  struct Constant {
    alignas(64) std::byte bytes[64];
  };
  struct Parsed;
  void compile(const Parsed& parsed);

  std::vector<Instruction> steps_;
  std::vector<Place> places_;
  std::vector<std::uint16_t> outputs_;
  std::vector<Class> output_classes_;
  std::vector<Constant> constants_;
  std::size_t scratch_ = 0;
};

/// The interpreter of that level, or of the next lower one that has it.
RunTile run_tile_for(Level level);

}  // namespace ingot
