// Strassen's step for vector units: rows packed with their sums, and products of a register tile of up to kRows pairs of rows by a panel,
// whose sums end in registers where those of matmul.cpp do.
#include "strassen.h"

#include "matmul_register_tile.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// What RowsEnd has to know of the product.
struct Floats {
  typedef float Source;
  static constexpr bool ends_rows = true, integers = false;
};

constexpr std::int64_t kImage = kPairRows * kXStride;  // bytes of a packed block of one of the seven
constexpr std::int64_t kQuadrant = kPairRows * kPanel;

/// Those of a block of k of a row, which the first one begins anew: rows are packed again for each group of outputs.
INGOT_INLINE void keep_magnitudes(Magnitudes& all, std::int64_t block, Vec greatest, Vec sum) {
  if (block == 0) all = {};
  const float found = any(is_nan(greatest)) ? __builtin_inff() : reduce_max(greatest);
  if (all.greatest < found) all.greatest = found;
  all.sum += reduce_add(sum);
}

/// The seven left operands of a block of k, in the order of the products.
void pack_pairs(const StrassenJob& job, std::int64_t block, std::byte* packed) {
  const MatmulJob& p = job.product;
  const int depth = (int)half_depth(p.k, block);
  const std::int64_t begin = block * 2 * kPairDepth;
  constexpr int kAhead = 4;
  for (std::int64_t r = 0; r < job.pairs; ++r, packed += kXStride) {
    const float* const upper = (const float*)(p.x + r * p.x_stride) + begin;
    const float* const lower = (const float*)((const std::byte*)upper + job.partner_row * p.x_stride);
    Vec upper_greatest = zero(), upper_sum = zero(), lower_greatest = zero(), lower_sum = zero();
    const bool ahead = r + kAhead < job.pairs;
    for (int i = 0; i < depth; i += kLanes) {
      const int lanes = depth - i < kLanes ? depth - i : kLanes;
      const auto at = [&](const float* from) __attribute__((always_inline)) { return lanes == kLanes ? load(from) : load_partial(from, lanes); };
      if (ahead) {
        const std::int64_t next = kAhead * p.x_stride / 4 + i;
        __builtin_prefetch(upper + next), __builtin_prefetch(upper + depth + next);
        __builtin_prefetch(lower + next), __builtin_prefetch(lower + depth + next);
      }
      const Vec a11 = at(upper + i), a12 = at(upper + depth + i), a21 = at(lower + i), a22 = at(lower + depth + i);
      const Vec s1 = a21 + a22, s2 = s1 - a11, s3 = a11 - a21, s4 = a12 - s2;
      const Vec m11 = abs(a11), m12 = abs(a12), m21 = abs(a21), m22 = abs(a22);
      upper_greatest = max_nan(upper_greatest, max_nan(m11, m12));
      lower_greatest = max_nan(lower_greatest, max_nan(m21, m22));
      upper_sum = upper_sum + (m11 + m12);
      lower_sum = lower_sum + (m21 + m22);
      const Vec images[kStrassenProducts] = {a11, a12, s2, s1, s4, s3, a22};
      std::byte* const to = packed + i * 4;
      INGOT_UNROLL for (int image = 0; image < kStrassenProducts; ++image) store((float*)(to + image * kImage), images[image]);
    }
    keep_magnitudes(job.magnitudes[r][0], block, upper_greatest, upper_sum);
    keep_magnitudes(job.magnitudes[r][1], block, lower_greatest, lower_sum);
  }
}

/// One of the seven products of a block of k, for all pairs of a pass.
struct Part {
  const std::byte* x;    // packed
  const float* w;
  int depth;
  const float *begin, *more;  // what sums begin with, or null
  float* both;           // or null: they are added to these too, and only then to what they begin with
  float* to;
  const RowsEnd* end;    // or null: takes the sums, which are not stored
  const std::byte* ahead;  // the next product's weights
};

template <int R, int C>
INGOT_INLINE void add_rows(Vec (&a)[R][C], const float* from) {
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = a[r][c] + load(from + r * kPanel + c * kLanes);
  }
}

/// R rows by C vectors of the panel, from that row and column on. `sums`: where they go, or null: to the output.
template <int R, int C>
INGOT_INLINE void part_tile(const Part& p, int row, int column, float* sums, const std::byte* ahead, std::int64_t advance) {
  const std::byte* x = p.x + row * kXStride;
  const float* w = p.w + column;
  const std::int64_t at = row * kPanel + column;
  Vec a[R][C];
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = p.begin == nullptr || p.both != nullptr ? zero() : load(p.begin + at + r * kPanel + c * kLanes);
  }
  if (p.more != nullptr && p.both == nullptr) add_rows(a, p.more + at);
  for (int k = 0; k < p.depth; ++k, x += 4, w += kPanel, ahead += advance) {
    __builtin_prefetch(ahead);
    __builtin_prefetch(ahead + 64);
    Vec b[C];
    INGOT_UNROLL for (int c = 0; c < C; ++c) b[c] = load(w + c * kLanes);
    INGOT_UNROLL for (int r = 0; r < R; ++r) {
      const Vec v = broadcast(*(const float*)(x + r * kXStride));
      INGOT_UNROLL for (int c = 0; c < C; ++c) a[r][c] = fma(v, b[c], a[r][c]);
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
  if (sums == nullptr) return end_tile<float>(*p.end, a, row, column);
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) store(sums + r * kPanel + column + c * kLanes, a[r][c]);
  }
}

template <int R>
void part_rows(const Part& p, int row, float* sums, const std::byte* ahead, std::int64_t advance) {
  if constexpr (R * 2 * kVecRegisters <= kAccumulatorRegisters) {
    part_tile<R, 2>(p, row, 0, sums, ahead, advance);
  } else {
    part_tile<R, 1>(p, row, 0, sums, ahead, advance);
    part_tile<R, 1>(p, row, kLanes, sums, (const std::byte*)p.w, kPanel * 4);
  }
}

/// Row blocks of nearly equal height; each fetches its share of the weights that come next.
template <int... R>
INGOT_INLINE void multiply_rows_of(const Part& p, int rows, std::integer_sequence<int, R...>) {
  typedef void (*Rows)(const Part&, int, float*, const std::byte*, std::int64_t);
  static constexpr Rows by_rows[] = {part_rows<R + 1>...};
  const int blocks = (rows + (int)sizeof...(R) - 1) / (int)sizeof...(R);
  const std::int64_t advance = kPanel * 4 / blocks;
  for (int b = 0; b < blocks; ++b) {
    const int row = rows * b / blocks, count = rows * (b + 1) / blocks - row;
    const std::byte* const ahead = p.ahead + b * advance * p.depth;
    if (p.end == nullptr) {
      by_rows[count - 1](p, row, p.to + row * kPanel, ahead, advance);
      continue;
    }
    p.end->fetch(row, count);
    if (p.end->direct && (p.end->width == kPanel || narrow_ends(*p.end))) {
      by_rows[count - 1](p, row, nullptr, ahead, advance);
    } else {
      alignas(64) float sums[kRows * kPanel];
      by_rows[count - 1](p, row, sums, ahead, advance);
      p.end->run(sums, kPanel, row, count);
    }
  }
}

__attribute__((noinline)) void multiply_part(const Part& p, int rows) { multiply_rows_of(p, rows, std::make_integer_sequence<int, kRows>()); }

/// A block of k of a pair of panels.
struct Unit {
  const std::byte* packed;
  const float *w, *ahead;  // ahead: what is read behind it
  int depth;
  bool first;              // before it sums are zero
  RowsEnd* end;            // or null: of the last block
  std::int64_t column;
  float* sums;             // of the quadrants of outputs: by rows, then by columns
};

/// The seven products of it (strassen.h).
void multiply_unit(const StrassenJob& job, const Unit& unit) {
  float *const u = job.memory.u, *const v = job.memory.v;
  const auto part = [&](int number, const float* begin, float* to) __attribute__((always_inline)) {
    const float* const w = unit.w + number * unit.depth * kPanel;
    const float* const next = number + 1 < kStrassenProducts ? w + unit.depth * kPanel : unit.ahead;
    return Part{unit.packed + number * kImage, w, unit.depth, begin, nullptr, nullptr, to, nullptr, (const std::byte*)next};
  };
  const auto add = [&](Part to, int quadrant) {
    to.to = unit.sums + quadrant * kQuadrant;
    if (!unit.first) to.more = to.to;
    if (unit.end != nullptr) {
      unit.end->first_row = quadrant / 2 * job.partner_row;
      unit.end->place(unit.column + quadrant % 2 * job.partner_column, kPanel);
      to.end = unit.end;
    }
    multiply_part(to, (int)job.pairs);
  };
  multiply_part(part(0, nullptr, v), (int)job.pairs);
  add(part(1, v, nullptr), 0);
  multiply_part(part(2, v, u), (int)job.pairs);
  multiply_part(part(3, u, v), (int)job.pairs);
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

void run(const StrassenJob& job) {
  const MatmulJob& p = job.product;
  RowsEnd end;
  const bool ended = ends_rows<Floats>(p, end);
  const StrassenMemory& memory = job.memory;
  const std::int64_t blocks = pairs_of_blocks(p.k), group = units_at_once(p.k, p.units);
  const bool kept = keeps_pairs(p.k);
  const auto weights = [&](std::int64_t unit, std::int64_t block) {
    return (const float*)p.w + (unit * (p.k / 2) + block * kPairDepth) * kStrassenProducts * kPanel;
  };
  for (std::int64_t block = 0; kept && block < blocks; ++block) pack_pairs(job, block, memory.packed + block * kStrassenProducts * kImage);
  for (std::int64_t first = 0; first < p.units; first += group) {
    const std::int64_t last = smaller(first + group, p.units);
    for (std::int64_t block = 0; block < blocks; ++block) {
      if (!kept) pack_pairs(job, block, memory.packed);
      for (std::int64_t unit = first; unit < last; ++unit) {
        const bool at_end = block + 1 == blocks;
        Unit of;
        of.packed = memory.packed + (kept ? block * kStrassenProducts * kImage : 0);
        of.w = weights(unit, block);
        of.depth = (int)half_depth(p.k, block);
        of.ahead = unit + 1 < last ? weights(unit + 1, block) : at_end ? weights(last, 0) : weights(first, block + 1);
        of.first = block == 0;
        of.end = ended && at_end ? &end : nullptr;
        of.column = unit * kPanel;
        of.sums = memory.sums + (unit - first) * 4 * kQuadrant;
        multiply_unit(job, of);
        if (at_end && !ended) finish_unit(job, of);
      }
    }
  }
}

}  // namespace

const StrassenTable strassen_table = {run};

}  // namespace ingot::INGOT_LEVEL
