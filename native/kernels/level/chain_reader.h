// Finds the links of a chain (chain.h) in an expression's steps.
#pragma once

#include "chain_links.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// Goes through the steps in their order. Registers hold the chain's value, constants, or operands that a later step takes.
class ChainReader {
 public:
  static constexpr int kRegisters = 64;  // most of an expression

  ChainReader(const TileCode& code, const TileOperand* in, Chain& chain) : code_(code), in_(in), chain_(chain) {
    for (int i = 0; i < code.register_count; ++i) held_[i] = kNoOperand;
  }

  /// Whether the expression still is a chain with that step: then it is noted.
  bool take(const Instruction& s) { return s.step == Step::load ? load(s) : scale_operand(s) || add_link(s); }
  /// The register with the chain's value; none yet: -1.
  int value() const { return value_; }

 private:
  const float* constant(int place) const {
    return code_.places[place].constant ? (const float*)(code_.constants + code_.places[place].offset) : nullptr;
  }

  bool load(const Instruction& s) {
    if (s.cls != Class::float32) return false;
    if (s.a == 0) {
      if (value_ != -1) return false;
      value_ = s.to;
      return true;
    }
    if (in_[s.a].spacing() == Spacing::strided) return false;
    held_[s.to] = {s.a, is_chain_byte(in_[s.a].dtype), 0, 1, false};
    return true;
  }

  /// The zero point, the scale or the rounding of an operand of whole numbers.
  bool scale_operand(const Instruction& s) {
    if (s.step == Step::round_bfloat16) {
      if (s.a == value_ || !held_[s.a].whole) return false;
      held_[s.to] = held_[s.a];
      held_[s.to].rounded = true;
      return true;
    }
    if ((s.step != Step::sub && s.step != Step::mul) || s.a == value_ || s.b == value_) return false;
    const bool turned = s.step == Step::mul && held_[s.b].whole;
    const ChainOperand operand = held_[turned ? s.b : s.a];
    const float* const number = constant(turned ? s.a : s.b);
    if (!operand.whole || operand.rounded || number == nullptr || operand.scale != 1 || (s.step == Step::sub && operand.zero != 0)) return false;
    held_[s.to] = operand;
    (s.step == Step::mul ? held_[s.to].scale : held_[s.to].zero) = *number;
    return true;
  }

  /// A step on the chain's value.
  bool add_link(const Instruction& s) {
    if (value_ == -1 || chain_.count == Chain::kMost) return false;
    Link link{kNoOperand, s.step, nullptr};
    switch (s.step) {
      case Step::silu: case Step::mish: case Step::gelu: case Step::sigmoid: case Step::tanh: case Step::round: case Step::round_float16:
      case Step::round_bfloat16:
        if (s.a != value_) return false;
        break;
      case Step::add: case Step::sub: case Step::mul: case Step::div: case Step::max: case Step::min: case Step::replace_nan: {
        const bool turned = s.b == value_ && s.a != value_ && (s.step == Step::add || s.step == Step::mul);
        const int other = turned ? s.a : s.b;
        if ((turned ? s.b : s.a) != value_ || other == value_) return false;
        link = {held_[other], s.step, constant(other)};
        if (link.operand == -1 && link.constant == nullptr) return false;
        break;
      }
      default: return false;
    }
    chain_.links[chain_.count++] = link;
    value_ = s.to;
    return true;
  }

  const TileCode& code_;
  const TileOperand* const in_;
  Chain& chain_;
  ChainOperand held_[kRegisters];
  int value_ = -1;
};

}  // namespace

}  // namespace ingot::INGOT_LEVEL
