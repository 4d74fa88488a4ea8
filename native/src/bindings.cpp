// The Python module ingot._native.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "level.h"
#include "registry.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.def("level", [] { return std::string(ingot::name_of(ingot::current_level())); });
}
