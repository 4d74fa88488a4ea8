// The C interface: the same engines and sessions behind opaque pointers, exceptions turned into codes.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "copy_strided.h"
#include "error.h"
#include "ingot.h"
#include "session.h"
#include "version.h"

using namespace ingot;

static_assert(INGOT_MAX_RANK == kMaxRank && INGOT_BOOL == static_cast<int>(DType::boolean) &&
              INGOT_INT64 == static_cast<int>(DType::int64));

namespace {

constexpr const char* kOutOfMemory = "the process is out of memory";

thread_local std::string message_memory;
thread_local const char* last_message = "";
thread_local const char* last_code = "";

int failed(const char* error_code, const char* message) noexcept {
  last_code = error_code;
  try {
    message_memory = message;
    last_message = message_memory.c_str();
  } catch (const std::bad_alloc&) {
    last_message = kOutOfMemory;
  }
  return -1;
}

/// Calls `action`, which returns what the C function returns. No exception of any kind leaves it.
template <class Action>
int guarded(Action action) noexcept {
  try {
    return action();
  } catch (const Error& error) {
    return failed(error.code, error.what());
  } catch (const std::bad_alloc&) {
    return failed(code::memory, kOutOfMemory);
  } catch (const std::exception& error) {
    return failed(code::internal, error.what());
  } catch (...) {
    return failed(code::internal, "an exception of an unknown type");
  }
}

/// Throws Error("argument") for a pointer that the caller must give.
void need(const void* pointer, const char* name) {
  if (pointer == nullptr) throw Error(code::argument, std::string(name) + " is NULL");
}

/// The same for an array of `needed` members; throws too when the caller's array has another number of them.
void need_array(const void* array, const char* name, int count, std::size_t needed) {
  if (count < 0 || static_cast<std::size_t>(count) != needed) {
    throw Error(code::argument, std::string(name) + ": " + std::to_string(needed) + " are needed, and the count is " +
                                    std::to_string(count));
  }
  if (needed != 0) need(array, name);
}

bool is_known(ingot_dtype dtype) { return dtype >= INGOT_FLOAT32 && dtype <= INGOT_BOOL; }

/// Whether the bytes of an array, and the strides within it, can be counted: a dimension of 0 counts as 1.
bool countable(const TensorView& view) {
  auto bytes = static_cast<std::int64_t>(size_of(view.dtype));
  for (int d = 0; d < view.rank; ++d)
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(view.shape[d], 1), &bytes)) return false;
  return true;
}

/// Input `index` of a run as the session takes it. Throws Error("input") for one whose memory cannot be read as it says.
TensorView view_of(const ingot_tensor& input, std::size_t index, const std::string& name) {
  const std::string who = "input " + std::to_string(index) + " (" + quote(name) + "): ";
  if (!is_known(input.dtype))
    throw Error(code::input, who + "dtype " + std::to_string(static_cast<int>(input.dtype)) + " is no ingot_dtype");
  if (input.rank < 0 || input.rank > kMaxRank)
    throw Error(code::input, who + "rank " + std::to_string(input.rank) + " is not in 0 … " + std::to_string(kMaxRank));
  TensorView view;
  view.data = input.data;
  view.dtype = static_cast<DType>(input.dtype);
  view.rank = input.rank;
  std::copy(input.shape, input.shape + input.rank, view.shape);
  const auto* negative = std::find_if(view.shape, view.shape + view.rank, [](std::int64_t size) { return size < 0; });
  if (negative != view.shape + view.rank) {
    throw Error(code::input, who + "shape[" + std::to_string(negative - view.shape) + "] is negative (" +
                                 std::to_string(*negative) + ")");
  }
  if (!countable(view)) throw Error(code::input, who + describe(view) + " has more bytes than memory can have");
  if (view.data == nullptr && view.elements() != 0)
    throw Error(code::input, who + "data is NULL, and " + describe(view) + " has elements");
  set_row_major(view);
  return view;
}

/// What an entry declares, in C structures. The text lives in `texts`, which never moves its strings.
struct Ports {
  std::deque<std::string> texts;
  std::vector<ingot_symbol> symbols;
  std::vector<ingot_port> inputs, outputs;

  explicit Ports(const Program& program) {
    for (const Symbol& symbol : program.dims.symbols()) {
      if (!symbol.unbacked) symbols.push_back({keep(symbol.name), symbol.min, symbol.max});
    }
    for (int input : program.inputs) inputs.push_back(port(program, program.buffer(input).name, input));
    for (const Output& output : program.outputs) outputs.push_back(port(program, output.name, output.buffer));
  }

 private:
  const char* keep(const std::string& text) { return texts.emplace_back(text).c_str(); }

  ingot_port port(const Program& program, const std::string& name, int index) {
    const Buffer& buffer = program.buffer(index);
    ingot_port result = {keep(name),
                         keep(program.spec(index)),
                         static_cast<ingot_dtype>(buffer.dtype),
                         static_cast<int>(buffer.shape.size()),
                         {}};
    for (std::size_t i = 0; i < buffer.shape.size(); ++i) {
      const DimNode& node = program.dims.node(buffer.shape[i]);
      result.shape[i] = node.op == DimOp::constant ? node.value : -1;
    }
    return result;
  }
};

std::string entry_name(const char* entry) { return entry == nullptr ? "main" : entry; }

}  // namespace

struct ingot_engine {
  std::shared_ptr<const Engine> engine;
  std::mutex mutex;
  std::map<std::string, Ports> ports;

  const Ports& at(const char* entry) {
    const std::string name = entry_name(entry);
    const Program& program = engine->program(name);
    const std::lock_guard lock(mutex);
    return ports.try_emplace(name, program).first->second;
  }
};

struct ingot_session {
  Session session;
  std::vector<std::vector<std::byte>> results;  // contiguous copies of the outputs

  ingot_session(std::shared_ptr<const Engine> engine, const std::string& entry, const SessionOptions& options)
      : session(std::move(engine), entry, options, nullptr), results(session.program().outputs.size()) {}

  void run(const ingot_tensor* inputs, ingot_tensor* outputs);
};

void ingot_session::run(const ingot_tensor* inputs, ingot_tensor* outputs) {
  const Program& program = session.program();
  std::vector<TensorView> arrays(program.inputs.size());
  for (std::size_t i = 0; i < arrays.size(); ++i)
    arrays[i] = view_of(inputs[i], i, program.buffer(program.inputs[i]).name);
  Session::Run run(session);
  run.execute(arrays);  // the inputs may lie in `results`, which are written when all is done
  const std::span<const TensorView> views = run.outputs();
  for (std::size_t i = 0; i < views.size(); ++i)
    results[i].resize(static_cast<std::size_t>(views[i].elements()) * size_of(views[i].dtype));
  for (std::size_t i = 0; i < views.size(); ++i) {  // nothing fails from here on: a failed run leaves `outputs` alone
    TensorView dense = views[i];
    dense.data = results[i].data();
    set_row_major(dense);
    copy_strided(views[i], dense);
    outputs[i] = {dense.data, static_cast<ingot_dtype>(dense.dtype), dense.rank, {}};
    std::copy(dense.shape, dense.shape + dense.rank, outputs[i].shape);
  }
}

const char* ingot_version(void) { return library_version(); }
const char* ingot_last_error(void) { return last_message; }
const char* ingot_last_error_code(void) { return last_code; }

size_t ingot_dtype_size(ingot_dtype dtype) { return is_known(dtype) ? size_of(static_cast<DType>(dtype)) : 0; }
const char* ingot_dtype_name(ingot_dtype dtype) {
  return is_known(dtype) ? name_of(static_cast<DType>(dtype)).data() : "unknown";
}

int ingot_open(const char* path, ingot_engine** engine) {
  return guarded([&] {
    need(engine, "engine");
    *engine = nullptr;
    need(path, "path");
    auto opened = std::make_unique<ingot_engine>();
    opened->engine = Engine::open(path);
    *engine = opened.release();
    return 0;
  });
}

void ingot_close(ingot_engine* engine) { delete engine; }

namespace {

/// Points `array` at the `members` of what an entry declares, and gives their number.
template <class T>
int declared(ingot_engine* engine, const char* entry, std::vector<T> Ports::*members, const T** array,
             const char* name) {
  return guarded([&] {
    need(array, name);
    *array = nullptr;
    need(engine, "engine");
    const std::vector<T>& found = engine->at(entry).*members;
    *array = found.data();
    return static_cast<int>(found.size());
  });
}

/// The value of every symbol of a program from the caller's, who gives none for those that a run binds.
std::vector<std::int64_t> bound(const Program& program, const std::int64_t* values) {
  std::vector<std::int64_t> all;
  std::size_t given = 0;
  for (const Symbol& symbol : program.dims.symbols()) {
    all.push_back(symbol.unbacked ? 0 : values[given]);
    if (symbol.unbacked) continue;
    if (all.back() < symbol.min || all.back() > symbol.max) {
      throw Error(code::argument, "values[" + std::to_string(given) + "]: " + symbol.name + "=" +
                                      std::to_string(all.back()) + " is not in " + std::to_string(symbol.min) +
                                      " … " + std::to_string(symbol.max));
    }
    ++given;
  }
  return all;
}

}  // namespace

int ingot_symbols(ingot_engine* engine, const char* entry, const ingot_symbol** symbols) {
  return declared(engine, entry, &Ports::symbols, symbols, "symbols");
}

int ingot_inputs(ingot_engine* engine, const char* entry, const ingot_port** ports) {
  return declared(engine, entry, &Ports::inputs, ports, "ports");
}

int ingot_outputs(ingot_engine* engine, const char* entry, const ingot_port** ports) {
  return declared(engine, entry, &Ports::outputs, ports, "ports");
}

int ingot_input_shapes(ingot_engine* engine, const char* entry, const int64_t* values, int value_count,
                       ingot_tensor* inputs, int input_count) {
  return guarded([&] {
    need(engine, "engine");
    const Ports& ports = engine->at(entry);
    need_array(values, "values", value_count, ports.symbols.size());
    need_array(inputs, "inputs", input_count, ports.inputs.size());
    const Program& program = engine->engine->program(entry_name(entry));
    std::vector<std::int64_t> dims(program.dims.size());
    program.dims.evaluate(0, bound(program, values), dims);
    for (std::size_t i = 0; i < program.inputs.size(); ++i) {
      const Buffer& buffer = program.buffer(program.inputs[i]);
      inputs[i] = {nullptr, static_cast<ingot_dtype>(buffer.dtype), static_cast<int>(buffer.shape.size()), {}};
      for (std::size_t d = 0; d < buffer.shape.size(); ++d)
        inputs[i].shape[d] = dims[static_cast<std::size_t>(buffer.shape[d])];
    }
    return 0;
  });
}

int ingot_session_create(ingot_engine* engine, const char* entry, const ingot_options* options,
                         ingot_session** session) {
  return guarded([&] {
    need(session, "session");
    *session = nullptr;
    need(engine, "engine");
    SessionOptions chosen;
    if (options != nullptr) {
      for (const auto& [name, value] : {std::pair{"kv_blocks", options->kv_blocks},
                                        std::pair{"kv_block_size", options->kv_block_size}})
        if (value < 0) throw Error(code::argument, std::string(name) + ": " + std::to_string(value) + " is negative");
      chosen.threads = options->threads;
      chosen.cache.blocks = options->kv_blocks;
      if (options->kv_block_size != 0) chosen.cache.block_size = options->kv_block_size;
    }
    *session = new ingot_session(engine->engine, entry_name(entry), chosen);
    return 0;
  });
}

void ingot_session_close(ingot_session* session) { delete session; }

int ingot_run(ingot_session* session, const ingot_tensor* inputs, int input_count, ingot_tensor* outputs,
              int output_count) {
  return guarded([&] {
    need(session, "session");
    const Program& program = session->session.program();
    need_array(inputs, "inputs", input_count, program.inputs.size());
    need_array(outputs, "outputs", output_count, program.outputs.size());
    session->run(inputs, outputs);
    return 0;
  });
}
