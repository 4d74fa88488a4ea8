// Small questions about a TensorView.
#include "tensor.h"

namespace ingot {

std::int64_t TensorView::elements() const noexcept {
  std::int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= shape[i];
  return count;
}

bool TensorView::contiguous() const noexcept {
  std::int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && stride[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

std::int64_t bytes_of(const TensorView& view) noexcept { return view.elements() * static_cast<std::int64_t>(size_of(view.dtype)); }

std::string describe(const TensorView& view) {
  std::string text(name_of(view.dtype));
  for (int i = 0; i < view.rank; ++i) text += (i == 0 ? "[" : ", ") + std::to_string(view.shape[i]);
  return text + (view.rank == 0 ? "[]" : "]");
}

}  // namespace ingot
