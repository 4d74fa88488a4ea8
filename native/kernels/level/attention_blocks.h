// Blocks of 16 rows whose products are made by AMX tiles (attention_tiles.h, attention_int8_tiles.h), while vectors weigh.
#pragma once

#include "attention_int8_tiles.h"
#include "attention_int8_weights.h"
#include "attention_tiles.h"
#include "attention_weights.h"

namespace ingot::INGOT_LEVEL {

namespace {

#if defined(__AMX_BF16__)

/// The rows of a task against a chunk, block after block: the products of the next block's scores and of the last block's values run
/// between the rows of this one's softmax. Kind: PairTiles or QuadTiles.
template <class Kind, class Scores, class After>
class BlockRows {
 public:
  BlockRows(const AttentionTask& task, const Parts& p, const Operands& o, std::int64_t start, const After& after)
      : task_(task), p_(p), o_(o), start_(start), after_(after), end_(task.tokens - start) {}

  void run() {
    const int blocks = (task_.rows + kBlockRows - 1) / kBlockRows;
    const std::int64_t first = next_of(0), last = next_of(task_.rows - 1);
    const Seen every{within_chunk(last - task_.window), within_chunk(first < end_ ? first : end_)};
    finite_ = every.whole() || Kind::finite_values(task_, p_);
    next_ = first, head_ = (int)(task_.first_row % task_.group);
    TileBlock before{}, block = block_of(0);
    run_all(before, block, Kind::score_pieces(block));
    for (int b = 0; b < blocks; ++b) {
      TileBlock later{};
      if (b + 1 < blocks) later = block_of(b + 1);
      weigh_block(b * kBlockRows, before, block, later);
      before = block, block = later;
    }
    run_all(before, block, 0);
  }

 private:
  /// The first token of the chunk that the row does not see.
  std::int64_t next_of(int r) const { return task_.position + (task_.first_row + r) / task_.group + 1 - start_; }

  TileBlock block_of(int b) const {
    const int r = b * kBlockRows, rows = task_.rows - r < kBlockRows ? task_.rows - r : kBlockRows;
    const std::int64_t last = next_of(r + rows - 1);
    const Seen any{within_chunk(next_of(r) - task_.window), within_chunk(last < end_ ? last : end_)};
    TileBlock block{};
    if (any.none()) return block;
    block.rows = rows;
    block.q = (const std::byte*)(p_.q + (std::int64_t)r * p_.width), block.q_bytes = (std::int64_t)p_.width * 4;
    block.width = p_.width, block.value_width = p_.value_width;
    block.k = o_.k, block.k_ahead = b == 0 ? o_.k_ahead : nullptr;
    block.first_group = any.first / kTokenGroup, block.last_group = (any.last + kTokenGroup - 1) / kTokenGroup;
    block.scores = p_.scores + b % 3 * kBlockRows * kChunkTokens;
    block.lows = p_.scores + (3 + b % 2) * kBlockRows * kChunkTokens;
    if (o_.quads && stacks_digits(task_)) block.lows = block.scores + kStackedRows * kChunkTokens, block.stacked = true;
    block.values = (const std::byte*)p_.v;
    block.sum = p_.sum + (std::int64_t)r * p_.value_width, block.units = p_.units + r;
    return block;
  }

  /// Pieces [first, last): first the scores of `later`, `scores` pieces, then the values of `before`.
  INGOT_INLINE void begin_piece(const TileBlock& before, const TileBlock& later, int piece, int scores) {
    piece < scores ? Kind::begin_score(later, piece, piece % 2) : Kind::begin_value(before, piece - scores, piece % 2);
  }
  INGOT_INLINE void end_piece(const TileBlock& before, const TileBlock& later, int piece, int scores) {
    if (piece >= 0) piece < scores ? Kind::end_score(later, piece, piece % 2) : Kind::end_value(before, piece - scores, piece % 2);
  }
  INGOT_INLINE void run_pieces(const TileBlock& before, const TileBlock& later, int first, int last, int scores) {
    for (int piece = first; piece < last; ++piece) {
      begin_piece(before, later, piece, scores);
      end_piece(before, later, piece - 1, scores);
    }
  }

  INGOT_INLINE void run_all(const TileBlock& before, const TileBlock& later, int scores) {
    const int pieces = scores != 0 ? scores : Kind::value_pieces(before);
    run_pieces(before, later, 0, pieces, scores);
    end_piece(before, later, pieces - 1, scores);
  }

  void weigh_block(int r, const TileBlock& before, TileBlock& block, const TileBlock& later) {
    const int rows = task_.rows - r < kBlockRows ? task_.rows - r : kBlockRows;
    const int scores_later = Kind::score_pieces(later), pieces = scores_later + Kind::value_pieces(before);
    Seen seen[kBlockRows];
    bool whole = true;
    for (int i = 0; i < rows; ++i) {
      seen[i] = {within_chunk(next_ - task_.window), within_chunk(next_ < end_ ? next_ : end_)};
      whole = whole && seen[i].whole();
      if (++head_ == task_.group) head_ = 0, ++next_;
    }
    const auto between = [&](int i, int taken) __attribute__((always_inline)) {
      run_pieces(before, later, pieces * i / rows, pieces * (i + taken) / rows, scores_later);
      for (int j = 0; j < taken; ++j) after_(r + i + j, task_.rows);
    };
    if (block.rows == 0)
      between(0, rows);
    else if constexpr (__is_same(Kind, QuadTiles))
      weigh_quad_rows<Scores>(task_, p_, o_, start_, r, rows, block.scores, seen,
                              [&](int i, int g) __attribute__((always_inline)) { return Kind::score(block, i, g); }, between);
    else
      weigh_pairs(r, rows, block, seen, whole, between);
    end_piece(before, later, pieces - 1, scores_later);
    written(block.scores);
    if (!whole && !finite_ && block.rows != 0) add_alone(block, rows, seen);
  }

  template <class Between>
  __attribute__((always_inline)) void weigh_pairs(int r, int rows, const TileBlock& block, const Seen* seen, bool whole, const Between& between) {
    const bool own_bias = task_.mask.data != nullptr && !same_for_all_rows(task_);
    const bool together = whole && !own_bias && !Scores::kSloped;
    for (int i = 0, taken; i < rows; i += taken) {
      taken = together && i + 2 <= rows ? 2 : 1;
      between(i, taken);
      float* const scores = block.scores + i * kChunkTokens;
      if (taken == 2) {
        weigh_rows<Scores, 2>(task_, p_, r + i, scores, p_.bias, [&](int j, const Vec (&weights)[kChunkGroups]) __attribute__((always_inline)) {
          Kind::put_weights(scores + j * kChunkTokens, weights);
        });
        continue;
      }
      if (seen[i].none()) {
        Kind::no_weights(scores);
        continue;
      }
      if constexpr (Scores::kSloped) distances_of_row(task_, r + i, start_, p_.bias);
      else if (own_bias) bias_of_row(task_, r + i, start_, p_.bias);
      seen[i].whole() ? weigh_whole<Scores>(task_, p_, r + i, scores, p_.bias) : weigh<Scores>(task_, p_, r + i, scores, p_.bias, seen[i]);
      Kind::finish_weights(scores, seen[i]);
    }
  }

  /// Each row's values by themselves, without those of tokens that it does not see.
  void add_alone(TileBlock& block, int rows, const Seen* seen) {
    configure(1, 1);
    std::byte* const masked = (std::byte*)p_.v + kSteps * (task_.value_dim / 16) * kTileBytes;
    TileBlock row = block;
    row.values = masked;
    for (int i = 0; i < rows; ++i, row.sum += row.value_width, row.scores += kChunkTokens) {
      mask_value_tiles(task_, block.values, seen[i], masked);
      written(masked);
      run_all(row, TileBlock{}, 0);
    }
    block = TileBlock{};
    begin_tiles(task_, false);
  }

  const AttentionTask& task_;
  const Parts& p_;
  const Operands& o_;
  const std::int64_t start_;
  const After& after_;
  const std::int64_t end_;
  bool finite_ = true;
  std::int64_t next_ = 0;  // of the row that comes next
  int head_ = 0;
};

template <class Scores, class After>
void attend_blocks(const AttentionTask& task, const Parts& p, const Operands& o, std::int64_t start, const After& after) {
  o.quads ? BlockRows<QuadTiles, Scores, After>(task, p, o, start, after).run() : BlockRows<PairTiles, Scores, After>(task, p, o, start, after).run();
}

void begin_blocks(const AttentionTask& task) {
  if (in_tiles(task) || int8_in_tiles(task)) begin_tiles(task, stacks_digits(task));
}
void end_blocks(const AttentionTask& task) {
  if (in_tiles(task) || int8_in_tiles(task)) _tile_release();
}

#else

void begin_blocks(const AttentionTask&) {}
void end_blocks(const AttentionTask&) {}

#endif

}  // namespace

}  // namespace ingot::INGOT_LEVEL
