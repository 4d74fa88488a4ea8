// Working memory laid out once: plan() asks a frame without memory for its bytes, and run() takes the same pieces from one over
// the memory that it gets. Plain data only, for both halves of a family.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ingot {

/// Pieces of one block of memory, each aligned to 64 bytes as the block is.
class Frame {
 public:
  /// Without memory: a frame that only counts.
  static Frame counting() { return Frame(nullptr); }
  explicit Frame(std::byte* memory) : memory_(memory) {}

  /// Room for that many values; null where the frame only counts.
  template <class T>
  T* take(std::int64_t count) {
    std::byte* const piece = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

/// A layout is a struct of pieces that is made of a frame and what their sizes depend on: where its pieces lie in `memory`.
template <class Layout, class... Sizes>
Layout layout_at(std::byte* memory, const Sizes&... sizes) {
  Frame frame(memory);
  return Layout(frame, sizes...);
}

/// How many bytes they take.
template <class Layout, class... Sizes>
std::size_t bytes_of_layout(const Sizes&... sizes) {
  Frame frame = Frame::counting();
  Layout(frame, sizes...);
  return frame.bytes();
}

}  // namespace ingot
