// Whether the windows that calls write make up a buffer: every element once, none twice, none left out.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel.h"

namespace ingot {

enum class Tiling : std::uint8_t {
  exact,    // every element lies in one window
  overlap,  // some element lies in two
  gap,      // some element lies in none
  unclear,  // the windows interleave in more ways than are followed
};

/// A strided window: its dimensions and where its first element lies. No index reaches an element that another reaches.
struct Tile {
  std::int64_t offset;
  TensorView view;  // shape and strides; the data is not looked at
};

/// Compares windows, which lie inside and may be empty, with the elements [0, elements).
Tiling tiling_of(std::int64_t elements, const std::vector<Tile>& windows);

}  // namespace ingot
