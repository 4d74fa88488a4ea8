// The sums of a weight's panels for Strassen's step.
#include "strassen.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace ingot {

/// Whether no value is too great, or not a number, outputs bear their partners, and the two values of k that are added are near.
bool Strassen::suits(const float* panels) const {
  std::vector<float> inputs(static_cast<std::size_t>(k_));
  std::vector<Magnitudes> outputs(static_cast<std::size_t>(2 * units_ * kPanel));
  for (std::int64_t panel = 0; panel < 2 * units_; ++panel)
    for (std::int64_t i = 0; i < k_; ++i)
      for (std::int64_t column = 0; column < kPanel; ++column, ++panels) {
        const float magnitude = std::abs(*panels);
        if (!(magnitude <= kMostOfWeights)) return false;
        float& input = inputs[static_cast<std::size_t>(i)];
        Magnitudes& output = outputs[static_cast<std::size_t>(panel * kPanel + column)];
        input = std::max(input, magnitude);
        output = {std::max(output.greatest, magnitude), output.sum + magnitude};
      }
  for (std::size_t left = 0, right = outputs.size() / 2; right < static_cast<std::size_t>(n_); ++left, ++right)
    if (!bears(outputs[left], outputs[right]) || !bears(outputs[right], outputs[left])) return false;
  for (std::int64_t block = 0; block < pairs_of_blocks(k_); ++block) {
    const std::int64_t depth = half_depth(k_, block), begin = block * 2 * kPairDepth;
    for (std::int64_t i = begin; i < begin + depth; ++i)
      if (!near(inputs[static_cast<std::size_t>(i)], inputs[static_cast<std::size_t>(i + depth)])) return false;
  }
  return true;
}

void Strassen::prepare(const float* panels) const {
  std::call_once(once_, [&] {
    if (!suits(panels)) return;
    Pages pages(static_cast<std::size_t>(units_ * unit_floats()) * sizeof(float), "the sums of a weight for Strassen's algorithm");
    float* to = reinterpret_cast<float*>(pages.data());
    for (std::int64_t unit = 0; unit < units_; ++unit)
      for (std::int64_t block = 0; block < pairs_of_blocks(k_); ++block) {
        const std::int64_t size = half_depth(k_, block) * kPanel, begin = block * 2 * kPairDepth * kPanel;
        const float *left = panels + unit * k_ * kPanel + begin, *right = left + units_ * k_ * kPanel;
        for (std::int64_t i = 0; i < size; ++i) {
          const float b11 = left[i], b21 = left[size + i], b12 = right[i], b22 = right[size + i];
          const double t1 = double{b12} - b11, t2 = b22 - t1;
          const float all[kStrassenProducts] = {b11,  b21, static_cast<float>(t2), static_cast<float>(t1), b22, static_cast<float>(double{b22} - b12),
                                                static_cast<float>(b21 - t2)};
          for (int product = 0; product < kStrassenProducts; ++product) to[product * size + i] = all[product];
        }
        to += kStrassenProducts * size;
      }
    sums_ = std::move(pages);
    multiplies_ = true;
  });
}

void Strassen::run(StrassenJob& job, std::int64_t unit) const {
  job.product.w = sums_.data() + unit * unit_floats() * static_cast<std::int64_t>(sizeof(float));
  job.partner_column = units_ * kPanel;
  job.memory = layout_at<StrassenMemory>(job.product.scratch, k_, units_);
  table_.run(job);
}

}  // namespace ingot
