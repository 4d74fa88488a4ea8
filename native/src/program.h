// A program: an ordered list of kernel and host calls over buffers. Plain data, parsed from the engine's JSON and
// verified whole before anything uses it; immutable afterwards.
//
// A program runs in *stages*. Stage 0 knows the symbols that the inputs bind. Every call that binds unbacked symbols
// ends a stage. The buffers that such a host call's or loop's results fill belong to the next one.
//
// A *control call* (cond, while, scan) holds programs of its own, its bodies. These read the call's operands where they
// lie, and their results are copied out after each round. Symbols of a body get their values from the call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dims.h"
#include "dtype.h"
#include "json.h"

namespace ingot {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 46;  // of one buffer
constexpr int kMaxNesting = 16;                            // of bodies in bodies
constexpr std::int64_t kMaxRounds = std::int64_t{1} << 24;  // of one loop

enum class BufferKind : std::uint8_t { input, weight, state, temp, view };

struct Buffer {
  BufferKind kind = BufferKind::temp;
  DType dtype = DType::float32;
  std::string name;           // of an input or a state; of the weight's tensor
  std::vector<DimId> shape;   // empty for a state
  int of = -1;                // view: the buffer that it looks into
  std::vector<DimId> stride;  // view: in elements
  DimId offset = 0;           // view: in elements
  std::int64_t heads = 0;     // state: a kv_cache's
  std::int64_t head_dim = 0;  // state
  int stage = 0;              // the first in which it may be used
  bool written = false;       // by some call
};

struct Program;

/// What a call does beside running a kernel: nothing, or one of the ways of running bodies.
enum class Control : std::uint8_t { none, cond, loop, scan };

/// A program inside of a control call.
struct Body {
  std::unique_ptr<Program> program;
  std::vector<DimId> sizes;  // by the body's symbols: the values that the call gives them; -1 for those bound inside
};

struct Call {
  bool host = false;
  Control control = Control::none;
  std::string name;  // of the kernel, the host operation, or the way of control
  std::int64_t version = 1;
  std::vector<int> in, out;  // buffers
  Json params;
  std::vector<Body> bodies;  // cond: then, else; loop: condition, body; scan: body
  // Of loops and scans. Operands are first those carried from round to round, then those of which each round gets a part,
  // then those that all rounds read; results are first the carried ones, then those that have a part from every round.
  std::size_t carried = 0, scanned = 0;
  std::int64_t limit = 0;  // loop: rounds
  DimId length = 0;        // scan: rounds
  bool reverse = false;    // scan: from the last part to the first
  std::string where;       // module path, for messages and profiles
  std::vector<int> binds;  // the unbacked symbols that it binds: a host call by its results' shapes, a kernel by the numbers in its result
  int stage = 0;

  /// Whether its results have no shape before it ran, and so enter the next stage.
  bool shapes_results() const noexcept { return (host || control != Control::none) && !binds.empty(); }
};

struct Output {
  std::string name;
  int buffer;
};

/// A dimension of an input that gives a symbol its value: it is factor * symbol + offset.
struct Binding {
  std::size_t input;  // in the order of Program::inputs
  std::size_t dim;
  DimTable::Linear size;
};

/// Two dimensions that have to be the same in every run, though nothing proves it.
struct SizeCheck {
  DimId size, wanted;
  bool or_one;  // the first may be 1 instead
  std::string text;  // what was asked for
  int stage = 0;     // in which both are known
};

struct Program {
  DimTable dims;
  std::vector<Buffer> buffers;
  std::vector<Call> calls;
  std::vector<Output> outputs;
  std::vector<int> inputs;  // the buffers of kind input, in order
  std::vector<int> parts;   // the views that calls write
  std::vector<Binding> bindings;
  std::vector<SizeCheck> checks;
  int stages = 1;
  bool is_body = false;  // its inputs lie where the call has them, and it has neither states nor host calls

  const Buffer& buffer(int index) const { return buffers[static_cast<std::size_t>(index)]; }
  /// The buffer that owns the memory: itself, or the one that a view looks into.
  int base(int index) const { return buffer(index).kind == BufferKind::view ? buffer(index).of : index; }
  /// Whether a buffer has the same shape in every run, and a view the same strides and offset too.
  bool is_fixed(const Buffer& buffer) const;
  /// The names of its host operations, each once, in order of first use.
  std::vector<std::string> host_operations() const;
  /// "bfloat16[T, 256]"
  std::string spec(int index) const;
};

/// Parses and verifies. Throws Error("program"), saying which entry, where in it, and which rule;
/// Error("engine_version") for a program of another version.
Program parse_program(const Json& json, const std::string& entry);

}  // namespace ingot
