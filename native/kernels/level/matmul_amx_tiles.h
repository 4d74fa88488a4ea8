// Products by tiles that are read where the rows of x lie: no row is packed. Two tiles of rows meet a panel over the whole of k, so that
// sums stay in tiles; they are stored to 4 KiB in L1, and end while the tiles multiply the next block.
//
// The order of sums is the frame's (matmul_blocks.h): steps of 32 values of k (int8: 64), upwards.
#pragma once

#include "image.h"
#include "matmul_blocks.h"
#include "tiles.h"

namespace ingot::INGOT_LEVEL {

namespace {

/// to += a b: pairs of bfloat16 as float32, quads of int8 as int32. The intrinsics want the tiles' numbers as they are written.
#define INGOT_ADD_PRODUCT(to, a, b)                                    \
  do {                                                                 \
    if constexpr (__is_same(T, bfloat16)) _tile_dpbf16ps(to, a, b);    \
    else _tile_dpbssd(to, a, b);                                       \
  } while (false)

/// Where a tile's rows lie, and which of them are outputs: from the first one on, `rows` pixels; as many outputs of a line as `width`
/// (TileRows), then the rest of its `pitch` which are none.
struct RowTile {
  const std::byte* x;
  std::int64_t row;     // of the job: that of the first output
  std::int64_t column;  // of the first pixel in its line
  int skipped, rows;    // skipped: rows in front of it that another tile has
};
struct TileRows {
  std::int64_t stride;  // bytes
  std::int64_t width, pitch;
  std::int64_t bytes;   // of x that each row adds
};

/// What ends the sums of up to two tiles of rows and one panel.
template <class T>
class BlockEnd {
 public:
  BlockEnd(const MatmulJob& job, const TileRows& rows) : job_(job), rows_(rows) {
    TileOperand in[1 + kMaxExtras];
    in[0] = {nullptr, DType::float32, 0, 1};
    for (int i = 0; i < job.epilogue.extra_count; ++i) in[1 + i] = job.epilogue.extras[i];
    end_.job = &job;
    chained_ = chain_of(job.epilogue.code, in, job.epilogue.out, end_.chain);
    direct_ = chained_ && sizeof(T) > 1 && is_direct<T>(job, end_);
    end_.chain.streams = streams();
    if constexpr (sizeof(T) == 1)
      if (chained_ && end_.chain.rows != nullptr && end_.chain.links[0].step == Step::mul && job.places == nullptr)
        whole_ = scaled_rows_of<std::int32_t>(end_.chain, in, job.epilogue.out);
  }

  /// Bytes that the ends of a row read and write.
  std::int64_t row_bytes() const {
    std::int64_t bytes = bytes_of(job_.epilogue.out.dtype);
    each_row_operand([&](const TileOperand& extra) { bytes += bytes_of(extra.dtype); });
    return columns() * bytes;
  }

  /// Fetches to L2 what products and ends of these rows will read, and the lines that they will write: in the order in which these lie,
  /// which processors go on with by themselves.
  void fetch(std::int64_t row, std::int64_t behind) const {
    for (; row < behind; ++row) {
      if (job_.patches == nullptr) fetch_bytes(job_.x + row * job_.x_stride, job_.k * (int)sizeof(T));
      if (!end_.chain.streams) fetch_row(job_.epilogue.out, row);
      each_row_operand([&](const TileOperand& extra) { fetch_row(extra, row); });
    }
  }

  /// Remembers the block whose sums will be in `sums`, [32][kPanel].
  void begin(const RowTile* tiles, int count, std::int64_t unit, float* sums) {
    end_.column = column_ = unit * kPanel;
    end_.width = smaller(kPanel, job_.columns - column_);
    sums_ = sums;
    runs_ = 0;
    for (int t = 0; t < count; ++t) add_runs(tiles[t], t * 16);
  }

  /// Makes all results visible to others.
  void finish() {
    run();
    if (end_.chain.streams) _mm_sfence();
  }

  /// Ends the block that began last, if there is one.
  void run() {
    for (int i = 0; i < runs_; ++i) end_rows(sums_ + run_[i].first * kPanel, run_[i].row, run_[i].count);
    runs_ = 0;
  }

 private:
  struct Run {
    int first, count;  // rows of the sums
    std::int64_t row;  // of the job
  };

  /// Whether results are too many to be found in a cache by who reads them next. Lines that are written past it need not be read before;
  /// those of a residual in their place have been.
  bool streams() const {
    constexpr std::int64_t kLeast = 4 << 20;
    const TileOperand& out = job_.epilogue.out;
    for (int i = 0; i < job_.epilogue.extra_count; ++i)
      if (job_.epilogue.extras[i].data == out.data) return false;
    const std::int64_t row = out.row_stride * bytes_of(out.dtype);
    const bool lines = (std::uintptr_t)out.data % 64 == 0 && row % 64 == 0 && kPanel * bytes_of(out.dtype) % 64 == 0;
    return lines && job_.rows * row >= kLeast && job_.places == nullptr;
  }

  std::int64_t columns() const { return smaller(job_.units * kPanel, job_.columns); }

  template <class F>
  void each_row_operand(const F& f) const {
    for (int i = 0; i < job_.epilogue.extra_count; ++i) {
      const TileOperand& extra = job_.epilogue.extras[i];
      if (extra.row_stride != 0 && extra.spacing() == Spacing::dense) f(extra);
    }
  }

  static void fetch_bytes(const std::byte* from, std::int64_t bytes) {
    constexpr int kToL2 = 2;
    for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, kToL2);
  }
  void fetch_row(const TileOperand& o, std::int64_t row) const {
    const int width = bytes_of(o.dtype);
    fetch_bytes(o.data + row * o.row_stride * width, columns() * width);
  }

  void add_runs(const RowTile& tile, int from) {
    std::int64_t row = tile.row, column = tile.column;
    for (int r = tile.skipped; r < tile.skipped + tile.rows;) {
      const int left = tile.skipped + tile.rows - r;
      if (column < rows_.width) {
        const int count = (int)smaller(rows_.width - column, left);
        Run* const last = run_ + runs_ - 1;
        if (runs_ > 0 && last->first + last->count == from + r && last->row + last->count == row) last->count += count;
        else run_[runs_++] = {from + r, count, row};
        row += count, column += count, r += count;
      } else {
        r += (int)smaller(rows_.pitch - column, left);
        column = 0;
      }
    }
  }

  void end_rows(float* sums, std::int64_t row, int count) {
    if constexpr (sizeof(T) == 1) {
      if (whole_ != nullptr && end_.width == kPanel) {
        const Rows place{row, 1, count};
        TileOperand in[1 + kMaxExtras];
        in[0] = {(std::byte*)sums, DType::float32, kPanel, 1};
        for (int i = 0; i < job_.epilogue.extra_count; ++i) in[1 + i] = operand_at(job_.epilogue.extras[i], place, column_);
        return whole_(end_.chain, in, operand_at(job_.epilogue.out, place, column_), count, 0);
      }
      for (int r = 0; r < count; ++r)
        for (int column = 0; column < kPanel; column += kLanes) store(sums + r * kPanel + column, to_float(bits(load(sums + r * kPanel + column))));
    }
    if constexpr (sizeof(T) > 1) {
      if (direct_ && end_.width == kPanel) return end_directly(sums, row, count);
    }
    end_.first_row = row;
    if (chained_) return end_.run(sums, kPanel, 0, count);
    TileOperand in[1 + kMaxExtras];
    for (int r = 0, taken; r < count; r += taken) {
      const Rows place = rows_from(job_, row + r);
      taken = (int)smaller(kTile / kPanel, smaller(place.count, count - r));
      in[0] = {(std::byte*)(sums + r * kPanel), DType::float32, kPanel, 1};
      for (int i = 0; i < job_.epilogue.extra_count; ++i) in[1 + i] = operand_at(job_.epilogue.extras[i], place, column_);
      const TileOperand out = operand_at(job_.epilogue.out, place, column_);
      job_.epilogue.run_tile(job_.epilogue.code, in, &out, taken, (int)end_.width, job_.epilogue.memory);
    }
  }

  /// Rows of a whole panel, in registers.
  void end_directly(const float* sums, std::int64_t row, int count) const {
    const auto at = [&](const TileOperand& o) { return (T*)o.data + row * o.row_stride + column_; };
    Vec bias[2];
    load_shared(end_.bias.data == nullptr ? nullptr : &end_.bias, column_, bias);
    const Vec low = end_.low == nullptr ? broadcast(-__builtin_inff()) : load(end_.low);
    T* to = at(end_.out);
    const T* residual = end_.residual.data == nullptr ? nullptr : at(end_.residual);
    const auto take = [&]<int R>(std::integral_constant<int, R>) __attribute__((always_inline)) {
      Vec v[R][2];
      each<R, 2>([&](int r, int c) { v[r][c] = load(sums + r * kPanel + c * kLanes) + bias[c]; });
      if (residual != nullptr) {
        add_residual(residual, end_.residual.row_stride, kNoOperand, v);
        residual += R * end_.residual.row_stride;
      }
      each<R, 2>([&](int r, int c) { v[r][c] = max_nan(v[r][c], low); });
      store_tile(to, end_.out.row_stride, v, end_.chain.streams);
      to += R * end_.out.row_stride;
      sums += R * kPanel;
    };
    int r = 0;
    for (; r + 4 <= count; r += 4) take(std::integral_constant<int, 4>());
    for (; r < count; ++r) take(std::integral_constant<int, 1>());
  }

  const MatmulJob& job_;
  const TileRows& rows_;
  RowsEnd end_;
  bool chained_, direct_;
  ChainRows whole_ = nullptr;  // takes the sums as whole numbers
  std::int64_t column_ = 0;
  float* sums_ = nullptr;
  int runs_ = 0;
  Run run_[32];
};

/// Weights that are fetched while others are multiplied: with each step a part of another one.
struct Fetch {
  const std::byte* w;  // a panel
  int step, count;     // steps of it
  std::int64_t at;     // bytes of each step that have been fetched
  int advance;         // bytes that each pair of tiles fetches
};

/// Some steps of k of a panel.
struct PanelSteps {
  int first, end, all;
  const std::byte* w;     // the panel
  const std::byte* tail;  // its last step, where that lies elsewhere; or null
};

static_assert(kBlockSums == 2 * 16 * kPanel && kManyRows / 32 == kMostPairs);

/// Where the sums of a block go that are still in their tiles; count: tiles of rows, 0 where there are none.
struct Pending {
  float* to;
  int count;
};

/// What tile `i` of the sums begins with: those in `from`, or zeros.
#define INGOT_BEGIN_SUMS(i, from)                                                           \
  do {                                                                                      \
    if ((from) == nullptr) _tile_zero(i);                                                   \
    else INGOT_TILE_LOAD(i, (from) + i / 2 * 16 * kPanel + i % 2 * 16, kPanel * 4);         \
  } while (false)
#define INGOT_STORE_SUMS(i, to) INGOT_TILE_STORE(i, (to) + i / 2 * 16 * kPanel + i % 2 * 16, kPanel * 4)

INGOT_INLINE void store_pending(const Pending& block) {
  if (block.count == 0) return;
  INGOT_STORE_SUMS(0, block.to);
  INGOT_STORE_SUMS(1, block.to);
  if (block.count == 2) {
    INGOT_STORE_SUMS(2, block.to);
    INGOT_STORE_SUMS(3, block.to);
  }
}

/// Rows of one or two tiles times steps of a panel. The sums begin with those in `from`, or with zeros. The tiles of the block before are stored
/// one by one between the first products, whose operands are loaded before: its last products are still on their way then, and stores that
/// waited for them would keep all else behind them back.
template <class T, int Count, class Steps>
INGOT_INLINE void multiply_block(const RowTile* tiles, std::int64_t stride, const PanelSteps& panel, const Steps& steps, const float* from,
                                 Fetch& fetch, const Pending& before) {
  const std::byte *const above = tiles[0].x, *const below = tiles[Count - 1].x;
  const int advance = (int)smaller(fetch.advance, kStepBytes - fetch.at);
  const auto fetch_step = [&](int s) __attribute__((always_inline)) {
    if (s - panel.first >= fetch.count) return;
    const std::byte* const next = fetch.w + steps.w(fetch.step + s - panel.first) + fetch.at;
    for (int i = 0; i < advance; i += 64) __builtin_prefetch(next + i);
  };
  const auto weights = [&](int s) __attribute__((always_inline)) {
    return panel.tail != nullptr && s + 1 == panel.all ? panel.tail : panel.w + steps.w(s);
  };
  int s = panel.first;
  if (Count == 2 && before.count == 2) {
    const std::int64_t at = steps.x(s);
    const std::byte* const b = weights(s);
    fetch_step(s++);
    INGOT_TILE_STREAM(4, above + at, stride);
    INGOT_TILE_LOAD(6, b, 128);
    INGOT_TILE_LOAD(7, b + 64, 128);
    INGOT_STORE_SUMS(0, before.to);
    INGOT_BEGIN_SUMS(0, from);
    INGOT_ADD_PRODUCT(0, 4, 6);
    INGOT_TILE_STREAM(5, below + at, stride);
    INGOT_STORE_SUMS(1, before.to);
    INGOT_BEGIN_SUMS(1, from);
    INGOT_ADD_PRODUCT(1, 4, 7);
    INGOT_STORE_SUMS(2, before.to);
    INGOT_BEGIN_SUMS(2, from);
    INGOT_ADD_PRODUCT(2, 5, 6);
    INGOT_STORE_SUMS(3, before.to);
    INGOT_BEGIN_SUMS(3, from);
    INGOT_ADD_PRODUCT(3, 5, 7);
  } else {
    store_pending(before);
    INGOT_BEGIN_SUMS(0, from);
    INGOT_BEGIN_SUMS(1, from);
    if constexpr (Count == 2) {
      INGOT_BEGIN_SUMS(2, from);
      INGOT_BEGIN_SUMS(3, from);
    }
  }
  written(before.to);
  for (; s < panel.end; ++s) {
    const std::int64_t at = steps.x(s);
    const std::byte* const b = weights(s);
    fetch_step(s);
    INGOT_TILE_STREAM(4, above + at, stride);
    INGOT_TILE_LOAD(6, b, 128);
    INGOT_TILE_LOAD(7, b + 64, 128);
    INGOT_ADD_PRODUCT(0, 4, 6);
    if constexpr (Count == 2) INGOT_TILE_STREAM(5, below + at, stride);
    INGOT_ADD_PRODUCT(1, 4, 7);
    if constexpr (Count == 2) {
      INGOT_ADD_PRODUCT(2, 5, 6);
      INGOT_ADD_PRODUCT(3, 5, 7);
    }
  }
  fetch.at += fetch.advance;
}

constexpr int kNearSteps = 18;      // of a panel that stays in L1 while many rows pass
constexpr int kPartSteps = 9;       // most of a part of a longer one, or where few rows do and the next weights soon need room
constexpr std::int64_t kManyPairs = 8;
constexpr std::int64_t kNearWeights = 1 << 20;  // bytes that stay in L2
constexpr std::int64_t kNearRows = 1 << 20;     // likewise, of rows
constexpr std::int64_t kFarRows = 192 << 10;    // bytes of a group of rows that come from beyond L2 while the one before is multiplied
constexpr std::int64_t kOnceAhead = 8 << 10;    // bytes that weights are fetched before they are read once

/// Pairs of tiles that meet all units before the next ones do. Where a panel stays in L1: as many as stay in L2, with what their ends read and
/// write (`bytes` of each row with its own; far: they come from beyond L2), or alone where all weights come from beyond L2 for them. Else sums
/// are kept between parts of a panel: in L1, unless weights beyond L2 then came for too few rows.
INGOT_INLINE std::int64_t pairs_at_once(const MatmulJob& job, const TileRows& rows, std::int64_t bytes, bool far, std::int64_t pairs, int steps,
                                        int parts) {
  if (job.order == Order::rows) return smaller(pairs, kMostPairs / 4);
  if (job.order == Order::weights) return smaller(pairs, kManyRows / 32);
  constexpr std::int64_t kWeightsOfAPair = 64 << 10;  // from L2: more of them for each one take longer than their products
  const std::int64_t weights = steps * kStepBytes * job.units, least = larger(weights / kWeightsOfAPair, 4);
  if (parts > 1) return smaller(pairs, weights <= kNearWeights ? kMostPairs / 4 : kMostPairs);
  if (weights > kNearWeights) return smaller(pairs, larger(kNearRows / (32 * rows.bytes), least));
  return smaller(pairs, larger((far ? kFarRows : kNearRows / 2) / (32 * bytes), least));
}

/// All tiles of rows times the job's units. `tile(i)` is one of `count`. `prepare(pair)` comes before the products of a pair when that meets
/// all units alone (`at_once` is 1; 0: as many as is best). `kept` has room for the sums of kMostPairs pairs of them, or of all.
template <class T, class Prepare, class Tile, class Steps>
INGOT_INLINE void multiply_tiles(const MatmulJob& job, const TileRows& rows, std::int64_t count, std::int64_t at_once, const Prepare& prepare,
                                 const Tile& tile, const Steps& steps, float* kept) {
  alignas(64) float sums[2][kBlockSums];
  alignas(64) std::byte padded[kStepBytes];
  BlockEnd<T> end(job, rows);
  PanelSteps panel{};
  panel.all = steps.count;
  const std::int64_t panel_bytes = round_up(job.k * (int)sizeof(T), 4) * kPanel, last = steps.w(panel.all - 1), over = panel_bytes - last;
  const std::int64_t pairs = (count + 1) / 2;
  const bool once = pairs == 1;  // weights are read once, in their order
  const bool whole = once || at_once == 1 || panel.all <= (pairs < kManyPairs ? kPartSteps : kNearSteps);
  const int parts = whole ? 1 : (panel.all + kPartSteps - 1) / kPartSteps;
  const std::int64_t row_bytes = rows.bytes + end.row_bytes();
  const bool far = row_bytes * job.rows > kNearRows && job.places == nullptr;
  const std::int64_t together = at_once > 0 ? at_once : pairs_at_once(job, rows, row_bytes, far, pairs, panel.all, parts);
  const RowTile last_tile = tile(count - 1);
  Pending pending{nullptr, 0};
  int turn = 0;
  for (std::int64_t first = 0; first < pairs; first += together) {
    const std::int64_t behind = smaller(first + together, pairs), follow = smaller(behind + together, pairs);
    const auto row_of = [&](std::int64_t pair) { return smaller(pair < pairs ? tile(2 * pair).row : last_tile.row + last_tile.rows, job.rows); };
    const std::int64_t next_row = row_of(behind), next_rows = far ? row_of(follow) - next_row : 0, blocks = job.units * (behind - first);
    if (at_once == 1) prepare(first);
    const int advance = (int)round_up((kStepBytes + behind - first - 1) / (behind - first), 64);
    for (std::int64_t unit = 0; unit < job.units; ++unit) {
      panel.w = job.w + unit * panel_bytes;
      if (over < kStepBytes) {
        __builtin_memcpy(padded, panel.w + last, over);
        __builtin_memset(padded + over, 0, kStepBytes - over);
        panel.tail = padded;
      }
      for (int part = 0; part < parts; ++part) {
        panel.first = panel.all * part / parts;
        panel.end = panel.all * (part + 1) / parts;
        const bool ends = part + 1 == parts;
        const bool follows = unit + 1 < job.units || !ends || behind == pairs;  // else the first unit comes next
        Fetch fetch{panel.w, panel.end, panel.all - panel.end, 0, advance};
        if (once) fetch.w += kOnceAhead, fetch.step = 0;
        else if (ends) fetch.w = follows ? panel.w + panel_bytes : job.w, fetch.step = 0;
        if (ends) fetch.count = at_once == 1 ? 0 : panel.all;
        for (std::int64_t pair = first; pair < behind; ++pair) {
          const bool two = 2 * pair + 1 < count;
          const RowTile of[2] = {tile(2 * pair), tile(two ? 2 * pair + 1 : 2 * pair)};
          float* const own = kept + (pair - first) * kBlockSums;
          const float* const from = part == 0 ? nullptr : own;
          written(padded);
          if (two) multiply_block<T, 2>(of, rows.stride, panel, steps, from, fetch, pending);
          else multiply_block<T, 1>(of, rows.stride, panel, steps, from, fetch, pending);
          end.run();  // the block before, while the tiles multiply
          pending = {ends ? sums[turn] : own, two ? 2 : 1};
          if (!ends) continue;
          const std::int64_t block = unit * (behind - first) + pair - first;
          end.fetch(next_row + next_rows * block / blocks, next_row + next_rows * (block + 1) / blocks);
          end.begin(of, pending.count, unit, pending.to);
          turn ^= 1;
        }
      }
    }
  }
  store_pending(pending);
  written(pending.to);
  end.finish();
}

/// Steps of rows whose k is dense.
struct DenseSteps {
  int count;
  std::int64_t x(int step) const { return step * 64; }
  std::int64_t w(int step) const { return step * kStepBytes; }
};

/// Whether tiles are read from the job's rows. Those that weights beyond L1 meet stay in L2 as they are; the frame takes others by blocks of k.
template <class T>
INGOT_INLINE bool is_dense(const MatmulJob& job) {
  const std::int64_t bytes = job.k * (int)sizeof(T);
  const Packing own = sizeof(T) == 1 ? Packing::int8 : Packing::same;
  return job.order != Order::packed && job.patches == nullptr && job.runs.length == 0 && job.packing == own && job.parts == 1 && job.rows >= 16 && job.k > 0 &&
         bytes % 64 == 0 && (bytes <= kNearSteps * 64 || smaller(job.rows, kMostPairs * 32) * bytes <= kNearRows);
}

/// Rows from where they lie. The last tile begins at rows that the one before has too.
template <class T>
void multiply_dense(const MatmulJob& job) {
  const TileRows rows{job.x_stride, job.rows, job.rows, job.k * (int)sizeof(T)};
  const auto tile = [&](std::int64_t i) {
    const std::int64_t row = i * 16, first = smaller(row, job.rows - 16);
    return RowTile{job.x + first * job.x_stride, row, row, (int)(row - first), (int)(16 - (row - first))};
  };
  multiply_tiles<T>(job, rows, (job.rows + 15) / 16, 0, [](std::int64_t) {}, tile, DenseSteps{(int)(job.k * (int)sizeof(T) / 64)},
                    (float*)job.scratch);
}

}  // namespace

}  // namespace ingot::INGOT_LEVEL
