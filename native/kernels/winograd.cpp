// How the tiles and outputs of a Winograd convolution are divided among the workers, and the transformed weight.
#include "winograd.h"

#include <algorithm>

#include "check.h"

namespace ingot {

namespace {

constexpr std::int64_t kFinished = 4 * kRunPixels * kPanel;  // floats of WinogradJob::finished
constexpr std::int64_t kMostTaps = 64;                       // of a line

/// Small images have few pixels for each value of the weight, whose reading then costs more than the products.
WinogradTile square_for(std::int64_t height, std::int64_t width) {
  return height * width < 100 ? WinogradTile::square_2 : WinogradTile::square_4;
}
std::int64_t tiles_down(const TensorView& y, WinogradTile tile) { return (y.shape[1] + height_of(tile) - 1) / height_of(tile); }
std::int64_t tiles_across(const TensorView& y, WinogradTile tile) { return (y.shape[2] + width_of(tile) - 1) / width_of(tile); }
std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

bool is_square(const Window& window) {
  const auto plain = [](const WindowAxis& axis) { return axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1; };
  return window.axes == 2 && plain(window.axis[1]) && plain(window.axis[2]);
}

/// Whether it has taps along that axis, 1 or 2, and none along the other.
bool has_line(const Window& window, int along) {
  const WindowAxis &axis = window.axis[along], &other = window.axis[3 - along];
  const bool taps = axis.kernel >= 3 && axis.kernel <= kMostTaps && axis.stride <= 2 && axis.dilation == 1;
  return window.axes <= 2 && taps && other.kernel == 1 && other.stride == 1;
}

/// Whether it has two taps along an axis, and not more along the other.
bool is_short_window(const Window& window) {
  const WindowAxis &down = window.axis[1], &across = window.axis[2];
  const auto plain = [](const WindowAxis& axis) { return axis.kernel <= 2 && axis.stride == 1 && axis.dilation == 1; };
  return window.axes <= 2 && plain(down) && plain(across) && down.kernel + across.kernel > 2;
}

/// The tile of such a window.
WinogradTile short_tile_of(const Window& window) {
  if (window.axis[2].kernel == 1) return WinogradTile::short_down;
  return window.axis[1].kernel == 1 ? WinogradTile::short_across : WinogradTile::short_square;
}

}  // namespace

/// Workers in a grid of tiles by panels. Those of a row transform the same inputs, each for itself: that costs at most a fifth of
/// the products, and taking them from another core's cache costs more.
struct Winograd::Split {
  int by_tiles, by_panels;
  WinogradTile tile;
  std::int64_t tiles;   // of all images
  std::int64_t groups;  // of tiles that are transformed at a time, of the busiest worker
  std::int64_t group;   // most tiles of one
  std::int64_t panels;  // most panels multiplied at a time
};

bool Winograd::takes(const Window& window) { return is_square(window) || has_line(window, 1) || has_line(window, 2); }

bool Winograd::takes_phase(const Window& window) { return is_short_window(window); }

bool Winograd::suits(const TensorView& y, int speed) const {
  constexpr std::int64_t kLeastPixels = 6 * 6;    // fewer do not pay for reading the transformed weight
  constexpr std::int64_t kPairedPixels = 10 * 10;  // the same of products of bfloat16 in tiles of 2x2
  constexpr std::int64_t kLeastChannels = 4;      // with fewer the transforms cost as much as the products
  constexpr std::int64_t kLineChannels = 16;      // the same of taps along one axis, which save less
  constexpr std::int64_t kManyChannels = 64;      // from here on transforms count for little beside the products of a line
  const WinogradTile tile = tile_of(y);
  const std::int64_t pixels = y.shape[1] * y.shape[2];
  const std::int64_t computed = tiles_down(y, tile) * height_of(tile) * tiles_across(y, tile) * width_of(tile);
  if (pixels < kLeastPixels) return false;
  if (is_line(tile)) {
    // Products of the direct sum, and those that are left: two of each output for a block, of two taps 1.25.
    const std::int64_t direct = pixels * taps_.count, left = computed * inputs_of(tile) * taps_.blocks() / size_of(tile);
    if (speed == 2 && paired(tile)) {  // exactly: its transforms cost little
      const std::int64_t left_of_pair = computed * (4 * taps_.blocks() - (taps_.blocks() - taps_.full_blocks())) / size_of(tile);
      return channels_ >= kManyChannels && 10 * direct >= 12 * left_of_pair;
    }
    // 1.75 times fewer products are 1.24 to 1.65 times as fast, 1.5 times fewer 1.01 to 1.37 times with many channels and slower with few, 1.25
    // times fewer are not. Two taps have short transforms: 1.13 to 1.3 times as fast with 16 channels.
    const std::int64_t tenths = channels_ < kManyChannels && !is_short(tile) ? 16 : 14;
    return speed == 1 && channels_ >= kLineChannels && 10 * direct >= tenths * left;
  }
  // A direct product twice as fast is left behind by tiles of 4x4, or by such products in tiles of 2x2 of larger images; one still
  // faster not at all. Tiles of which less than half is used do not pay either.
  if (speed > 2 || (speed == 2 && tile == WinogradTile::square_2 && !(paired(tile) && pixels >= kPairedPixels))) return false;
  return channels_ >= kLeastChannels && 2 * pixels >= computed;
}

Winograd::Winograd(std::int64_t outputs, std::int64_t channels, DType dtype, const Window& window, const Epilogue& epilogue, Level level,
                   int tile)
    : outputs_(outputs), channels_(channels), dtype_(dtype), taps_{3, 1, 3}, top_(window.axis[1].before), left_(window.axis[2].before),
      epilogue_(epilogue), table_(half_for(winograd_halves, level)) {
  // Products of bfloat16 in tiles of 2 outputs are as fast as those of float32 in tiles of 4 with 64 channels and 1.1 to 1.5 times as fast
  // from 128 on; along one axis they are 1.2 to 1.4 times as fast as the direct ones from 64 on.
  if (tile == 0 && table_.pairs && dtype == DType::bfloat16 && (channels >= 128 || !is_square(window))) tile = 2;
  if (is_short_window(window)) {
    tile_ = short_tile_of(window);
    taps_ = {2, 1, 2};
    return;
  }
  if (is_square(window)) {
    if (tile != 0) tile_ = tile == 2 ? WinogradTile::square_2 : WinogradTile::square_4;
    return;
  }
  const bool down = has_line(window, 1);
  const WindowAxis& along = window.axis[down ? 1 : 2];
  if (tile == 2) tile_ = down ? WinogradTile::down_2 : WinogradTile::across_2;
  else tile_ = down ? WinogradTile::down_4 : WinogradTile::across_4;
  taps_ = {along.kernel, along.stride, block_of(*tile_)};
}

WinogradTile Winograd::tile_of(const TensorView& y) const { return tile_ ? *tile_ : square_for(y.shape[1], y.shape[2]); }

PackedWeight Winograd::packed() const { return PackedWeight(dtype_, channels_ * taps_.count * (tile_ && is_line(*tile_) ? 1 : taps_.count)); }

void Winograd::prepare(const TensorView& panels, const TensorView& y) const {
  const WinogradTile tile = tile_of(y);
  Weight& own = weight(tile);
  std::call_once(own.once, [&] {
    const std::int64_t count = (outputs_ + kPanel - 1) / kPanel, panel_floats = positions_of(tile) * depth_of(tile) * kPanel;
    const std::size_t bytes = static_cast<std::size_t>(count * panel_floats) * 4;
    Pages pages(bytes + rounded(static_cast<std::size_t>(channels_) * 4), "a convolution's transformed weight");
    float* u = reinterpret_cast<float*>(pages.data());
    const std::int64_t panel_bytes = packed().panel_bytes();
    for (std::int64_t panel = 0; panel < count; ++panel)
      table_.weight(panels.as<std::byte>() + panel * panel_bytes, dtype_, channels_, tile, taps_, paired(tile), u + panel * panel_floats);
    own.pages = std::move(pages);
  });
}

Winograd::Split Winograd::split(const TensorView& y, int workers) const {
  Split best{};
  const WinogradTile tile = best.tile = tile_of(y);
  const std::int64_t tiles = y.shape[0] * tiles_down(y, tile) * tiles_across(y, tile);
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
  const std::int64_t tile_bytes = positions_of(tile) * v_blocks(depth_of(tile)) * kVRow * 4;
  const std::int64_t group = std::clamp<std::int64_t>(kTransformed / tile_bytes / 14 * 14, 28, 56);
  best.groups = std::max<std::int64_t>(1, (most + group - 1) / group);
  best.group = std::max<std::int64_t>(1, (most + best.groups - 1) / best.groups);
  best.panels = std::clamp<std::int64_t>(kProducts / (best.group * m_tile_of(tile) * 4), 1, (panels + best.by_panels - 1) / best.by_panels);
  return best;
}

/// A worker's memory.
struct Winograd::Memory {
  std::byte* epilogue;
  float *finished, *v, *m;

  Memory(Frame& frame, const Winograd& own, const Split& grid)
      : epilogue(own.epilogue_.take(frame)), finished(frame.take<float>(kFinished)),
        v(frame.take<float>(positions_of(grid.tile) * v_position(own.depth_of(grid.tile), grid.group))),
        m(frame.take<float>(grid.panels * grid.group * m_tile_of(grid.tile))) {}
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
  job.taps = taps_;
  job.paired = paired(grid.tile);
  job.depth = depth_of(grid.tile), job.last_depth = depth_of(grid.tile, taps_.full_blocks());
  job.dtype = dtype_;
  job.x = x.as<std::byte>();
  job.image_stride = x.stride[0], job.row_stride = x.stride[1], job.column_stride = x.stride[2];
  job.height = x.shape[1], job.width = x.shape[2], job.channels = channels_;
  job.top = top_, job.left = left_;
  job.u = reinterpret_cast<const float*>(weight(grid.tile).pages.data());
  job.zeros = reinterpret_cast<const std::byte*>(job.u + (outputs_ + kPanel - 1) / kPanel * positions_of(grid.tile) * job.depth * kPanel);
  job.out_height = y.shape[1], job.out_width = y.shape[2];
  job.out_image = operands.rows.image, job.out_line = operands.rows.line;
  job.tiles_down = tiles_down(y, grid.tile), job.tiles_across = tiles_across(y, grid.tile);
  job.outputs = outputs_;
  job.weight = operands.panels.as<std::byte>();
  job.panel_bytes = packed().panel_bytes();
  const auto memory = layout_at<Memory>(worker.local, *this, grid);
  job.epilogue = epilogue_.job(operands.extras, operands.extra_count, memory.epilogue);
  job.epilogue.out = operands.out;
  job.epilogue.apart = operands.rows.pixel;
  job.finished = memory.finished, job.v = memory.v, job.m = memory.m;
  job.m_tile = m_tile_of(grid.tile);
  const std::int64_t count = mine.last - mine.first;
  for (std::int64_t group = 0; group < grid.groups; ++group) {
    const std::int64_t first = count * group / grid.groups, last = count * (group + 1) / grid.groups;
    if (first == last || panels.first == panels.last) continue;
    job.first_tile = mine.first + first;
    job.tiles = static_cast<int>(last - first);
    job.v_position = v_position(job.depth, job.tiles);
    table_.inputs(job);
    for (std::int64_t panel = panels.first; panel < panels.last; panel += grid.panels)
      table_.outputs(job, panel, static_cast<int>(std::min(grid.panels, panels.last - panel)));
  }
}

}  // namespace ingot
