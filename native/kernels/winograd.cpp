// How the tiles and outputs of a Winograd convolution are divided among the workers, and the transformed weight.
#include "winograd.h"

#include <algorithm>

#include "check.h"
#include "packed_weight.h"

namespace ingot {

namespace {

constexpr std::int64_t kFinished = 4 * kTileRun * 4 * kPanel;  // floats of WinogradJob::finished

/// Outputs of a tile each way. Small images have few pixels for each value of the weight, whose reading then costs more than the
/// products.
int tile_for(std::int64_t height, std::int64_t width) { return height * width < 100 ? 2 : 4; }
int positions_of(int tile) { return (tile + 2) * (tile + 2); }
std::int64_t tiles_of(std::int64_t size, int tile) { return (size + tile - 1) / tile; }
std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

/// Workers in a grid of tiles by panels. Those of a row transform the same inputs, each for itself: that costs at most a fifth of
/// the products, and taking them from another core's cache costs more.
struct Winograd::Split {
  int by_tiles, by_panels;
  int tile;             // outputs of a tile each way
  std::int64_t tiles;   // of all images
  std::int64_t groups;  // of tiles that are transformed at a time, of the busiest worker
  std::int64_t group;   // most tiles of one
  std::int64_t panels;  // most panels multiplied at a time
};

bool Winograd::suits(std::int64_t channels, std::int64_t outputs, std::int64_t height, std::int64_t width, int speed) {
  // Below 4 channels the transforms cost as much as the products. Fewer than 6x6 pixels do not pay for reading the transformed
  // weight, nor do tiles of which less than half is used.
  const int tile = tile_for(height, width);
  const std::int64_t pixels = height * width, computed = tiles_of(height, tile) * tiles_of(width, tile) * tile * tile;
  // A direct product twice as fast is left behind by tiles of 4x4 only, one still faster not at all.
  if (speed > 2 || (speed == 2 && tile == 2)) return false;
  return channels >= 4 && outputs >= 1 && pixels >= 36 && 2 * pixels >= computed;
}

Winograd::Winograd(std::int64_t outputs, std::int64_t channels, DType dtype, const Epilogue& epilogue, Level level,
                   int tile)
    : outputs_(outputs), channels_(channels), tile_(tile), dtype_(dtype), epilogue_(epilogue), table_(half_for(winograd_halves, level)) {}

int Winograd::tile_of(const TensorView& y) const { return tile_ != 0 ? tile_ : tile_for(y.shape[1], y.shape[2]); }

void Winograd::prepare(const TensorView& panels, const TensorView& y) const {
  const int tile = tile_of(y);
  Weight& own = weight(tile);
  std::call_once(own.once, [&] {
    const std::int64_t count = (outputs_ + kPanel - 1) / kPanel, floats = channels_ * kPanel, positions = positions_of(tile);
    const std::size_t bytes = static_cast<std::size_t>(count * positions * floats) * 4;
    Pages pages(bytes + rounded(static_cast<std::size_t>(channels_) * 4), "a convolution's transformed weight");
    float* u = reinterpret_cast<float*>(pages.data());
    const std::int64_t panel_bytes = PackedWeight(dtype_, 9 * channels_).panel_bytes();
    for (std::int64_t panel = 0; panel < count; ++panel)
      table_.weight(panels.as<std::byte>() + panel * panel_bytes, dtype_, channels_, tile, u + panel * positions * floats);
    own.pages = std::move(pages);
  });
}

Winograd::Split Winograd::split(const TensorView& y, int workers) const {
  Split best{};
  const int tile = best.tile = tile_of(y);
  const std::int64_t tiles = y.shape[0] * tiles_of(y.shape[1], tile) * tiles_of(y.shape[2], tile);
  const std::int64_t panels = (outputs_ + kPanel - 1) / kPanel;
  double least = 0;
  for (int by_tiles = workers; by_tiles >= 1; --by_tiles) {
    if (workers % by_tiles != 0) continue;
    const int by_panels = workers / by_tiles;
    constexpr double kFew = 24, kTransform = 0.2;  // few tiles cost as much as kFew: reading the weight dominates
    const double height = static_cast<double>((tiles + by_tiles - 1) / by_tiles);
    const double width = static_cast<double>((panels + by_panels - 1) / by_panels);
    const double cost = width * std::max(height, kFew) + kTransform * height;
    if (least == 0 || cost < least) {
      best.by_tiles = by_tiles, best.by_panels = by_panels;
      least = cost;
    }
  }
  best.tiles = tiles;
  const std::int64_t most = (tiles + best.by_tiles - 1) / best.by_tiles;
  constexpr std::int64_t kTransformed = 512 << 10, kProducts = 256 << 10;  // bytes: with a panel's weights they stay in L2
  const std::int64_t tile_bytes = positions_of(tile) * v_blocks(channels_) * kVRow * 4;
  const std::int64_t group = std::clamp<std::int64_t>(kTransformed / tile_bytes / 14 * 14, 28, 56);
  best.groups = std::max<std::int64_t>(1, (most + group - 1) / group);
  best.group = std::max<std::int64_t>(1, (most + best.groups - 1) / best.groups);
  best.panels = std::clamp<std::int64_t>(kProducts / (best.group * kMTile * 4), 1, (panels + best.by_panels - 1) / best.by_panels);
  return best;
}

/// A worker's memory.
struct Winograd::Memory {
  std::byte* epilogue;
  float *finished, *v, *m;

  Memory(Frame& frame, const Winograd& own, const Split& grid)
      : epilogue(own.epilogue_.take(frame)), finished(frame.take<float>(kFinished)),
        v(frame.take<float>(positions_of(grid.tile) * v_position(own.channels_, grid.group))),
        m(frame.take<float>(grid.panels * grid.group * kMTile)) {}
};

Scratch Winograd::scratch(const TensorView& y, int threads) const { return {0, bytes_of_layout<Memory>(*this, split(y, threads))}; }

void Winograd::run(const WinogradOperands& operands, const Worker& worker) const {
  const TensorView &x = operands.x, &y = operands.y;
  const Split grid = split(y, worker.count);
  const int row = worker.index / grid.by_panels, column = worker.index % grid.by_panels;
  const Share mine = share_of(grid.tiles, row, grid.by_tiles);
  const Share panels = share_of((outputs_ + kPanel - 1) / kPanel, column, grid.by_panels);
  WinogradJob job;
  job.tile = grid.tile;
  job.dtype = dtype_;
  job.x = x.as<std::byte>();
  job.image_stride = x.stride[0], job.row_stride = x.stride[1], job.column_stride = x.stride[2];
  job.height = x.shape[1], job.width = x.shape[2], job.channels = channels_;
  job.top = operands.top, job.left = operands.left;
  job.u = reinterpret_cast<const float*>(weight(grid.tile).pages.data());
  job.zeros = reinterpret_cast<const std::byte*>(job.u + (outputs_ + kPanel - 1) / kPanel * positions_of(grid.tile) * channels_ * kPanel);
  job.out_height = y.shape[1], job.out_width = y.shape[2];
  job.tiles_down = tiles_of(y.shape[1], grid.tile), job.tiles_across = tiles_of(y.shape[2], grid.tile);
  job.outputs = outputs_;
  job.weight = operands.panels.as<std::byte>();
  job.panel_bytes = PackedWeight(dtype_, 9 * channels_).panel_bytes();
  const auto memory = layout_at<Memory>(worker.local, *this, grid);
  job.epilogue = epilogue_.job(operands.extras, operands.extra_count, memory.epilogue);
  job.epilogue.out = operands.out;
  job.finished = memory.finished, job.v = memory.v, job.m = memory.m;
  const std::int64_t count = mine.last - mine.first;
  for (std::int64_t group = 0; group < grid.groups; ++group) {
    const std::int64_t first = count * group / grid.groups, last = count * (group + 1) / grid.groups;
    if (first == last || panels.first == panels.last) continue;
    job.first_tile = mine.first + first;
    job.tiles = static_cast<int>(last - first);
    job.v_position = v_position(channels_, job.tiles);
    table_.inputs(job);
    for (std::int64_t panel = panels.first; panel < panels.last; panel += grid.panels)
      table_.outputs(job, panel, static_cast<int>(std::min(grid.panels, panels.last - panel)));
  }
}

}  // namespace ingot
