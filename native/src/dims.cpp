// Parsing and checked evaluation of dimension expressions.
#include "dims.h"

#include <algorithm>

#include "error.h"

namespace ingot {
namespace {

constexpr std::size_t kMaxNodes = std::size_t{1} << 20;
constexpr std::size_t kMaxOperands = 64;

struct OpRow {
  std::string_view name;
  DimOp op;
  bool variadic;
};
constexpr OpRow kOps[] = {{"+", DimOp::add, true},        {"*", DimOp::mul, true},  {"-", DimOp::sub, false},
                          {"//", DimOp::floordiv, false}, {"%", DimOp::mod, false}, {"min", DimOp::min, true},
                          {"max", DimOp::max, true}};

const OpRow& row_of(DimOp op) {
  return *std::find_if(std::begin(kOps), std::end(kOps), [op](const OpRow& row) { return row.op == op; });
}

[[noreturn]] void refuse(Place place, const std::string& why) { throw Error(code::program, place.text() + ": " + why); }

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b < 0 ? quotient - 1 : quotient;
}

std::int64_t floor_modulo(std::int64_t a, std::int64_t b) {
  const std::int64_t rest = a % b;
  return rest < 0 ? rest + b : rest;
}

/// a op b for b > 0 where it divides; false when the result does not fit or the divisor is below 1.
bool apply(DimOp op, std::int64_t a, std::int64_t b, std::int64_t* out) {
  switch (op) {
    case DimOp::add: return !__builtin_add_overflow(a, b, out);
    case DimOp::sub: return !__builtin_sub_overflow(a, b, out);
    case DimOp::mul: return !__builtin_mul_overflow(a, b, out);
    case DimOp::floordiv: *out = b > 0 ? floor_divide(a, b) : 0; return b > 0;
    case DimOp::mod: *out = b > 0 ? floor_modulo(a, b) : 0; return b > 0;
    case DimOp::min: *out = std::min(a, b); return true;
    case DimOp::max: *out = std::max(a, b); return true;
    case DimOp::constant:
    case DimOp::symbol: break;
  }
  return false;
}

}  // namespace

int DimTable::find_symbol(std::string_view name) const {
  const auto found =
      std::find_if(symbols_.begin(), symbols_.end(), [&](const Symbol& symbol) { return symbol.name == name; });
  return found == symbols_.end() ? -1 : static_cast<int>(found - symbols_.begin());
}

DimId DimTable::intern(DimOp op, std::int64_t value, DimId a, DimId b) {
  const auto [entry, fresh] = known_.try_emplace({op, value, a, b}, static_cast<DimId>(nodes_.size()));
  if (fresh) nodes_.push_back({op, value, a, b, 0});
  return entry->second;
}

DimId DimTable::parse(const Json& json, Place place) {
  if (nodes_.size() > kMaxNodes)
    refuse(place, "the program has more than " + std::to_string(kMaxNodes) + " different dimensions");
  if (json.is_number_integer() && !json.is_number_unsigned())
    return intern(DimOp::constant, json.get<std::int64_t>(), -1, -1);
  if (json.is_string()) {
    const int symbol = find_symbol(json.get_ref<const std::string&>());
    if (symbol < 0) refuse(place, "the symbol " + quote(json.get_ref<const std::string&>()) + " is not declared");
    return intern(DimOp::symbol, symbol, -1, -1);
  }
  if (!json.is_array() || json.size() < 3 || json.size() > kMaxOperands || !json[0].is_string()) {
    refuse(place, "a dimension is an integer, a symbol's name or [operator, operands…]");
  }
  const auto& name = json[0].get_ref<const std::string&>();
  const auto* row =
      std::find_if(std::begin(kOps), std::end(kOps), [&](const OpRow& candidate) { return candidate.name == name; });
  if (row == std::end(kOps)) refuse(place, "the dimension operator " + quote(name) + " is unknown");
  if (!row->variadic && json.size() != 3)
    refuse(place, "the dimension operator " + quote(name) + " takes two operands");
  DimId result = parse(json[1], place);
  for (std::size_t i = 2; i < json.size(); ++i) {
    const DimId operand = parse(json[i], place);
    result = intern(row->op, 0, result, operand);
  }
  return result;
}

DimTable::Linear DimTable::linear(DimId id) const {
  Linear found;
  return linear_parts(id, &found) && found.factor > 0 ? found : Linear{};
}

/// The form with any factor (0, of no symbol: a constant); false when there is none.
bool DimTable::linear_parts(DimId id, Linear* out) const {
  const DimNode& n = node(id);
  *out = {};
  if (n.op == DimOp::constant) {
    out->offset = n.value;
    return true;
  }
  if (n.op == DimOp::symbol) {
    out->symbol = static_cast<int>(n.value);
    out->factor = 1;
    return true;
  }
  Linear a, b;
  if ((n.op != DimOp::add && n.op != DimOp::sub && n.op != DimOp::mul) || !linear_parts(n.a, &a) ||
      !linear_parts(n.b, &b))
    return false;
  if (a.symbol >= 0 && b.symbol >= 0 && (a.symbol != b.symbol || n.op == DimOp::mul)) return false;
  out->symbol = std::max(a.symbol, b.symbol);
  if (n.op != DimOp::mul)
    return apply(n.op, a.factor, b.factor, &out->factor) && apply(n.op, a.offset, b.offset, &out->offset);
  const std::int64_t by = a.symbol < 0 ? a.offset : b.offset;
  const Linear& of = a.symbol < 0 ? b : a;
  return apply(DimOp::mul, of.factor, by, &out->factor) && apply(DimOp::mul, of.offset, by, &out->offset);
}

void DimTable::assign_stages() {
  for (DimNode& node : nodes_) {
    if (node.op == DimOp::symbol) {
      node.stage = symbols_[static_cast<std::size_t>(node.value)].stage;
    } else if (node.op != DimOp::constant) {
      node.stage = std::max(this->node(node.a).stage, this->node(node.b).stage);
    }
  }
}

void DimTable::evaluate(int stage, std::span<const std::int64_t> symbols, std::span<std::int64_t> values) const {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const DimNode& node = nodes_[i];
    if (node.stage != stage) continue;
    if (node.op == DimOp::constant) {
      values[i] = node.value;
    } else if (node.op == DimOp::symbol) {
      values[i] = symbols[static_cast<std::size_t>(node.value)];
    } else if (!apply(node.op, values[static_cast<std::size_t>(node.a)], values[static_cast<std::size_t>(node.b)],
                      &values[i])) {
      overflow(node, symbols);
    }
  }
}

void DimTable::overflow(const DimNode& node, std::span<const std::int64_t> symbols) const {
  std::string bound;
  for (std::size_t i = 0; i < symbols_.size(); ++i) {
    if (symbols_[i].stage <= node.stage) bound += " " + symbols_[i].name + "=" + std::to_string(symbols[i]);
  }
  throw Error(code::input, "the dimension " + text(static_cast<DimId>(&node - nodes_.data())) +
                               " overflows or divides by less than 1 with" +
                               (bound.empty() ? " its constants" : bound));
}

std::string DimTable::text(DimId id) const {
  const DimNode& n = node(id);
  if (n.op == DimOp::constant) return std::to_string(n.value);
  if (n.op == DimOp::symbol) return symbols_[static_cast<std::size_t>(n.value)].name;
  const std::string name(row_of(n.op).name);
  // A deep chain is cut: the text is for people.
  constexpr std::size_t kMost = 200;
  const std::string a = text(n.a), b = text(n.b);
  if (a.size() + b.size() > kMost) return "(…" + name + "…)";
  return n.op == DimOp::min || n.op == DimOp::max ? name + "(" + a + ", " + b + ")"
                                                  : "(" + a + " " + name + " " + b + ")";
}

Json DimTable::json(DimId id) const {
  const DimNode& n = node(id);
  if (n.op == DimOp::constant) return n.value;
  if (n.op == DimOp::symbol) return symbols_[static_cast<std::size_t>(n.value)].name;
  return Json::array({std::string(row_of(n.op).name), json(n.a), json(n.b)});
}

}  // namespace ingot
