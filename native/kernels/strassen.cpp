// The sums of a weight's panels for Strassen's step.
#include "strassen.h"

#include <cmath>
#include <utility>

namespace ingot {

void Strassen::prepare(const float* panels) const {
  std::call_once(once_, [&] {
    Pages pages(static_cast<std::size_t>(units_ * unit_floats()) * sizeof(float), "the sums of a weight for Strassen's algorithm");
    float* to = reinterpret_cast<float*>(pages.data());
    bool finite = true;
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
          for (const float value : {b11, b21, b12, b22}) finite &= std::abs(value) <= kMostOfWeights;
        }
        to += kStrassenProducts * size;
      }
    finite_ = finite;
    if (finite) sums_ = std::move(pages);
  });
}

void Strassen::run(StrassenJob& job, std::int64_t unit) const {
  job.product.w = sums_.data() + unit * unit_floats() * static_cast<std::int64_t>(sizeof(float));
  job.partner_column = units_ * kPanel;
  job.memory = layout_at<StrassenMemory>(job.product.scratch, k_, units_);
  table_.run(job);
}

}  // namespace ingot
