// The Python module ingot._native: engines, sessions, the kernel table and where a program's buffers would lie.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <new>

#include "arrays.h"
#include "copy_strided.h"
#include "error.h"
#include "level.h"
#include "registry.h"
#include "session.h"
#include "thread_pool.h"
#include "version.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ingot {

void bind_sampling(nb::module_& m);  // bindings_sample.cpp

namespace {

// ---- errors -----------------------------------------------------------------------------------------------

PyObject* error_type = nullptr;  // ingot._native.Error

void raise(const char* error_code, const char* message) {
  const nb::object text = nb::steal(
      PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::char_traits<char>::length(message)), "replace"));
  const nb::object error = nb::steal(PyObject_CallFunctionObjArgs(error_type, text.ptr(), nullptr));
  if (!error.is_valid()) return;  // the interpreter has set its own
  const nb::object name = nb::steal(PyUnicode_FromString(error_code));
  if (PyObject_SetAttrString(error.ptr(), "code", name.ptr()) == 0) PyErr_SetObject(error_type, error.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    raise(error.code, error.what());
  } catch (const std::bad_alloc&) {
    raise(code::memory, "the process is out of memory");
  }
}

// ---- sessions ---------------------------------------------------------------------------------------------

using Description = std::tuple<std::string, std::string, nb::object>;  // name, dtype, list of dimensions

/// Lists of ints and strings; a dimension is an int, a symbol's name, or [operator, operands…], as in a program.
nb::object to_python(const Json& json) {
  if (json.is_number_integer()) return nb::int_(json.get<std::int64_t>());
  if (json.is_string()) return nb::str(json.get_ref<const std::string&>().c_str());
  nb::list list;
  for (const Json& part : json) list.append(to_python(part));
  return list;
}

Description describe_buffer(const Program& program, const std::string& name, int index) {
  const Buffer& buffer = program.buffer(index);
  nb::list dims;
  for (DimId id : buffer.shape) dims.append(to_python(program.dims.json(id)));
  return {name, std::string(name_of(buffer.dtype)), dims};
}

/// [(dtype, shape), …] of a call's operands or results.
nb::list describe_views(std::span<const TensorView> views) {
  nb::list list;
  for (const TensorView& view : views) {
    nb::list shape;
    for (int d = 0; d < view.rank; ++d) shape.append(view.shape[d]);
    list.append(nb::make_tuple(std::string(name_of(view.dtype)), shape));
  }
  return list;
}

/// Carries host calls to a Python callable host(call, operands, results, symbols) -> arrays.
Host host_of(const nb::object& callable) {
  if (callable.is_none()) return nullptr;
  return [callable](const HostRequest& request) {
    const nb::gil_scoped_acquire gil;
    nb::list operands;
    for (const TensorView& view : request.in) operands.append(to_numpy(view));
    const nb::object returned =
        callable(request.call, operands, to_python(request.results), to_python(request.symbols));
    std::vector<HostArray> results;
    for (nb::handle array : returned) {
      std::vector<ArrayBuffer> kept;
      kept.emplace_back(array, "a result of " + request.what.name);
      const TensorView view = kept.front().view();
      results.push_back({view, keep_without_gil(std::move(kept))});
    }
    return results;
  };
}

class PySession {
 public:
  PySession(std::shared_ptr<const Engine> engine, const std::string& entry, int threads, std::int64_t kv_blocks,
            std::int64_t kv_block_size, const nb::object& host, std::int64_t rounds)
      : session_(std::move(engine), entry, {threads, {kv_blocks, kv_block_size}, rounds}, host_of(host)) {
    const Program& program = session_.program();
    for (int input : program.inputs) {
      input_names_.push_back(interned(program.buffer(input).name));
      input_labels_.push_back("input " + quote(program.buffer(input).name));
    }
    for (const Output& output : program.outputs) output_names_.push_back(interned(output.name));
  }

  std::vector<Description> inputs() const {
    std::vector<Description> list;
    for (int input : session_.program().inputs)
      list.push_back(describe_buffer(session_.program(), session_.program().buffer(input).name, input));
    return list;
  }

  std::vector<Description> outputs() const {
    std::vector<Description> list;
    for (const Output& output : session_.program().outputs)
      list.push_back(describe_buffer(session_.program(), output.name, output.buffer));
    return list;
  }

  /// `out`: arrays to write results into, by name; the others get fresh ones.
  nb::dict run(const nb::dict& feeds, const nb::dict& out) {
    const Feeds arrays(*this, feeds);
    if (out.size() != 0) check_out_names(out);
    Session::Run run(session_);
    std::vector<nb::object> fresh(output_names_.size());  // arrays that the run writes itself
    // A given array may share memory with an input, so it waits for the end.
    const Results make = [&](std::size_t i, const TensorView& view) -> std::byte* {
      const nb::gil_scoped_acquire gil;
      if (PyDict_GetItemWithError(out.ptr(), output_names_[i].ptr()) != nullptr) return nullptr;
      fresh[i] = empty_numpy(view);
      return ArrayBuffer(fresh[i], "result", true).view().as<std::byte>();
    };
    {
      const nb::gil_scoped_release released;
      run.execute(arrays.views, make);
    }
    nb::dict results;
    const std::span<const TensorView> outputs = run.outputs();
    std::vector<ArrayBuffer> targets;
    targets.reserve(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      nb::object target = nb::borrow(PyDict_GetItemWithError(out.ptr(), output_names_[i].ptr()));
      const bool given = target.is_valid();
      if (!given) target = fresh[i].is_valid() ? fresh[i] : empty_numpy(outputs[i]);
      targets.emplace_back(target, given ? output_label(i) : "result", true);
      if (given) check_out(i, targets.back().view(), outputs[i]);
      results[output_names_[i]] = std::move(target);
    }
    {
      const nb::gil_scoped_release released;
      for (std::size_t i = 0; i < outputs.size(); ++i)
        if (!fresh[i].is_valid()) copy_strided(outputs[i], targets[i].view());
    }
    return results;
  }

  nb::list profile(const nb::dict& feeds) {
    const Feeds arrays(*this, feeds);
    std::vector<CallProfile> calls;
    {
      const nb::gil_scoped_release released;
      calls = session_.profile(arrays.views);
    }
    nb::list result;
    for (const CallProfile& profiled : calls) {
      const Call& call = session_.program().calls[static_cast<std::size_t>(profiled.call)];
      nb::dict item;
      item["call"] = profiled.call;
      item[call.host ? "host" : call.control == Control::none ? "kernel" : "control"] = call.name;
      item["where"] = call.where;
      item["ns"] = profiled.nanoseconds;
      item["waited_ns"] = profiled.waited;
      item["bytes"] = profiled.bytes;
      item["in"] = describe_views(profiled.in);
      item["out"] = describe_views(profiled.out);
      result.append(item);
    }
    return result;
  }

  std::map<std::string, std::uint64_t> memory() const {
    const MemoryReport report = session_.memory();
    return {{"weights", report.weights},
            {"arena", report.arena},
            {"arena_lower_bound", report.arena_lower_bound},
            {"state", report.state}};
  }

  std::map<std::string, std::uint64_t> planned(const std::map<std::string, std::int64_t>& symbols) const {
    const PlannedMemory found = session_.planned(symbols);
    return {{"buffers", found.buffers},
            {"lower_bound", found.lower_bound},
            {"working", found.working},
            {"arena", found.arena},
            {"most_at", static_cast<std::uint64_t>(found.most_at)}};
  }

  int threads() const { return session_.threads(); }

 private:
  Session session_;
  std::vector<nb::object> input_names_, output_names_;
  std::vector<std::string> input_labels_;  // for messages

  static nb::object interned(const std::string& name) { return nb::steal(PyUnicode_InternFromString(name.c_str())); }

  std::string output_label(std::size_t i) const { return "out[" + nb::cast<std::string>(nb::repr(output_names_[i])) + "]"; }

  void check_out(std::size_t i, const TensorView& given, const TensorView& result) const {
    if (given.dtype == result.dtype && given.rank == result.rank &&
        std::equal(given.shape, given.shape + given.rank, result.shape))
      return;
    throw Error(code::input, output_label(i) + " is " + describe(given) + ", the result " + describe(result));
  }

  void check_out_names(const nb::dict& out) const {
    std::string known;
    for (const nb::object& name : output_names_) known += (known.empty() ? "" : ", ") + nb::cast<std::string>(name);
    for (auto [name, array] : out) {
      bool found = false;
      for (const nb::object& output : output_names_) found = found || output.equal(name);
      if (!found)
        throw Error(code::input,
                    "out names " + nb::cast<std::string>(nb::repr(name)) + "; the outputs are " + known);
    }
  }

  /// The arrays of a dict in the order of the inputs.
  struct Feeds {
    std::vector<ArrayBuffer> buffers;
    std::vector<TensorView> views;

    Feeds(const PySession& session, const nb::dict& feeds) {
      const std::size_t count = session.input_names_.size();
      buffers.reserve(count);
      views.reserve(count);
      for (std::size_t i = 0; i < count; ++i) {
        PyObject* array = PyDict_GetItemWithError(feeds.ptr(), session.input_names_[i].ptr());
        if (array == nullptr) session.refuse_names(feeds);
        try {
          buffers.emplace_back(array, session.input_labels_[i]);
        } catch (const Error& error) {
          const Program& program = session.session_.program();
          throw Error(error.code, std::string(error.what()) + "; " + program.spec(program.inputs[i]) + " is needed");
        }
        views.push_back(buffers.back().view());
      }
      if (feeds.size() != count) session.refuse_names(feeds);
    }
  };

  /// Says which names are missing and which nobody knows.
  [[noreturn]] void refuse_names(const nb::dict& feeds) const {
    std::string missing, unknown, known;
    for (const nb::object& name : input_names_) {
      const std::string text = quote(nb::cast<std::string>(name));
      known += (known.empty() ? "" : ", ") + text;
      if (!feeds.contains(name)) missing += (missing.empty() ? "" : ", ") + text;
    }
    for (auto [name, array] : feeds) {
      bool found = false;
      for (const nb::object& input : input_names_) found = found || input.equal(name);
      if (!found) unknown += (unknown.empty() ? "" : ", ") + nb::cast<std::string>(nb::repr(name));
    }
    throw Error(code::input, "the inputs are " + (known.empty() ? "none" : known) +
                                 (missing.empty() ? "" : "; missing: " + missing) +
                                 (unknown.empty() ? "" : "; unknown: " + unknown));
  }
};

// ---- engines ----------------------------------------------------------------------------------------------

std::shared_ptr<const Engine> open_engine(const std::string& path, const std::string& weights) {
  if (weights != "mapped" && weights != "resident") {
    throw Error(code::argument, "weights: " + quote(weights) + " is neither 'mapped' nor 'resident'");
  }
  const nb::gil_scoped_release released;
  return Engine::open(path, weights == "mapped" ? WeightPlace::mapped : WeightPlace::resident);
}

/// A container of arrays, which it keeps.
Container container_of(std::string header, const nb::dict& tensors) {
  const nb::object require = nb::module_::import_("numpy").attr("require");
  std::vector<ArrayBuffer> buffers;
  std::vector<Tensor> described;
  for (auto [name, array] : tensors) {
    Tensor tensor;
    tensor.name = nb::cast<std::string>(name);
    buffers.emplace_back(require(array, "requirements"_a = "CA"), "tensor " + quote(tensor.name));
    const TensorView& view = buffers.back().view();
    tensor.dtype = view.dtype;
    tensor.shape.assign(view.shape, view.shape + view.rank);
    tensor.data = view.as<const std::byte>();
    tensor.bytes = static_cast<std::uint64_t>(view.elements()) * size_of(view.dtype);
    described.push_back(std::move(tensor));
  }
  return Container::from_memory(std::move(header), std::move(described), keep_without_gil(std::move(buffers)));
}

std::shared_ptr<const Engine> engine_from_memory(const nb::bytes& header, const nb::dict& tensors) {
  return std::make_shared<const Engine>(container_of(std::string(header.c_str(), header.size()), tensors));
}

std::shared_ptr<const Engine> engine_with_tensors(const Engine& like, const nb::dict& tensors) {
  return std::make_shared<const Engine>(container_of(like.container().header(), tensors), like);
}

using Bytes = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>;

const Tensor& tensor_of(const Engine& engine, const std::string& name) {
  const Tensor* tensor = engine.container().find(name);
  if (tensor == nullptr) throw Error(code::argument, "the engine has no tensor " + quote(name));
  return *tensor;
}

Bytes tensor_bytes(const Engine& engine, const std::string& name) {
  const Tensor& tensor = tensor_of(engine, name);
  return Bytes(tensor.data, {static_cast<std::size_t>(tensor.bytes)}, nb::find(engine));
}

nb::tuple tensor_spec(const Engine& engine, const std::string& name) {
  const Tensor& tensor = tensor_of(engine, name);
  return nb::make_tuple(std::string(name_of(tensor.dtype)), tensor.shape);
}

std::vector<std::string> entries(const Engine& engine, const std::string& target) {
  if (target != "cpu") throw Error(code::argument, "this library runs programs for 'cpu', not " + quote(target));
  return engine.entries();
}

nb::bytes header_of(const Engine& engine) {
  const std::string& header = engine.container().header();
  return nb::bytes(header.data(), header.size());
}

// ---- functions of the module ------------------------------------------------------------------------------

std::vector<std::string> level_names(std::span<const Level> levels) {
  std::vector<std::string> names;
  for (Level level : levels) names.emplace_back(name_of(level));
  return names;
}

nb::list kernels() {
  nb::list list;
  for (const KernelEntry& entry : kernel_table()) {
    nb::dict item;
    item["name"] = entry.info->name;
    item["version"] = entry.info->version;
    item["operands"] = entry.info->operands;
    item["params"] = entry.info->params;
    item["levels"] = level_names(entry.levels);
    list.append(item);
  }
  return list;
}

/// Where the buffers of a program of one stage lie for given symbols.
nb::dict plan_layout(const std::string& json, const std::map<std::string, std::int64_t>& symbols) {
  const Program program = parse_program(parse_json(json, code::program, "the program"), "main");
  if (program.stages != 1) throw Error(code::argument, "the program binds symbols while it runs");
  std::vector<std::int64_t> values;
  for (const Symbol& symbol : program.dims.symbols()) {
    const auto found = symbols.find(symbol.name);
    if (found == symbols.end()) throw Error(code::argument, "the symbol " + quote(symbol.name) + " has no value");
    values.push_back(found->second);
  }
  LoadedProgram loaded;
  loaded.program = &program;
  loaded.stages = find_stages(program);
  const StagePlan plan = make_plan({loaded, 0, 1, values, nullptr, {}}, PlanParts::layout);
  nb::list buffers;
  for (const Lifetime& life : loaded.stages[0].lifetimes) {
    const auto b = static_cast<std::size_t>(life.buffer);
    nb::dict item;
    item["buffer"] = life.buffer;
    item["offset"] = plan.offsets[b];
    item["bytes"] = plan.bytes[b];
    item["first"] = life.first;
    item["last"] = life.last;
    buffers.append(item);
  }
  nb::dict result;
  result["arena"] = plan.layout.bytes;
  result["lower_bound"] = plan.layout.lower_bound;
  result["buffers"] = buffers;
  return result;
}

}  // namespace
}  // namespace ingot

NB_MODULE(_native, m) {
  using namespace ingot;
  nb::set_leak_warnings(false);  // engines may live in module globals until the process ends
  m.doc() = "The native core of ingot: reads, plans and runs engines.";
  error_type = PyErr_NewExceptionWithDoc("ingot._native.Error", "A typed error; .code says which kind.",
                                         PyExc_Exception, nullptr);
  m.attr("Error") = nb::borrow(error_type);
  m.attr("RED_ZONE") = kRedZone;
  m.attr("FORMATS") = nb::make_tuple(kOldestFormat, kNewestFormat);
  m.attr("PROGRAMS") = nb::make_tuple(kOldestProgram, kNewestProgram);
  nb::register_exception_translator(translate);

  m.def("level", [] { return std::string(name_of(current_level())); });
  m.def("levels", [] { return level_names(usable_levels()); });
  m.def("kernels", kernels);
  m.def("default_threads", default_threads);
  m.def("is_newer", [](const std::string& producer) { return is_newer(producer); }, "producer"_a);
  m.def("who_reads", [](const std::string& producer) { return who_reads(producer); }, "producer"_a);
  m.def("plan_layout", plan_layout, "program_json"_a, "symbols"_a);
  bind_sampling(m);

  nb::class_<Engine>(m, "Engine")
      .def_static("open", open_engine, "path"_a, "weights"_a = "mapped")
      .def_static("from_memory", engine_from_memory, "header_json"_a, "tensors"_a)
      .def("with_tensors", engine_with_tensors, "tensors"_a)
      .def("header", header_of)
      .def("tensor", tensor_bytes, "name"_a)
      .def("tensor_spec", tensor_spec, "name"_a)
      .def("entries", entries, "target"_a = "cpu")
      .def(
          "host_calls",
          [](const Engine& engine, const std::string& entry) { return engine.program(entry).host_operations(); },
          "entry"_a = "main")
      .def_prop_ro("bytes_mapped", [](const Engine& engine) { return engine.container().bytes_mapped(); });

  nb::class_<PySession>(m, "Session")
      .def(nb::init<std::shared_ptr<const Engine>, const std::string&, int, std::int64_t, std::int64_t,
                    const nb::object&, std::int64_t>(),
           "engine"_a, "entry"_a = "main", "threads"_a = 0, "kv_blocks"_a = 0, "kv_block_size"_a = 16,
           "host"_a = nb::none(), "rounds"_a = kMostRounds)
      .def_prop_ro("inputs", &PySession::inputs)
      .def_prop_ro("outputs", &PySession::outputs)
      .def_prop_ro("threads", &PySession::threads)
      .def("run", &PySession::run, "feeds"_a, "out"_a = nb::dict())
      .def("profile", &PySession::profile, "feeds"_a)
      .def("memory", &PySession::memory)
      .def("planned", &PySession::planned, "symbols"_a);
}
