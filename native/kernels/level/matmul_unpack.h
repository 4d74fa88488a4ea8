// What the words of narrow weights hold (matmul.h, Packing).
#pragma once

#include "matmul.h"
#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

INGOT_INLINE Ints words_at(const std::byte* from, int column) { return bits(load((const float*)(from + column * 4))); }

/// Floats from one panel's scales to the next one's.
INGOT_INLINE std::int64_t scales_of_panel(const MatmulJob& job) { return (job.k + job.group - 1) / job.group * kPanel; }

}  // namespace

}  // namespace ingot::INGOT_LEVEL
