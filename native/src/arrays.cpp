// The buffer protocol does the work; it has no names for bfloat16 and float8, which cross as views of unsigned integers of the same memory.
#include "arrays.h"

#include <nanobind/stl/string.h>

#include <utility>

#include "copy_strided.h"
#include "error.h"

namespace nb = nanobind;

namespace ingot {
namespace {

/// Whether NumPy itself knows no such type.
bool is_foreign(DType dtype) { return dtype == DType::bfloat16 || dtype == DType::float8_e4m3fn; }

/// What is needed of numpy and ml_dtypes, looked up on first use and kept for the life of the process.
struct Numpy {
  nb::object empty;
  nb::object dtypes[kDTypeCount];  // numpy.dtype objects, by DType
  nb::object view_name = nb::steal(PyUnicode_InternFromString("view"));
  nb::object dtype_name = nb::steal(PyUnicode_InternFromString("dtype"));

  static const Numpy& get() {
    static const Numpy* numpy = new Numpy;
    return *numpy;
  }

  nb::handle of(DType dtype) const { return dtypes[static_cast<int>(dtype)]; }

 private:
  Numpy() {
    const nb::module_ numpy = nb::module_::import_("numpy");
    const nb::module_ ml_dtypes = nb::module_::import_("ml_dtypes");
    empty = numpy.attr("empty");
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto dtype = static_cast<DType>(i);
      const std::string name(name_of(dtype));
      const nb::object type = is_foreign(dtype) ? nb::object(ml_dtypes.attr(name.c_str())) : nb::cast<nb::object>(nb::str(name.c_str()));
      dtypes[i] = numpy.attr("dtype")(type);
    }
  }
};

DType dtype_of(nb::handle array, const std::string& who) {
  const Numpy& numpy = Numpy::get();
  const nb::object dtype = nb::steal(PyObject_GetAttr(array.ptr(), numpy.dtype_name.ptr()));
  if (!dtype.is_valid()) {
    PyErr_Clear();
    throw Error(code::input, who + ": a NumPy array is needed, not " +
                                 nb::cast<std::string>(nb::str(array.type().attr("__name__"))));
  }
  // Native dtypes are one object each in NumPy; equality is for those that came through pickle or another module.
  for (int i = 0; i < kDTypeCount; ++i) {
    if (dtype.is(numpy.dtypes[i])) return static_cast<DType>(i);
  }
  for (int i = 0; i < kDTypeCount; ++i) {
    if (dtype.equal(numpy.dtypes[i])) return static_cast<DType>(i);
  }
  const auto text = nb::cast<std::string>(nb::str(dtype));
  if (nb::getattr(dtype, "isnative", nb::bool_(true)).is(nb::bool_(false)) && text.find('[') == std::string::npos)
    throw Error(code::input, who + " is " + text + ", in the other byte order: pass " +
                                 "value.astype(value.dtype.newbyteorder('='))");
  throw Error(code::input, who + " is an array of " + text + ", which cannot be given to an engine");
}

}  // namespace

ArrayBuffer::ArrayBuffer(nb::handle array, const std::string& who, bool writable) {
  view_.dtype = dtype_of(array, who);
  nb::object exported = nb::borrow(array);
  if (is_foreign(view_.dtype))
    exported = array.attr(Numpy::get().view_name)(Numpy::get().of(size_of(view_.dtype) == 1 ? DType::uint8 : DType::uint16));
  if (PyObject_GetBuffer(exported.ptr(), &buffer_, writable ? PyBUF_STRIDED : PyBUF_STRIDED_RO) != 0) {
    if (!writable) throw nb::python_error();
    PyErr_Clear();
    throw Error(code::input, who + ": the array is read-only");
  }
  view_.data = buffer_.buf;
  view_.rank = buffer_.ndim;
  std::string why;
  if (buffer_.ndim > kMaxRank)
    why = " has " + std::to_string(buffer_.ndim) + " dimensions, more than " + std::to_string(kMaxRank);
  for (int i = 0; why.empty() && i < buffer_.ndim; ++i) {
    view_.shape[i] = buffer_.shape[i];
    view_.stride[i] = buffer_.strides[i] / buffer_.itemsize;
    if (buffer_.strides[i] % buffer_.itemsize != 0 && buffer_.shape[i] > 1)
      why = " has a stride of " + std::to_string(buffer_.strides[i]) + " bytes, which is no whole number of elements: " +
            "pass a copy";
  }
  if (why.empty()) return;
  PyBuffer_Release(&buffer_);
  throw Error(code::input, who + why);
}

ArrayBuffer::~ArrayBuffer() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

ArrayBuffer::ArrayBuffer(ArrayBuffer&& other) noexcept
    : buffer_(std::exchange(other.buffer_, {})), view_(other.view_) {}

nb::object empty_numpy(const TensorView& view) {
  const Numpy& numpy = Numpy::get();
  const nb::object shape = nb::steal(PyTuple_New(view.rank));
  for (int i = 0; i < view.rank; ++i) NB_TUPLE_SET_ITEM(shape.ptr(), i, PyLong_FromLongLong(view.shape[i]));
  try {
    return numpy.empty(shape, numpy.dtypes[static_cast<int>(view.dtype)]);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_MemoryError)) throw;
    throw Error(code::memory, "there is no memory for an array of " +
                                  std::to_string(static_cast<std::uint64_t>(view.elements()) * size_of(view.dtype)) +
                                  " bytes");
  }
}

nb::object to_numpy(const TensorView& view) {
  nb::object array = empty_numpy(view);
  const ArrayBuffer target(array, "result", true);
  copy_strided(view, target.view());
  return array;
}

std::shared_ptr<void> keep_without_gil(std::vector<ArrayBuffer>&& buffers) {
  return {new std::vector<ArrayBuffer>(std::move(buffers)), [](void* kept) {
            const nb::gil_scoped_acquire gil;
            delete static_cast<std::vector<ArrayBuffer>*>(kept);
          }};
}

}  // namespace ingot
