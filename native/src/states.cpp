// Shapes and memory of kv_caches: [blocks, 2, heads, block_size * stored_width].
#include "states.h"

#include <algorithm>
#include <string>

#include "cache_width.h"
#include "copy_strided.h"
#include "error.h"

namespace ingot {
namespace {

constexpr std::int64_t kGroup = 16;  // tokens whose keys lie transposed together
constexpr std::int64_t kMaxBlockSize = 4096;
constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 31;

void check_options(const CacheOptions& options, const std::string& name) {
  if (options.blocks < 1 || options.blocks > kMaxBlocks) {
    throw Error(code::argument, "kv_blocks: " + std::to_string(options.blocks) +
                                    " is not in 1 … 2^31, and the program keeps a kv_cache (" + quote(name) + ")");
  }
  if (options.block_size < kGroup || options.block_size > kMaxBlockSize || options.block_size % kGroup != 0) {
    throw Error(code::argument, "kv_block_size: " + std::to_string(options.block_size) +
                                    " is no multiple of 16 between 16 and " + std::to_string(kMaxBlockSize));
  }
}

}  // namespace

States::States(const Program& program, const CacheOptions& options) {
  for (std::size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.kind != BufferKind::state) continue;
    check_options(options, buffer.name);
    StateView state{static_cast<int>(b), {}};
    state.view.dtype = buffer.dtype;
    state.view.rank = 4;
    const std::int64_t shape[4] = {options.blocks, 2, buffer.heads, options.block_size * stored_width(buffer.dtype, buffer.head_dim)};
    std::copy(std::begin(shape), std::end(shape), state.view.shape);
    set_row_major(state.view);
    const __int128 bytes =
        static_cast<__int128>(options.blocks) * state.view.stride[0] * static_cast<std::int64_t>(size_of(buffer.dtype));
    if (bytes > kMaxBytes)
      throw Error(code::memory, "the kv_cache " + quote(buffer.name) + " would need more than " +
                                    std::to_string(kMaxBytes >> 40) + " TiB");
    state.view.data = memory_.emplace_back(static_cast<std::size_t>(bytes), "a kv_cache").data();
    views_.push_back(state);
  }
}

std::uint64_t States::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const Pages& pages : memory_) sum += pages.size();
  return sum;
}

}  // namespace ingot
