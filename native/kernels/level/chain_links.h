// What a chain is made of (chain.h): links, and the ending that quantises.
#pragma once

#include "simd.h"
#include "tile.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// An operand of the expression as a chain takes it.
struct ChainOperand {
  int operand;  // none: -1
  bool whole;   // it is (q - zero) * scale of whole numbers of 8 bits
  float zero, scale;
  bool rounded;  // and that is rounded to bfloat16
};
constexpr ChainOperand kNoOperand = {-1, false, 0, 1, false};

/// A step on the chain's value, with an operand, with a constant, or with nothing.
struct Link : ChainOperand {
  Step step;
  const float* constant;  // 16 times the value, when there is no operand
};

/// What quantises, the last steps of a chain to a byte: a product with a number, rounding, 0 in the place of a NaN, a zero point
/// and limits. Bounds are whole numbers, so limiting before rounding gives the same.
struct Ending {
  bool present;
  float factor, low, high, zero;  // low and high are those before the zero point is added
};

struct Chain;
typedef void (*ChainRows)(const Chain& chain, const TileOperand* in, const TileOperand& out, std::int64_t rows, std::int64_t column);

struct Chain {
  static constexpr int kMost = 16;
  int count;  // of the links before the ending
  bool streams;  // rows, which are whole lines, are written past the caches
  bool scaled;  // the first two are a product with one float32 row and a sum with another
  // What runs all rows of two vectors of a chain that begins with such a product, where little follows it, or that is a bias and GELU; or null.
  ChainRows rows;
  // What follows, by its link or -1: a product with a number for each row, sums with rows that all share, a residual.
  int factor, shifts[2], residual;
  bool gelu;  // comes behind these
  Link links[kMost];
  Ending ending;
};

INGOT_INLINE bool is_chain_float(DType d) { return d == DType::float32 || d == DType::bfloat16 || d == DType::float16; }
INGOT_INLINE bool is_chain_byte(DType d) { return d == DType::int8 || d == DType::uint8; }

/// Takes the last links of a chain to a byte as its ending, if they are one. A relu before them becomes a part of the lower limit.
inline void end_chain(Chain& chain) {
  const auto number = [&](int at, Step step) -> const float* {
    return at >= 0 && chain.links[at].step == step ? chain.links[at].constant : nullptr;
  };
  int at = chain.count - 1;
  const float *const high = number(at, Step::min), *const low = number(at - 1, Step::max);
  if (high == nullptr || low == nullptr) return;
  at -= 2;
  const float* const zero = number(at, Step::add);
  if (zero != nullptr) --at;
  const float* const nan = number(at, Step::replace_nan);
  if (nan == nullptr || *nan != 0 || at < 1 || chain.links[at - 1].step != Step::round) return;
  at -= 2;
  const float* const factor = number(at, Step::mul);
  if (factor != nullptr) --at;
  Ending ending{true, factor == nullptr ? 1.0f : *factor, *low, *high, zero == nullptr ? 0.0f : *zero};
  const auto is_small = [](float x) { return x >= -512 && x <= 512 && x == (float)(int)x; };
  if (!is_small(ending.low) || !is_small(ending.high) || !is_small(ending.zero) || !(ending.low <= ending.zero && ending.zero <= ending.high)) return;
  ending.low -= ending.zero, ending.high -= ending.zero;
  const float* const least = number(at, Step::max);
  if (least != nullptr && *least == 0 && ending.factor > 0) ending.low = 0, --at;
  const float* const nothing = number(at, Step::add);
  if (nothing != nullptr && *nothing == 0) --at;  // the sign of a zero is nothing that bytes show
  chain.count = at + 1;
  chain.ending = ending;
}

/// The operand of such a link, or null.
inline const TileOperand* taken_at(const Chain& chain, const TileOperand* in, int at, Step step) {
  const bool takes = at < chain.count && chain.links[at].step == step && chain.links[at].operand > 0;
  return takes ? &in[chain.links[at].operand] : nullptr;
}

/// Whether it is a row that all rows share.
inline bool is_shared_row(const TileOperand* o) {
  return o != nullptr && is_chain_float(o->dtype) && o->row_stride == 0 && o->spacing() == Spacing::dense;
}
inline bool takes_row(const Chain& chain, const TileOperand* in, int at, Step step) {
  const TileOperand* const o = taken_at(chain, in, at, step);
  return is_shared_row(o) && o->dtype == DType::float32;
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
