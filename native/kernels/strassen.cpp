// What is made of a weight once for Strassen's step.
#include "strassen.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "../src/thread_pool.h"
#include "check.h"

namespace ingot {

void Strassen::prepare(const std::byte* panels, int threads) const {
  std::call_once(once_, [&] {
    Pages sums(static_cast<std::size_t>(units_ * unit_floats()) * sizeof(float), "the sums of a weight for Strassen's algorithm");
    const std::size_t inputs = static_cast<std::size_t>(k_ / 2);
    std::vector<std::vector<float>> heights(static_cast<std::size_t>(threads), std::vector<float>(inputs + kPanel));
    std::atomic<bool> suits = true;
    ThreadPool::get(threads).run([&](int worker) {
      const Share share = share_of(units_, worker, threads);
      float* const to = reinterpret_cast<float*>(sums.data());
      for (std::int64_t unit = share.first; unit < share.last && suits; ++unit) {
        const std::int64_t partner = unit + units_;
        const int columns = static_cast<int>(std::min<std::int64_t>(kPanel, n_ - partner * kPanel));
        if (!product_.prepare({panels + unit * panel_bytes_, panels + partner * panel_bytes_, k_, columns, to + unit * unit_floats(),
                               heights[static_cast<std::size_t>(worker)].data()}))
          suits = false;
      }
    });
    if (!suits) return;
    float all = 0;  // squares
    std::vector<float>& squared = heights[0];
    for (std::size_t i = 0; i < inputs; ++i) {
      float height = kLeastHeight;
      for (const std::vector<float>& part : heights) height = std::max(height, part[i]);
      squared[i] = height * height;
      all += squared[i];
    }
    if (!(all <= static_cast<float>(inputs) * kMostHeights * kMostHeights)) return;
    sums_ = std::move(sums);
    squared_heights_ = std::move(squared);
    multiplies_ = true;
  });
}

void Strassen::run(StrassenJob& job, const std::byte* panels, std::int64_t unit) const {
  job.product.w = panels + unit * panel_bytes_;
  job.sums = reinterpret_cast<const float*>(sums_.data()) + unit * unit_floats();
  job.squared_heights = squared_heights_.data();
  job.partner_column = units_ * kPanel;
  job.memory = layout_at<StrassenMemory>(job.product.scratch, k_, units_);
  product_.run(job);
}

}  // namespace ingot
