// From a container to programs that can run.
#include "engine.h"

#include <algorithm>
#include <set>

#include "error.h"
#include "level.h"
#include "registry.h"
#include "version.h"

namespace ingot {
namespace {

constexpr std::string_view kKnownKeys[] = {"format",   "producer", "kind",     "config",
                                           "networks", "weights",  "programs", "files",
                                           "external_ops"};

[[noreturn]] void fail(const std::string& why) { throw Error(code::engine_file, why); }

std::map<std::string, Program> parse_programs(const Json& ours, const std::vector<std::string>& keys) {
  check_format(ours);
  for (const std::string& key : keys) {
    if (std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) == std::end(kKnownKeys))
      fail("the engine's description: the key " + quote(key) + " is unknown");
  }
  std::map<std::string, Program> programs;
  if (!ours.contains("programs") || !ours["programs"].is_object()) fail("the engine's description has no programs");
  if (!ours["programs"].contains("cpu")) return programs;
  const Fields target(ours["programs"]["cpu"], {"programs.cpu", 0}, code::engine_file, {"entries"});
  for (const auto& [name, json] : target.object("entries").items()) programs.emplace(name, parse_program(json, name));
  return programs;
}

class Loader {
 public:
  Loader(const Program& program, const std::string& entry, const Container& container, Level level,
         const LoadedProgram* like, std::set<const Tensor*>& counted)
      : program_(program), entry_(entry), container_(container), level_(level), like_(like), counted_(counted) {}

  LoadedProgram run() {
    LoadedProgram loaded;
    loaded.program = &program_;
    loaded.weights.resize(program_.buffers.size());
    for (std::size_t b = 0; b < program_.buffers.size(); ++b) {
      if (program_.buffers[b].kind != BufferKind::weight) continue;
      const Tensor& tensor = weight(b);
      loaded.weights[b] = tensor.data;
      if (counted_.insert(&tensor).second) loaded.weight_bytes += tensor.bytes;
    }
    loaded.bodies.resize(program_.calls.size());
    for (std::size_t c = 0; c < program_.calls.size(); ++c) {
      const Call& call = program_.calls[c];
      if (call.host || call.control != Control::none) {
        loaded.kernels.push_back(nullptr);
        load_bodies(c, loaded);
      } else if (like_ != nullptr && serves(*like_->kernels[c], call, loaded.weights)) {
        loaded.kernels.push_back(like_->kernels[c]);
      } else {
        loaded.kernels.push_back(make(call));
      }
    }
    if (!refusals_.empty())
      throw Error(other_version_ ? code::engine_version : code::kernel_refused,
                  "program " + quote(entry_) + " cannot run here: " + refusals_);
    loaded.stages = find_stages(program_);
    return loaded;
  }

 private:
  void load_bodies(std::size_t call, LoadedProgram& loaded) {
    const std::vector<Body>& bodies = program_.calls[call].bodies;
    for (std::size_t b = 0; b < bodies.size(); ++b) {
      const LoadedProgram* like = like_ != nullptr ? &like_->bodies[call][b] : nullptr;
      loaded.bodies[call].push_back(Loader(*bodies[b].program, entry_, container_, level_, like, counted_).run());
      loaded.weight_bytes += loaded.bodies[call].back().weight_bytes;
    }
  }

  const Program& program_;
  const std::string& entry_;
  const Container& container_;
  Level level_;
  const LoadedProgram* like_;
  std::set<const Tensor*>& counted_;  // in weight_bytes
  std::string refusals_;
  int refused_ = 0;
  bool other_version_ = false;

  const Tensor& weight(std::size_t index) const {
    const Buffer& buffer = program_.buffers[index];
    const auto refuse = [&](const std::string& why) {
      throw Error(code::program, "program " + quote(entry_) + ": " + Place{"buffers", index}.text() + ": the weight " +
                                     quote(buffer.name) + " " + why);
    };
    const Tensor* tensor = container_.find(buffer.name);
    if (tensor == nullptr) refuse("is not in the file");
    bool fits = tensor->dtype == buffer.dtype && tensor->shape.size() == buffer.shape.size();
    for (std::size_t i = 0; fits && i < buffer.shape.size(); ++i)
      fits = program_.dims.node(buffer.shape[i]).value == tensor->shape[i];
    if (!fits)
      refuse("is " + program_.spec(static_cast<int>(index)) +
             " in the program and has another dtype or shape in the file");
    return *tensor;
  }

  /// A weight, or a window on one that is the same in every run: kernels keep what they make of it.
  bool is_constant(int index) const {
    return program_.buffer(program_.base(index)).kind == BufferKind::weight && program_.is_fixed(program_.buffer(index));
  }

  /// Whether a kernel of `like` can run this call: what it keeps was made of the very weights that the call has here.
  bool serves(const Kernel& kernel, const Call& call, const std::vector<const std::byte*>& weights) const {
    for (std::size_t i = 0; i < call.in.size(); ++i) {
      const auto base = static_cast<std::size_t>(program_.base(call.in[i]));
      if (weights[base] != like_->weights[base] && kernel.keeps(i)) return false;
    }
    return true;
  }

  OperandType type_of(int index) const {
    const Buffer& buffer = program_.buffer(index);
    OperandType type;
    type.dtype = buffer.dtype;
    type.state = buffer.kind == BufferKind::state;
    type.constant = is_constant(index);
    if (type.state) {
      type.rank = 4;
      const std::int64_t shape[4] = {-1, 2, buffer.heads, -1};
      std::copy(std::begin(shape), std::end(shape), type.shape);
      return type;
    }
    type.rank = static_cast<int>(buffer.shape.size());
    for (std::size_t i = 0; i < buffer.shape.size(); ++i) {
      const DimNode& node = program_.dims.node(buffer.shape[i]);
      type.shape[i] = node.op == DimOp::constant ? node.value : -1;
    }
    return type;
  }

  /// Of a kernel that is known here, a version that is not.
  void refuse_version(const Call& call, const std::string& versions) {
    other_version_ = true;
    refuse(call, "this ingot has no kernel " + quote(call.name) + " of version " + std::to_string(call.version) +
                     ", only of version " + versions);
  }

  /// All refusals are collected, so that one message names every call that cannot run.
  void refuse(const Call& call, const std::string& why) {
    constexpr int kMost = 8;
    if (++refused_ > kMost) return;
    refusals_ += (refused_ > 1 ? "; " : "") + call.name + " in " +
                 (call.where.empty() ? "(nowhere)" : quote(call.where)) + ": " + why;
  }

  std::unique_ptr<Kernel> make(const Call& call) {
    const KernelInfo* info = find_kernel(call.name, call.version);
    if (info == nullptr) {
      const std::string versions = versions_of(call.name);
      if (versions.empty())
        refuse(call, "this ingot has no kernel " + quote(call.name));
      else
        refuse_version(call, versions);
      return nullptr;
    }
    std::vector<OperandType> in, out;
    for (int operand : call.in) in.push_back(type_of(operand));
    for (int result : call.out) out.push_back(type_of(result));
    try {
      check_names(*info, call.params);
      return info->make(call.params, in, out, level_);
    } catch (const Refused& refused) {
      refuse(call, refused.what());
    } catch (const Json::exception& error) {
      refuse(call, std::string("its parameters are malformed: ") + error.what());
    }
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<LoadedProgram> load_program(const Program& program, const std::string& entry,
                                            const Container& container, Level level, const LoadedProgram* like) {
  std::set<const Tensor*> counted;
  return std::make_unique<LoadedProgram>(Loader(program, entry, container, level, like, counted).run());
}

Engine::Engine(Container container, std::optional<Level> level) : container_(std::move(container)), level_(level) {
  std::vector<std::string> keys;
  const Json ours = parse_json(container_.header(), code::engine_file, "the engine's description",
                               {"format", "producer", "programs"}, &keys);
  producer_ = producer_of(ours);
  try {
    programs_ = std::make_shared<const std::map<std::string, Program>>(parse_programs(ours, keys));
  } catch (const Error& error) {
    throw explained(error, producer_);
  }
}

Engine::Engine(Container container, const Engine& like)
    : container_(std::move(container)), level_(like.level_), producer_(like.producer_), programs_(like.programs_) {
  // At once, and not at the first use: nothing here refers to `like` afterwards.
  for (const auto& [entry, program] : *programs_) loaded_[entry] = loaded(entry, &like.load(entry));
}

std::shared_ptr<const Engine> Engine::open(const std::string& path, WeightPlace place) {
  Container container = Container::open(path, place);
  try {
    return std::make_shared<const Engine>(std::move(container));
  } catch (const Error& error) {
    throw Error(error.code, path + ": " + error.what());
  }
}

std::vector<std::string> Engine::entries() const {
  std::vector<std::string> names;
  for (const auto& [name, program] : *programs_) names.push_back(name);
  return names;
}

const Program& Engine::program(const std::string& entry) const {
  const auto found = programs_->find(entry);
  if (found != programs_->end()) return found->second;
  std::string names;
  for (const std::string& name : entries()) names += (names.empty() ? "" : ", ") + quote(name);
  throw Error(code::argument,
              "the engine has no entry " + quote(entry) + " for the CPU; it has " + (names.empty() ? "none" : names));
}

const LoadedProgram& Engine::load(const std::string& entry) const {
  program(entry);  // there is such an entry
  const std::lock_guard lock(mutex_);
  auto& slot = loaded_[entry];
  if (slot == nullptr) slot = loaded(entry, nullptr);
  return *slot;
}

std::unique_ptr<LoadedProgram> Engine::loaded(const std::string& entry, const LoadedProgram* like) const {
  try {
    return load_program(program(entry), entry, container_, level_ ? *level_ : current_level(), like);
  } catch (const Error& error) {
    throw explained(error, producer_);
  }
}

}  // namespace ingot
