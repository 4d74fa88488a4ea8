// NumPy arrays at the border of the module: seen as TensorViews on the way in, made fresh on the way out.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "kernel.h"

namespace ingot {

/// A NumPy array's memory, kept alive and exported while this object lives. Created and destroyed with the GIL held.
class ArrayBuffer {
 public:
  /// Throws Error("input") naming `who` when `array` is no NumPy array of a dtype and rank that the core stores. No
  /// copy is made: any strides are fine.
  ArrayBuffer(nanobind::handle array, const std::string& who, bool writable = false);
  ~ArrayBuffer();
  ArrayBuffer(ArrayBuffer&& other) noexcept;
  ArrayBuffer& operator=(ArrayBuffer&&) = delete;

  const TensorView& view() const noexcept { return view_; }

 private:
  Py_buffer buffer_ = {};
  TensorView view_;
};

/// A fresh NumPy array of the dtype and shape of `view`, not filled.
nanobind::object empty_numpy(const TensorView& view);

/// A fresh NumPy array with the elements of `view`.
nanobind::object to_numpy(const TensorView& view);

/// Keeps ArrayBuffers for C++ code that may let go of them on any thread, without the GIL.
std::shared_ptr<void> keep_without_gil(std::vector<ArrayBuffer>&& buffers);

}  // namespace ingot
