// From JSON to a Program: types, indices, names and caps. The rules between calls are in verify.cpp.
#include "program.h"

#include <algorithm>
#include <limits>
#include <set>

#include "error.h"
#include "kernel.h"
#include "verify.h"
#include "version.h"

namespace ingot {
namespace {

constexpr std::size_t kMaxSymbols = 1024;
constexpr std::size_t kMaxBuffers = std::size_t{1} << 20;
constexpr std::size_t kMaxCalls = std::size_t{1} << 20;
constexpr std::size_t kMaxOperands = 1024;
constexpr std::size_t kMaxOutputs = 4096;
constexpr std::int64_t kMaxDim = std::int64_t{1} << 46;

Fields fields(const Json& object, Place place, std::initializer_list<const char*> required,
              std::initializer_list<const char*> optional = {}) {
  return {object, place, code::program, required, optional};
}

[[noreturn]] void refuse(Place place, const std::string& why) { throw Error(code::program, place.text() + ": " + why); }

bool is_identifier(const std::string& name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && name.size() <= 64 && letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.'; });
}

std::vector<Symbol> parse_symbols(const Json& list) {
  std::vector<Symbol> symbols;
  std::set<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Place place{"symbols", i};
    const Fields item = fields(list[i], place, {"name", "min", "max"}, {"opt", "unbacked"});
    Symbol symbol;
    symbol.name = item.text("name");
    if (!is_identifier(symbol.name)) refuse(place, "the name " + quote(symbol.name) + " is no identifier");
    if (!names.insert(symbol.name).second) refuse(place, "the name " + quote(symbol.name) + " occurs twice");
    symbol.min = item.integer("min", 0, kMaxDim);
    symbol.max = item.at("max").is_null() ? kMaxDim : item.integer("max", symbol.min, kMaxDim);
    if (item.has("opt") && !item.at("opt").is_null()) item.integer("opt", symbol.min, symbol.max);
    symbol.unbacked = item.has("unbacked") && item.boolean("unbacked");
    symbols.push_back(std::move(symbol));
  }
  return symbols;
}

std::vector<DimId> parse_dims(const Json& list, DimTable& dims, Place place) {
  std::vector<DimId> ids;
  for (const Json& dim : list) {
    const DimId id = dims.parse(dim, place);
    ids.push_back(id);
  }
  return ids;
}

std::vector<DimId> parse_shape(const Fields& item, DimTable& dims, Place place) {
  const std::vector<DimId> shape = parse_dims(item.array("shape", kMaxRank), dims, place);
  for (DimId id : shape) {
    if (dims.node(id).op == DimOp::constant && dims.node(id).value < 0) {
      refuse(place, "shape: the dimension " + std::to_string(dims.node(id).value) + " is negative");
    }
  }
  return shape;
}

DType parse_dtype(const Fields& item, bool stored = false) {
  DType dtype{};
  const std::string name = item.text("dtype");
  if (!dtype_from_name(name, &dtype)) item.fail("the dtype " + quote(name) + " is unknown");
  if (dtype == DType::float8_e4m3fn && !stored) item.fail("the dtype " + name + " is for weights alone");
  return dtype;
}

void parse_state(const Json& json, Place place, Buffer& buffer) {
  const Fields state = fields(json, place, {"type", "heads", "head_dim"});
  if (state.text("type") != "kv_cache") refuse(place, "the state type " + quote(state.text("type")) + " is unknown");
  buffer.heads = state.integer("heads", 1, 1 << 16);
  buffer.head_dim = state.integer("head_dim", 1, 1 << 16);
  if (buffer.dtype != DType::float32 && buffer.dtype != DType::bfloat16 && buffer.dtype != DType::float16 && buffer.dtype != DType::int8) {
    refuse(place, "a kv_cache holds float32, bfloat16, float16 or int8, not " + std::string(name_of(buffer.dtype)));
  }
}

void parse_view(const Fields& item, Place place, Program& program, Buffer& buffer) {
  const auto of = item.integer("of", 0, static_cast<std::int64_t>(place.index) - 1);
  const Buffer& base = program.buffer(static_cast<int>(of));
  if (base.kind == BufferKind::view || base.kind == BufferKind::state) {
    item.fail("of: buffer " + std::to_string(of) + " is a " + (base.kind == BufferKind::view ? "view" : "state") +
              "; only inputs, weights and temps have views");
  }
  buffer.of = static_cast<int>(of);
  buffer.dtype = base.dtype;
  buffer.shape = parse_shape(item, program.dims, place);
  buffer.stride = parse_dims(item.array("stride", kMaxRank), program.dims, place);
  buffer.offset = program.dims.parse(item.at("offset"), place);
  if (buffer.stride.size() != buffer.shape.size()) item.fail("shape and stride have different lengths");
}

Buffer parse_buffer(const Json& json, Place place, Program& program) {
  Buffer buffer;
  if (!json.is_object() || !json.contains("kind") || !json["kind"].is_string())
    refuse(place, "an object with a kind is needed");
  const auto& kind = json["kind"].get_ref<const std::string&>();
  if (kind == "view") {
    buffer.kind = BufferKind::view;
    parse_view(fields(json, place, {"kind", "of", "shape", "stride", "offset"}), place, program, buffer);
  } else if (kind == "state") {
    buffer.kind = BufferKind::state;
    const Fields item = fields(json, place, {"kind", "name", "dtype", "state"});
    buffer.name = item.text("name");
    buffer.dtype = parse_dtype(item);
    parse_state(item.at("state"), place, buffer);
  } else if (kind == "temp") {
    const Fields item = fields(json, place, {"kind", "dtype", "shape"});
    buffer.dtype = parse_dtype(item);
    buffer.shape = parse_shape(item, program.dims, place);
  } else if (kind == "input" || kind == "weight") {
    buffer.kind = kind == "input" ? BufferKind::input : BufferKind::weight;
    const char* name = kind == "input" ? "name" : "tensor";
    const Fields item = fields(json, place, {"kind", name, "dtype", "shape"});
    buffer.name = item.text(name);
    buffer.dtype = parse_dtype(item, buffer.kind == BufferKind::weight);
    buffer.shape = parse_shape(item, program.dims, place);
  } else {
    refuse(place, "the kind " + quote(kind) + " is unknown");
  }
  return buffer;
}

std::vector<int> parse_operands(const Fields& item, const char* key, std::size_t buffers) {
  std::vector<int> operands;
  for (const Json& operand : item.array(key, kMaxOperands)) {
    const bool valid = operand.is_number_integer() && !operand.is_number_unsigned() &&
                       operand.get<std::int64_t>() >= 0 &&
                       operand.get<std::int64_t>() < static_cast<std::int64_t>(buffers);
    if (!valid)
      item.fail(std::string(key) + ": " + operand.dump().substr(0, 40) + " is not the number of a buffer (0 … " +
                std::to_string(buffers - 1) + ")");
    operands.push_back(static_cast<int>(operand.get<std::int64_t>()));
  }
  return operands;
}

Program parse_body(const Json& json, int depth);

/// The values that a call gives to symbols of its body, of which each has one unless a call of the body binds it.
std::vector<DimId> parse_sizes(const Json& json, Program& program, const Program& body, Place place) {
  std::vector<DimId> sizes(body.dims.symbols().size(), -1);
  for (const auto& [name, dim] : json.items()) {
    const int symbol = body.dims.find_symbol(name);
    if (symbol < 0) refuse(place, "sizes: the body has no symbol " + quote(name));
    sizes[static_cast<std::size_t>(symbol)] = program.dims.parse(dim, place);
  }
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    const Symbol& symbol = body.dims.symbols()[s];
    if (symbol.unbacked == (sizes[s] < 0)) continue;
    refuse(place, "sizes: " + quote(symbol.name) + (symbol.unbacked ? " is bound inside of the body" : " is missing"));
  }
  return sizes;
}

void parse_bodies(const Fields& item, Place place, Program& program, int depth, Call& call) {
  if (depth == kMaxNesting) item.fail("bodies nest deeper than " + std::to_string(kMaxNesting));
  for (const Json& json : item.array("bodies", 2)) {
    const Fields own = fields(json, place, {"sizes", "program"});
    Body body;
    try {
      body.program = std::make_unique<Program>(parse_body(own.object("program"), depth + 1));
    } catch (const Error& error) {
      throw Error(error.code, place.text() + ": body " + std::to_string(call.bodies.size()) + ": " + error.what());
    }
    body.sizes = parse_sizes(own.object("sizes"), program, *body.program, place);
    call.bodies.push_back(std::move(body));
  }
}

/// A control call's bodies and its own parameters.
void parse_control(const Fields& item, Place place, Program& program, int depth, Call& call) {
  constexpr auto kOperands = static_cast<std::int64_t>(kMaxOperands);
  const Json& params = item.object("params");
  if (call.name == "cond") {
    call.control = Control::cond;
    fields(params, place, {});
  } else if (call.name == "while") {
    call.control = Control::loop;
    const Fields own = fields(params, place, {"carried", "limit"});
    call.carried = static_cast<std::size_t>(own.integer("carried", 0, kOperands));
    call.limit = own.integer("limit", 1, kMaxRounds);
  } else if (call.name == "scan") {
    call.control = Control::scan;
    const Fields own = fields(params, place, {"carried", "scanned", "length", "reverse"});
    call.carried = static_cast<std::size_t>(own.integer("carried", 0, kOperands));
    call.scanned = static_cast<std::size_t>(own.integer("scanned", 0, kOperands));
    call.length = program.dims.parse(own.at("length"), place);
    call.reverse = own.boolean("reverse");
  } else {
    item.fail("the control " + quote(call.name) + " is unknown");
  }
  parse_bodies(item, place, program, depth, call);
}

Call parse_call(const Json& json, Place place, Program& program, int depth) {
  Call call;
  const bool control = json.is_object() && json.contains("control");
  call.host = !control && json.is_object() && json.contains("host");
  const char* kind = control ? "control" : call.host ? "host" : "kernel";
  const char* own = control ? "bodies" : "version";
  const Fields item = fields(json, place, {kind, own, "in", "out", "params"}, {"where", "binds"});
  call.name = item.text(kind);
  call.in = parse_operands(item, "in", program.buffers.size());
  call.out = parse_operands(item, "out", program.buffers.size());
  call.params = item.object("params");
  if (control) {
    parse_control(item, place, program, depth, call);
  } else {
    call.version = item.integer("version", 1, std::numeric_limits<std::int64_t>::max());
  }
  if (item.has("where")) call.where = item.text("where", true);
  if (!item.has("binds")) return call;
  for (const Json& name : item.array("binds", kMaxSymbols)) {
    const int symbol = name.is_string() ? program.dims.find_symbol(name.get_ref<const std::string&>()) : -1;
    if (symbol < 0) item.fail("binds: only names of declared symbols are allowed");
    call.binds.push_back(symbol);
  }
  return call;
}

void parse_outputs(const Json& list, Program& program) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Place place{"outputs", i};
    const Fields item = fields(list[i], place, {"name", "buffer"});
    Output output{item.text("name"),
                  static_cast<int>(item.integer("buffer", 0, static_cast<std::int64_t>(program.buffers.size()) - 1))};
    if (!names.insert(output.name).second) refuse(place, "the name " + quote(output.name) + " occurs twice");
    if (program.buffer(output.buffer).dtype == DType::float8_e4m3fn) refuse(place, "the dtype float8_e4m3fn is for weights alone");
    program.outputs.push_back(std::move(output));
  }
}

void parse_checks(const Json& list, Program& program) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Place place{"checks", i};
    const Fields item = fields(list[i], place, {"size", "wanted", "or_one", "text"});
    const DimId size = program.dims.parse(item.at("size"), place);
    program.checks.push_back({size, program.dims.parse(item.at("wanted"), place), item.boolean("or_one"), item.text("text")});
  }
}

void check_names(const Program& program) {
  std::set<std::pair<BufferKind, std::string>> names;
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.kind != BufferKind::input && buffer.kind != BufferKind::state) continue;
    if (!names.insert({buffer.kind, buffer.name}).second)
      refuse({"buffers", i}, "the name " + quote(buffer.name) + " occurs twice");
  }
}

/// A program, or at a depth above 0 a body, with its version looked at by whoever holds it.
Program parse_parts(const Fields& top, int depth) {
  Program program;
  program.is_body = depth > 0;
  program.dims = DimTable(parse_symbols(top.array("symbols", kMaxSymbols)));
  const Json& buffers = top.array("buffers", kMaxBuffers);
  program.buffers.reserve(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    program.buffers.push_back(parse_buffer(buffers[i], {"buffers", i}, program));
    if (program.buffers.back().kind == BufferKind::input) program.inputs.push_back(static_cast<int>(i));
  }
  check_names(program);
  const Json& calls = top.array("calls", kMaxCalls);
  program.calls.reserve(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i)
    program.calls.push_back(parse_call(calls[i], {"calls", i}, program, depth));
  parse_outputs(top.array("outputs", kMaxOutputs), program);
  if (top.has("checks")) parse_checks(top.array("checks", kMaxCalls), program);
  verify(program);
  return program;
}

Program parse_body(const Json& json, int depth) {
  return parse_parts(fields(json, {"program", 0}, {"symbols", "buffers", "calls", "outputs"}, {"checks"}), depth);
}

Program parse(const Json& json) {
  // The version first: a newer program may well have other keys.
  check_version(json, "version", kOldestProgram, kNewestProgram);
  const Fields top = fields(json, {"program", 0}, {"version", "symbols", "buffers", "calls", "outputs"}, {"checks"});
  top.integer("version", kOldestProgram, kNewestProgram);
  return parse_parts(top, 0);
}

}  // namespace

Program parse_program(const Json& json, const std::string& entry) {
  try {
    return parse(json);
  } catch (const Error& error) {
    throw Error(error.code, "program " + quote(entry) + ": " + error.what());
  }
}

bool Program::is_fixed(const Buffer& buffer) const {
  const auto fixed = [&](DimId id) { return dims.node(id).op == DimOp::constant; };
  return std::all_of(buffer.shape.begin(), buffer.shape.end(), fixed) && std::all_of(buffer.stride.begin(), buffer.stride.end(), fixed) &&
         (buffer.kind != BufferKind::view || fixed(buffer.offset));
}

std::vector<std::string> Program::host_operations() const {
  std::vector<std::string> names;
  for (const Call& call : calls) {
    if (call.host && std::find(names.begin(), names.end(), call.name) == names.end()) names.push_back(call.name);
  }
  return names;
}

std::string Program::spec(int index) const {
  const Buffer& b = buffer(index);
  std::string text(name_of(b.dtype));
  for (std::size_t i = 0; i < b.shape.size(); ++i) text += (i == 0 ? "[" : ", ") + dims.text(b.shape[i]);
  return text + (b.shape.empty() ? "[]" : "]");
}

}  // namespace ingot
