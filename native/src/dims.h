// Dimensions as expressions over symbols: a table of nodes that all shapes of a program share, evaluated in one pass.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "json.h"

namespace ingot {

using DimId = std::int32_t;

enum class DimOp : std::uint8_t { constant, symbol, add, sub, mul, floordiv, mod, min, max };

struct DimNode {
  DimOp op;
  std::int64_t value;  // a constant; or the index of a symbol
  DimId a, b;          // operands, earlier in the table
  int stage;           // the first stage of the program in which all symbols in it are bound
};

struct Symbol {
  std::string name;
  std::int64_t min = 0;
  std::int64_t max = 0;
  bool unbacked = false;
  int stage = 0;  // of the program: in which it is bound; inputs bind in stage 0
};

class DimTable {
 public:
  explicit DimTable(std::vector<Symbol> symbols = {}) : symbols_(std::move(symbols)) {}

  /// An int, a symbol's name, or [op, a, b, …]. Throws Error("program"); `place` says where it stood.
  DimId parse(const Json& json, Place place);

  const DimNode& node(DimId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  std::size_t size() const noexcept { return nodes_.size(); }
  std::span<Symbol> symbols() noexcept { return symbols_; }
  std::span<const Symbol> symbols() const noexcept { return symbols_; }
  int find_symbol(std::string_view name) const;  // -1: there is none

  /// factor * symbol + offset with a factor of at least 1, when the expression is of that form; else symbol is -1.
  struct Linear {
    int symbol = -1;
    std::int64_t factor = 0;
    std::int64_t offset = 0;
  };
  Linear linear(DimId id) const;

  /// Sets every node's stage from its symbols' stages, once those are known.
  void assign_stages();

  /// Computes the nodes of one stage; `values` has size() entries, those of earlier stages filled. Throws
  /// Error("input") for overflow and for a divisor below 1.
  void evaluate(int stage, std::span<const std::int64_t> symbols, std::span<std::int64_t> values) const;

  /// As in a program: "(T*4)+1".
  std::string text(DimId id) const;
  Json json(DimId id) const;

 private:
  std::vector<Symbol> symbols_;
  std::vector<DimNode> nodes_;
  std::map<std::tuple<DimOp, std::int64_t, DimId, DimId>, DimId> known_;

  bool linear_parts(DimId id, Linear* out) const;
  DimId intern(DimOp op, std::int64_t value, DimId a, DimId b);
  [[noreturn]] void overflow(const DimNode& node, std::span<const std::int64_t> symbols) const;
};

}  // namespace ingot
