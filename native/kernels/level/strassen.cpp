// Strassen's step for vector units: rows packed with their sums, and products of a register tile of up to kRows pairs of rows by a panel,
// whose sums end in registers where those of matmul.cpp do.
#include "strassen.h"

#include "matmul_register_tile.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// Values of k that lie side by side in a panel, of each of 16 outputs.
template <class T>
constexpr int kBeside = __is_same(T, bfloat16) ? 2 : 1;

/// Where a panel has those outputs from that column on.
template <class T>
INGOT_INLINE const T* outputs_from(const void* panel, std::int64_t column) { return (const T*)panel + column * kBeside<T>; }

/// Their weights at a value of k.
template <class T>
INGOT_INLINE Vec weights_at(const T* outputs, std::int64_t k) {
  if constexpr (kBeside<T> == 1) return load(outputs + k * kPanel);
  else {
    const Ints pair = bits(load((const float*)(outputs + k / 2 * 2 * kPanel)));
    return from_bits(k % 2 == 0 ? shift_left<16>(pair) : pair & broadcast_int((std::int32_t)0xffff0000));
  }
}

/// What RowsEnd has to know of the product.
template <class T>
struct Stored {
  typedef T Source;
  static constexpr bool ends_rows = true, integers = false;
};

constexpr std::int64_t kImage = kPairRows * kXStride;  // bytes of a packed block of one of the seven
constexpr std::int64_t kQuadrant = kPairRows * kPanel;

/// Of a row of a pass.
struct Magnitudes {
  float squares;      // the sum of those of its values, each weighed by its input's squared height: no number where one is not
  float least, many;  // so many values are at least so great
};

/// Those of a block of k of a row, which the first one begins anew: rows are packed again for each group of outputs.
INGOT_INLINE void keep_magnitudes(Magnitudes& all, std::int64_t block, float squares, float least, Vec many) {
  if (block == 0) all = {0, __builtin_inff(), 0};
  all.squares += squares;
  if (least < all.least) all.least = least;
  all.many += reduce_add(many);
}

typedef Magnitudes Pairs[kPairRows][2];

/// What a quarter of so many values has to reach for that sum of squares: their root mean square over kMostApart.
INGOT_INLINE float least_quartile(float squares, float values) { return __builtin_sqrtf(squares / values) / kMostApart; }

/// The seven left operands of a block of k, in the order of the products.
template <class T>
void pack_pairs(const StrassenJob& job, std::int64_t block, std::byte* packed, Pairs& magnitudes) {
  const MatmulJob& p = job.product;
  const int depth = (int)half_depth(p.k, block);
  const std::int64_t begin = block * 2 * kPairDepth;
  const float* const squared_heights = job.squared_heights + block * kPairDepth;
  const Vec one = broadcast(1.0f);
  // Rows are fetched so many ahead, for no prefetcher of the hardware goes from one row's block to the next one's. What values are counted from is
  // guessed of a row before them, once for so many rows, for a root and a division wait for the row's sums.
  constexpr int kAhead = 4, kAlike = 8;
  float least = 0;
  for (std::int64_t r = 0; r < job.pairs; ++r, packed += kXStride) {
    const T* const upper = (const T*)(p.x + r * p.x_stride) + begin;
    const T* const lower = (const T*)((const std::byte*)upper + job.partner_row * p.x_stride);
    Vec upper_squares = zero(), upper_many = zero(), lower_squares = zero(), lower_many = zero();
    const Vec from = broadcast(least);
    const auto count = [&](Vec value) __attribute__((always_inline)) { return select(from <= abs(value), one, zero()); };
    const bool ahead = r + kAhead < job.pairs;
    for (int i = 0; i < depth; i += kLanes) {
      const int lanes = depth - i < kLanes ? depth - i : kLanes;
      const auto at = [&](const T* values) __attribute__((always_inline)) { return lanes == kLanes ? load(values) : load_partial(values, lanes); };
      if (ahead) {
        const std::int64_t next = kAhead * p.x_stride / (std::int64_t)sizeof(T) + i;
        __builtin_prefetch(upper + next), __builtin_prefetch(upper + depth + next);
        __builtin_prefetch(lower + next), __builtin_prefetch(lower + depth + next);
      }
      const Vec a11 = at(upper + i), a12 = at(upper + depth + i), a21 = at(lower + i), a22 = at(lower + depth + i);
      const Vec s1 = a21 + a22, s2 = s1 - a11, s3 = a11 - a21, s4 = a12 - s2, squared = load(squared_heights + i);
      upper_many = upper_many + (count(a11) + count(a12));
      lower_many = lower_many + (count(a21) + count(a22));
      upper_squares = fma(squared, fma(a11, a11, a12 * a12), upper_squares);
      lower_squares = fma(squared, fma(a21, a21, a22 * a22), lower_squares);
      const Vec images[kStrassenProducts] = {a11, a12, s2, s1, s4, s3, a22};
      std::byte* const to = packed + i * 4;
      INGOT_UNROLL for (int image = 0; image < kStrassenProducts; ++image) store((float*)(to + image * kImage), images[image]);
    }
    const float of_upper = reduce_add(upper_squares), of_lower = reduce_add(lower_squares);
    keep_magnitudes(magnitudes[r][0], block, of_upper, least, upper_many);
    keep_magnitudes(magnitudes[r][1], block, of_lower, least, lower_many);
    // Twice what this row has to reach: rows that are up to twice as great need no other count, and most reach far more.
    if (r % kAlike == 0) least = 2 * least_quartile(of_upper < of_lower ? of_lower : of_upper, 2 * (float)depth);
  }
}

/// How many values of a row have a magnitude of `least` or more.
template <class T>
INGOT_INLINE float count_from(const T* row, std::int64_t k, float least) {
  const Vec from = broadcast(least), one = broadcast(1.0f);
  Vec count = zero();
  const auto add = [&](Vec values) __attribute__((always_inline)) { count = count + select(from <= abs(values), one, zero()); };
  std::int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) add(load(row + i));
  if (i < k) add(load_partial(row + i, (int)(k - i)));
  return reduce_add(count);
}

/// Whether a row's sums bear the rounding errors of `squares`, those of the row itself or of its partner: a quarter of its values that are
/// not zero is great enough. What was counted while it was packed is enough for most rows, whatever `least` was.
template <class T>
INGOT_INLINE bool bears(const T* row, std::int64_t k, const Magnitudes& of, float squares) {
  if (of.squares < kLeastSquares) return squares == 0;
  if (of.many * 4 >= (float)k && least_quartile(squares, of.many) <= of.least) return true;
  const float values = count_from(row, k, __FLT_MIN__);
  return count_from(row, k, least_quartile(squares, values)) * 4 >= values;
}

template <class T>
void take_rows(const StrassenJob& job, const Pairs& magnitudes) {
  const MatmulJob& p = job.product;
  for (std::int64_t r = 0; r < job.pairs; ++r) {
    const float upper = magnitudes[r][0].squares, lower = magnitudes[r][1].squares, greater = upper < lower ? lower : upper;
    const bool finite = upper <= kMostSquares && lower <= kMostSquares;
    for (int half = 0; half < 2; ++half)
      job.taken[r][half] = finite && bears((const T*)(p.x + (r + half * job.partner_row) * p.x_stride), p.k, magnitudes[r][half], greater);
  }
}

/// One of the seven products of a block of k, for all pairs of a pass.
struct Part {
  const std::byte* x;    // packed
  const void* w;         // values as they are stored where `panel` is given, else floats
  float* panel;          // where w becomes floats, as the first rows meet it, or null: it is of floats
  int depth;
  const float *begin, *more;  // what sums begin with, or null
  float* both;           // or null: they are added to these too, and only then to what they begin with
  float* to;
  const RowsEnd* end;    // or null: takes the sums, which are not stored
  const std::byte* ahead;  // the next product's weights
  int ahead_step;          // bytes of a step of k of those
};

template <int R, int C>
INGOT_INLINE void add_rows(Vec (&a)[R][C], const float* from) {
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = a[r][c] + load(from + r * kPanel + c * kLanes);
  }
}

/// R rows by C vectors of the panel, from that row and column on. `sums`: where they go, or null: to the output. T: the call's type, W: float or T, that of w.
template <class T, class W, int R, int C>
INGOT_INLINE void part_tile(const Part& p, int row, int column, float* sums, const std::byte* ahead, std::int64_t advance) {
  const std::byte* x = p.x + row * kXStride;
  const W* w = outputs_from<W>(p.w, column);
  [[maybe_unused]] float* widened = __is_same(W, float) ? nullptr : p.panel + column;
  const std::int64_t at = row * kPanel + column;
  Vec a[R][C];
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = p.begin == nullptr || p.both != nullptr ? zero() : load(p.begin + at + r * kPanel + c * kLanes);
  }
  if (p.more != nullptr && p.both == nullptr) add_rows(a, p.more + at);
  for (int k = 0; k < p.depth; k += kBeside<W>, w += kBeside<W> * kPanel) {
    INGOT_UNROLL for (int i = 0; i < kBeside<W>; ++i, x += 4, ahead += advance) {
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + 64);
      Vec b[C];
      INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = weights_at(w + c * kLanes * kBeside<W>, i);
      if constexpr (!__is_same(W, float)) {
        INGOT_UNROLL for (int c = 0; c < C; ++c) store(widened + c * kLanes, b[c]);
        widened += kPanel;
      }
      INGOT_UNROLL for (int r = 0; r < R; ++r) {
        const Vec v = broadcast(*(const float*)(x + r * kXStride));
        INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(v, b[c], a[r][c]);
      }
    }
  }
  if (p.both != nullptr) {
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      INGOT_UNROLL for (int c = 0; c < C; ++c) {
        float* const to = p.both + at + r * kPanel + c * kLanes;
        store(to, load(to) + a[r][c]);
      }
    }
    add_rows(a, p.begin + at);
    if (p.more != nullptr) add_rows(a, p.more + at);
  }
  if (sums == nullptr) return end_tile<T>(*p.end, a, row, column);
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(sums + r * kPanel + column + c * kLanes, a[r][c]);
  }
}

template <class T, class W, int R>
void part_rows(const Part& p, int row, float* sums, const std::byte* ahead, std::int64_t advance) {
  if constexpr (R * 2 * kVecRegisters <= kAccumulatorRegisters) {
    part_tile<T, W, R, 2>(p, row, 0, sums, ahead, advance);
  } else {
    part_tile<T, W, R, 1>(p, row, 0, sums, ahead, advance);
    part_tile<T, W, R, 1>(p, row, kLanes, sums, (const std::byte*)p.w, kPanel * sizeof(W));  // which is near: the next weights are fetched above
  }
}

typedef void (*PartRows)(const Part&, int, float*, const std::byte*, std::int64_t);

/// Row blocks of nearly equal height; each fetches its share of the weights that come next.
template <class T, int... R>
INGOT_INLINE void multiply_rows_of(const Part& p, int rows, std::integer_sequence<int, R...>) {
  static constexpr PartRows of_floats[] = {part_rows<T, float, R + 1>...}, of_stored[] = {part_rows<T, T, R + 1>...};
  const int blocks = (rows + (int)sizeof...(R) - 1) / (int)sizeof...(R);
  const std::int64_t advance = p.ahead_step / blocks;
  Part after = p;
  if (p.panel != nullptr) after.w = p.panel;
  for (int b = 0; b < blocks; ++b) {
    const int row = rows * b / blocks, count = rows * (b + 1) / blocks - row;
    const bool first = b == 0 && p.panel != nullptr;
    const auto multiply = [&](float* sums) {
      (first ? of_stored : of_floats)[count - 1](first ? p : after, row, sums, p.ahead + b * advance * p.depth, advance);
    };
    if (p.end == nullptr) multiply(p.to + row * kPanel);
    else end_rows(*p.end, row, count, kPanel, multiply);
  }
}

template <class T>
__attribute__((noinline)) void multiply_part(const Part& p, int rows) {
  multiply_rows_of<T>(p, rows, std::make_integer_sequence<int, kRows>());
}

/// A block of k of a pair of panels.
struct Unit {
  const std::byte* packed;
  const std::byte *left, *right;  // blocks of the panels: B11 and B21, B12 and B22
  const float* sums_of_w;
  const std::byte* ahead;  // the panel's block that is read behind it
  int depth;
  bool first;              // before it sums are zero
  RowsEnd* end;            // or null: of the last block
  std::int64_t column;
  float* sums;             // of the quadrants of outputs: by rows, then by columns
};

/// The seven products of it (strassen.h).
template <class T>
void multiply_unit(const StrassenJob& job, const Unit& unit) {
  float *const u = job.memory.u, *const v = job.memory.v;
  const std::int64_t size = unit.depth * kPanel, block = size * (std::int64_t)sizeof(T);
  const std::byte* const stored[] = {unit.left, unit.left + block, nullptr, nullptr, unit.right + block, nullptr, nullptr, unit.ahead};
  const float* const sums[] = {nullptr, nullptr, unit.sums_of_w, unit.sums_of_w + size, nullptr, unit.sums_of_w + 2 * size, unit.sums_of_w + 3 * size, nullptr};
  const auto part = [&](int number, const float* begin, float* to) __attribute__((always_inline)) {
    const auto w_of = [&](int of) { return stored[of] == nullptr ? (const std::byte*)sums[of] : stored[of]; };
    float* const panel = stored[number] == nullptr || __is_same(T, float) ? nullptr : job.memory.panel;
    return Part{unit.packed + number * kImage, w_of(number), panel, unit.depth, begin, nullptr, nullptr, to, nullptr,
                w_of(number + 1), kPanel * (stored[number + 1] == nullptr ? 4 : (int)sizeof(T))};
  };
  const auto add = [&](Part to, int quadrant) {
    to.to = unit.sums + quadrant * kQuadrant;
    if (!unit.first) to.more = to.to;
    if (unit.end != nullptr) {
      unit.end->first_row = quadrant / 2 * job.partner_row;
      unit.end->place(unit.column + quadrant % 2 * job.partner_column, kPanel);
      to.end = unit.end;
    }
    multiply_part<T>(to, (int)job.pairs);
  };
  multiply_part<T>(part(0, nullptr, v), (int)job.pairs);
  add(part(1, v, nullptr), 0);
  multiply_part<T>(part(2, v, u), (int)job.pairs);
  multiply_part<T>(part(3, u, v), (int)job.pairs);
  add(part(4, v, nullptr), 1);
  Part twice = part(5, v, nullptr);
  twice.both = u;
  add(twice, 3);
  add(part(6, u, nullptr), 2);
}

/// The epilogue of finished sums that is no chain.
void finish_unit(const StrassenJob& job, const Unit& unit) {
  for (int quadrant = 0; quadrant < 4; ++quadrant) {
    const std::int64_t column = unit.column + quadrant % 2 * job.partner_column;
    finish(job.product, unit.sums + quadrant * kQuadrant, 0, kPanel, quadrant / 2 * job.partner_row, job.pairs, column,
           smaller(kPanel, job.product.columns - column));
  }
}

template <class T>
void run(const StrassenJob& job) {
  const MatmulJob& p = job.product;
  RowsEnd end;
  const bool ended = ends_rows<Stored<T>>(p, end);
  const StrassenMemory& memory = job.memory;
  const std::int64_t blocks = pairs_of_blocks(p.k), group = units_at_once(p.k, p.units);
  const std::int64_t row_bytes = kPanel * sizeof(T), partner = job.partner_column / kPanel * p.k * row_bytes;
  const bool kept = keeps_pairs(p.k);
  const auto weights = [&](std::int64_t unit, std::int64_t block) { return p.w + (unit * p.k + block * 2 * kPairDepth) * row_bytes; };
  Pairs magnitudes;
  for (std::int64_t block = 0; kept && block < blocks; ++block)
    pack_pairs<T>(job, block, memory.packed + block * kStrassenProducts * kImage, magnitudes);
  for (std::int64_t first = 0; first < p.units; first += group) {
    const std::int64_t last = smaller(first + group, p.units);
    for (std::int64_t block = 0; block < blocks; ++block) {
      if (!kept) pack_pairs<T>(job, block, memory.packed, magnitudes);
      for (std::int64_t unit = first; unit < last; ++unit) {
        const bool at_end = block + 1 == blocks;
        Unit of;
        of.packed = memory.packed + (kept ? block * kStrassenProducts * kImage : 0);
        of.left = weights(unit, block);
        of.right = of.left + partner;
        of.sums_of_w = job.sums + (unit * (p.k / 2) + block * kPairDepth) * kStrassenSums * kPanel;
        of.depth = (int)half_depth(p.k, block);
        of.ahead = unit + 1 < last ? weights(unit + 1, block) : at_end ? weights(last, 0) : weights(first, block + 1);
        of.first = block == 0;
        of.end = ended && at_end ? &end : nullptr;
        of.column = unit * kPanel;
        of.sums = memory.sums + (unit - first) * 4 * kQuadrant;
        multiply_unit<T>(job, of);
        if (at_end && !ended) finish_unit(job, of);
      }
    }
  }
  take_rows<T>(job, magnitudes);
}

/// The upper quartiles of the magnitudes of 16 outputs of a panel, of values that are not zero, as powers of two that are less by half at most:
/// zero where it is more than kHalvings below the greatest one, infinite where all values are zero. Returns whether no value is too great or not a number.
template <class T>
INGOT_INLINE bool find_quartiles(const T* outputs, std::int64_t k, Vec& quartiles) {
  const Vec one = broadcast(1.0f);
  Vec greatest = zero();
  for (std::int64_t i = 0; i < k; ++i) greatest = max_nan(greatest, abs(weights_at(outputs, i)));
  if (any(is_nan(greatest)) || reduce_max(greatest) > kMostOfWeights) return false;
  const auto count_from = [&](Vec least) __attribute__((always_inline)) {
    Vec count = zero();
    for (std::int64_t i = 0; i < k; ++i) count = count + select(least <= abs(weights_at(outputs, i)), one, zero());
    return count;
  };
  const Vec values = count_from(broadcast(__FLT_MIN__));
  quartiles = select(values == zero(), broadcast(__builtin_inff()), zero());
  Vec from = from_bits(bits(greatest) & bits(broadcast(__builtin_inff())));  // its power of two
  for (int halving = 0; halving <= kHalvings && any(quartiles == zero()); ++halving, from = from * broadcast(0.5f)) {
    const Vec count = count_from(from);
    quartiles = select(values <= broadcast(4.0f) * count, max(quartiles, from), quartiles);
  }
  return true;
}

/// a - b, and in `lost` what rounding it lost (Knuth, 1969).
INGOT_INLINE Vec subtract(Vec a, Vec b, Vec& lost) {
  const Vec difference = a - b, taken = a - difference;
  lost = (a - (difference + taken)) + (taken - b);
  return difference;
}

template <class T>
bool prepare(const StrassenWeight& weight) {
  const Vec one = broadcast(1.0f), infinite = broadcast(__builtin_inff());
  alignas(64) float ones[kPanel];
  for (int column = 0; column < kPanel; ++column) ones[column] = column < weight.columns ? 1 : 0;
  for (int column = 0; column < kPanel; column += kLanes) {
    const T *const left = outputs_from<T>(weight.left, column), *const right = outputs_from<T>(weight.right, column);
    Vec of_left, of_right;
    if (!find_quartiles(left, weight.k, of_left) || !find_quartiles(right, weight.k, of_right)) return false;
    of_right = select(load(ones + column) == one, of_right, of_left);  // what is not there is no partner
    const Vec quartiles = min(of_left, of_right);
    // Zeros beside an output that has others would get its rounding errors.
    if (any(quartiles == zero()) || any((max(of_left, of_right) == infinite) & (quartiles < infinite))) return false;
    const Vec inverse = one / quartiles;
    float *to = weight.sums + column, *height = weight.heights;
    const std::int64_t blocks = pairs_of_blocks(weight.k);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t depth = half_depth(weight.k, block), begin = block * 2 * kPairDepth;
      for (std::int64_t i = begin; i < begin + depth; ++i, to += kPanel, ++height) {
        const Vec b11 = weights_at(left, i), b21 = weights_at(left, i + depth), b12 = weights_at(right, i), b22 = weights_at(right, i + depth);
        // T1 and T2 are rounded once.
        Vec of_t1, of_t2;
        const Vec t1 = subtract(b12, b11, of_t1), near = subtract(b22, t1, of_t2), t2 = near + (of_t2 - of_t1);
        const Vec sums[kStrassenSums] = {t2, t1, b22 - b12, b21 - t2};
        INGOT_UNROLL for (int sum = 0; sum < kStrassenSums; ++sum) store(to + sum * depth * kPanel, sums[sum]);
        const Vec greatest = max(max(abs(b11), abs(b12)), max(abs(b21), abs(b22)));
        const float found = reduce_max(greatest * inverse);
        if (*height < found) *height = found;
      }
      to += (kStrassenSums - 1) * depth * kPanel;
    }
  }
  return true;
}

template <class T>
constexpr StrassenProduct kProduct = {run<T>, prepare<T>};

}  // namespace

const StrassenTable strassen_table = {
    .float32 = kProduct<float>,
    .float16 = kProduct<float16>,
#if defined(__AVX2__)
    .bfloat16 = kProduct<bfloat16>,  // elsewhere direct products, by steps of two values of k, take less time
#endif
};

}  // namespace ingot::INGOT_LEVEL
