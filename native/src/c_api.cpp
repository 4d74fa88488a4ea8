// The C interface: the same engines and sessions behind opaque pointers, exceptions turned into codes.
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "copy_strided.h"
#include "error.h"
#include "ingot.h"
#include "session.h"

using namespace ingot;

static_assert(INGOT_MAX_RANK == kMaxRank && INGOT_BOOL == static_cast<int>(DType::boolean) &&
              INGOT_INT64 == static_cast<int>(DType::int64));

namespace {

thread_local std::string last_message;
thread_local const char* last_code = "";

int failed(const char* error_code, const char* message) noexcept {
  last_code = error_code;
  try {
    last_message = message;
  } catch (const std::bad_alloc&) {
    last_message.clear();
  }
  return -1;
}

/// Calls `action`, which returns what the C function returns.
template <class Action>
int guarded(Action action) noexcept {
  try {
    return action();
  } catch (const Error& error) {
    return failed(error.code, error.what());
  } catch (const std::bad_alloc&) {
    return failed(code::memory, "the process is out of memory");
  } catch (const std::exception& error) {
    return failed(code::argument, error.what());
  }
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

bool is_known(ingot_dtype dtype) { return dtype >= INGOT_FLOAT32 && dtype <= INGOT_BOOL; }

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
  std::vector<TensorView> arrays(session.program().inputs.size());
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const ingot_tensor& input = inputs[i];
    if (input.rank < 0 || input.rank > kMaxRank || !is_known(input.dtype))
      throw Error(code::input, "input " + std::to_string(i) + ": its rank or dtype is no value of this interface");
    arrays[i].data = input.data;
    arrays[i].dtype = static_cast<DType>(input.dtype);
    arrays[i].rank = input.rank;
    for (int d = 0; d < input.rank; ++d) {
      if (input.shape[d] < 0) throw Error(code::input, "input " + std::to_string(i) + ": a dimension is negative");
      arrays[i].shape[d] = input.shape[d];
    }
    set_row_major(arrays[i]);
  }
  Session::Run run(session);
  run.execute(arrays);
  const std::span<const TensorView> views = run.outputs();
  for (std::size_t i = 0; i < views.size(); ++i) {
    TensorView dense = views[i];
    results[i].resize(static_cast<std::size_t>(dense.elements()) * size_of(dense.dtype));
    dense.data = results[i].data();
    set_row_major(dense);
    copy_strided(views[i], dense);
    outputs[i] = {dense.data, static_cast<ingot_dtype>(dense.dtype), dense.rank, {}};
    for (int d = 0; d < dense.rank; ++d) outputs[i].shape[d] = dense.shape[d];
  }
}

const char* ingot_version(void) { return INGOT_VERSION; }
const char* ingot_last_error(void) { return last_message.c_str(); }
const char* ingot_last_error_code(void) { return last_code; }

size_t ingot_dtype_size(ingot_dtype dtype) { return is_known(dtype) ? size_of(static_cast<DType>(dtype)) : 0; }
const char* ingot_dtype_name(ingot_dtype dtype) {
  return is_known(dtype) ? name_of(static_cast<DType>(dtype)).data() : "unknown";
}

int ingot_open(const char* path, ingot_engine** engine) {
  *engine = nullptr;
  return guarded([&] {
    auto opened = std::make_unique<ingot_engine>();
    opened->engine = Engine::open(path);
    *engine = opened.release();
    return 0;
  });
}

void ingot_close(ingot_engine* engine) { delete engine; }

int ingot_symbols(ingot_engine* engine, const char* entry, const ingot_symbol** symbols) {
  return guarded([&] {
    const Ports& ports = engine->at(entry);
    *symbols = ports.symbols.data();
    return static_cast<int>(ports.symbols.size());
  });
}

int ingot_inputs(ingot_engine* engine, const char* entry, const ingot_port** ports) {
  return guarded([&] {
    const Ports& all = engine->at(entry);
    *ports = all.inputs.data();
    return static_cast<int>(all.inputs.size());
  });
}

int ingot_outputs(ingot_engine* engine, const char* entry, const ingot_port** ports) {
  return guarded([&] {
    const Ports& all = engine->at(entry);
    *ports = all.outputs.data();
    return static_cast<int>(all.outputs.size());
  });
}

int ingot_input_shapes(ingot_engine* engine, const char* entry, const int64_t* values, ingot_tensor* inputs) {
  return guarded([&] {
    const Program& program = engine->engine->program(entry_name(entry));
    std::vector<std::int64_t> symbols;
    for (const Symbol& symbol : program.dims.symbols()) symbols.push_back(symbol.unbacked ? 0 : *values++);
    std::vector<std::int64_t> dims(program.dims.size());
    program.dims.evaluate(0, symbols, dims);
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
  *session = nullptr;
  return guarded([&] {
    SessionOptions chosen;
    if (options != nullptr) {
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
    const Program& program = session->session.program();
    if (input_count != static_cast<int>(program.inputs.size()) ||
        output_count != static_cast<int>(program.outputs.size())) {
      throw Error(code::input, std::to_string(program.inputs.size()) + " inputs and " +
                                   std::to_string(program.outputs.size()) + " outputs are needed, not " +
                                   std::to_string(input_count) + " and " + std::to_string(output_count));
    }
    session->run(inputs, outputs);
    return 0;
  });
}
