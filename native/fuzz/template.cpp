// Choosing values, then layouts.
#include "template.h"

#include <algorithm>
#include <set>

#include "strides.h"

namespace ingot::fuzz {
namespace {

constexpr std::int64_t kMostElements = 1 << 16;  // of any operand: a case must be quick
constexpr std::int64_t kSizes[] = {0,  1,  2,  3,  4,  5,  6,   7,   8,   9,   12,  15,  16,  17,  24,  31,   32,  33,
                                   48, 63, 64, 65, 75, 96, 127, 128, 129, 200, 256, 257, 300, 513, 599, 641, 700, 1025,
                                   1031};

// Numbers for Random's second argument: buffers have their index.
enum Part : std::uint64_t { kFirstFill = 1 << 16, kValues = 1 << 20, kSymbols, kRun };

/// The values of a template's variables.
class Environment {
 public:
  void choose(const Json& vars, Random& random) {
    for (const Json& var : vars) {
      const std::string name = var["name"];
      if (var.contains("value")) {
        values_[name] = evaluate(var["value"]);
      } else if (var.contains("choices")) {
        values_[name] = evaluate(var["choices"][random.below(var["choices"].size())]);
      } else {
        values_[name] = size_between(evaluate(var["sizes"][0]), evaluate(var["sizes"][1]), random);
        sizes_.push_back(name);
      }
    }
  }

  /// The names of variables that are sizes, which a program may have as symbols.
  const std::vector<std::string>& sizes() const { return sizes_; }
  std::int64_t size(const std::string& name) const { return values_.at(name).get<std::int64_t>(); }

  Json evaluate(const Json& json) const {
    if (json.is_string()) {
      const auto& text = json.get_ref<const std::string&>();
      return text.size() > 1 && text[0] == '$' ? values_.at(text.substr(1)) : json;
    }
    if (json.is_array() && !json.empty() && json[0] == "$") return arithmetic(json);
    if (!json.is_structured()) return json;
    Json result = json;
    for (Json& item : result) item = evaluate(item);
    return result;
  }

 private:
  std::map<std::string, Json> values_;
  std::vector<std::string> sizes_;

  static std::int64_t size_between(std::int64_t low, std::int64_t high, Random& random) {
    for (int tries = 0; tries < 64; ++tries) {
      const std::int64_t size = random.pick(kSizes);
      if (size >= low && size <= high && (size > 0 || random.chance(4))) return size;
    }
    return std::max<std::int64_t>(low, std::min<std::int64_t>(1, high));
  }

  Json arithmetic(const Json& json) const {
    const std::string op = json[1];
    const auto number = [&](std::size_t at) { return evaluate(json[at]).get<std::int64_t>(); };
    if (op == "at") return evaluate(json[2]).at(static_cast<std::size_t>(number(3)));
    std::int64_t value = number(2);
    for (std::size_t i = 3; i < json.size(); ++i) {
      const std::int64_t other = number(i);
      if (op == "+") value += other;
      else if (op == "-") value -= other;
      else if (op == "*") value *= other;
      else if (op == "//") value = value / other - (value % other != 0 && (value < 0) != (other < 0) ? 1 : 0);
      else if (op == "max") value = std::max(value, other);
      else if (op == "min") value = std::min(value, other);
      else throw std::runtime_error("template: unknown operation " + op);
    }
    return value;
  }
};

std::vector<std::int64_t> sizes_of(const Json& list) { return list.get<std::vector<std::int64_t>>(); }

Json list_of(const std::vector<std::int64_t>& sizes) { return Json(sizes); }

DType dtype_of(const Json& buffer) {
  DType dtype{};
  if (!dtype_from_name(buffer["dtype"].get<std::string>(), &dtype)) throw std::runtime_error("template: dtype");
  return dtype;
}

/// Whether a shape has sizes that a call binds.
bool has_names(const Json& buffer) {
  const Json shape = buffer.value("shape", Json::array());
  return std::any_of(shape.begin(), shape.end(), [](const Json& size) { return size.is_string(); });
}

/// Turns the plain program of a case into the strided one, buffer by buffer.
class Strider {
 public:
  Strider(Case& one, const Json& concrete, const Json& fills, std::uint64_t seed, std::uint64_t plain)
      : case_(one), concrete_(concrete), fills_(fills), seed_(seed), plain_(plain) {}

  void run() {
    find_handed();
    Json& program = case_.strided.program;
    program = case_.plain.program;
    case_.strided.inputs = case_.plain.inputs;
    for (std::size_t b = 0; b < concrete_["buffers"].size(); ++b) {
      Random random(seed_, b);
      if ((plain_ >> b % 64 & 1) != 0 || random.chance(4)) continue;
      if (has_views(b) || has_names(concrete_["buffers"][b])) continue;
      const std::string kind = concrete_["buffers"][b]["kind"];
      if (kind == "input") move_values(b, "name", case_.plain.inputs, case_.strided.inputs, random);
      else if (kind == "weight") move_values(b, "tensor", case_.weights, case_.weights, random);
      else if (kind == "temp" && !handed_.contains(b) && random.chance(2)) move_result(b, sizes_of(concrete_["buffers"][b]["shape"]), random);
      if (kind == "input" && random.chance(6)) pass_through(b, random);
    }
  }

 private:
  Case& case_;
  const Json& concrete_;
  const Json& fills_;
  std::uint64_t seed_, plain_;
  struct Shared {
    std::size_t buffer;
    std::string name;
  };
  std::vector<Shared> shared_;                    // longer inputs that other operands may look into
  std::map<std::size_t, std::int64_t> used_as_;  // the views in whose place inputs were
  std::set<std::size_t> handed_;                  // what control calls hand to their bodies, or take from them

  /// Bodies find operands and results without gaps: such a buffer may begin anywhere, and that is all.
  void find_handed() {
    for (const Json& call : concrete_["calls"])
      for (const char* list : {"in", "out"})
        for (const Json& buffer : call[list])
          if (call.contains("control")) handed_.insert(buffer.get<std::size_t>());
  }

  Json& buffers() { return case_.strided.program["buffers"]; }

  std::int64_t add(Json buffer) {
    buffers().push_back(std::move(buffer));
    return static_cast<std::int64_t>(buffers().size()) - 1;
  }

  bool has_views(std::size_t b) const {
    const Json& all = concrete_["buffers"];
    return std::any_of(all.begin(), all.end(),
                       [&](const Json& buffer) { return buffer.contains("of") && buffer["of"] == b; });
  }

  /// Uses `view` wherever `buffer` was used.
  void replace(std::size_t buffer, std::int64_t view) {
    const auto old = static_cast<std::int64_t>(buffer);
    for (Json& call : case_.strided.program["calls"])
      for (const char* list : {"in", "out"})
        for (Json& operand : call[list])
          if (operand == old) operand = view;
    for (Json& output : case_.strided.program["outputs"])
      if (output["buffer"] == old) output["buffer"] = view;
  }

  /// Puts the values of an input or weight into a longer one, behind a view; now and then into one that another operand
  /// looks into already.
  void move_values(std::size_t b, const char* key, Arrays& plain, Arrays& strided, Random& random) {
    Json& buffer = buffers()[b];
    const std::string name = buffer[key];
    const Json spec = fills_.value(name, Json::object());
    Array& values = plain.at(name);
    const Layout layout = handed_.contains(b) ? dense_layout(values.shape)
                                              : random_layout(values.shape, is_structured(spec), random);
    const std::int64_t before = random.between(0, 40), behind = random.between(0, 40);
    const std::int64_t length = before + behind + (layout.empty ? 0 : layout.high - layout.low + 1);
    if (length > 4 * kMostElements) return;
    const std::int64_t offset = before - layout.low;
    const bool input = key == std::string("name"), shares = input && spec.empty();
    const auto shared = std::find_if(shared_.begin(), shared_.end(), [&](const Shared& one) {
      return shares && case_.strided.inputs.at(one.name).dtype == values.dtype;
    });
    const bool joins = shared != shared_.end() && random.chance(3);
    const Shared base_of = joins ? *shared : Shared{b, input ? name : name + ".base"};
    Array& base = strided[base_of.name];
    extend(base, values.dtype, joins ? std::max(length, base.elements()) : length, spec, random);
    const std::size_t size = size_of(base.dtype);
    const bool scatter = is_structured(spec);
    for (std::int64_t i = 0; i < values.elements(); ++i) {
      std::byte* inside =
          base.bytes.data() + static_cast<std::size_t>(offset + place_of(values.shape, layout, i)) * size;
      std::byte* outside = values.bytes.data() + static_cast<std::size_t>(i) * size;
      scatter ? std::copy_n(outside, size, inside) : std::copy_n(inside, size, outside);
    }
    const Json shape = buffer["shape"];
    buffers()[base_of.buffer][key] = base_of.name;
    buffers()[base_of.buffer]["shape"] = Json::array({base.elements()});
    if (shares && !joins) shared_.push_back(base_of);
    used_as_[b] = add({{"kind", "view"},
                       {"of", base_of.buffer},
                       {"shape", shape},
                       {"stride", list_of(layout.stride)},
                       {"offset", offset}});
    replace(b, used_as_[b]);
  }

  /// Makes `base` that long; what it has stays, unless it is no base yet.
  static void extend(Array& base, DType dtype, std::int64_t length, const Json& spec, Random& random) {
    Array longer(dtype, {length});
    fill_elements(longer, spec, random);
    if (base.shape.size() == 1 && base.shape[0] <= length)
      std::copy(base.bytes.begin(), base.bytes.end(), longer.bytes.begin());
    base = std::move(longer);
  }

  /// Copies an input into a temp that is used in its place, so that the operand lies among buffers that live and die.
  void pass_through(std::size_t b, Random& random) {
    const std::int64_t from = used_as_.contains(b) ? used_as_.at(b) : static_cast<std::int64_t>(b);
    const Json& buffer = concrete_["buffers"][b];
    const Json shape = buffers()[static_cast<std::size_t>(from)]["shape"];
    const std::int64_t temp = add({{"kind", "temp"}, {"dtype", buffer["dtype"]}, {"shape", shape}});
    replace(static_cast<std::size_t>(from), temp);
    Json& calls = case_.strided.program["calls"];
    calls.insert(calls.begin(), copy_call(from, temp));
    if (!handed_.contains(b) && random.chance(2))
      move_result(static_cast<std::size_t>(temp), sizes_of(buffer["shape"]), random);
  }

  static Json copy_call(std::int64_t from, std::int64_t to) {
    return {{"kernel", "copy"},          {"version", 1},
            {"in", Json::array({from})}, {"out", Json::array({to})},
            {"params", Json::object()},  {"where", "copy"}};
  }

  /// Makes a result a part of a larger buffer whose other parts copies fill, before or behind the call that writes it.
  void move_result(std::size_t b, const std::vector<std::int64_t>& sizes, Random& random) {
    Json& calls = case_.strided.program["calls"];
    std::size_t writer = 0;
    const auto writes = [&](const Json& call) {
      return std::any_of(call["out"].begin(), call["out"].end(), [&](const Json& out) { return out == b; });
    };
    while (writer < calls.size() && !writes(calls[writer])) ++writer;
    if (writer == calls.size()) return;
    const Cover cover = random_cover(sizes, random);
    const Json shape = buffers()[b]["shape"];
    const std::string dtype = buffers()[b]["dtype"];
    buffers()[b]["shape"] = list_of(cover.base);
    const auto view = [&](const Cover::Part& part, Json part_shape) {
      return add({{"kind", "view"},
                  {"of", b},
                  {"shape", std::move(part_shape)},
                  {"stride", list_of(part.stride)},
                  {"offset", part.offset}});
    };
    replace(b, view(cover.result, shape));
    Json around[2] = {Json::array(), Json::array()};  // copies before and behind the writer
    for (const Cover::Part& part : cover.fillers) {
      const std::string name = "gap." + std::to_string(buffers().size());
      const Json part_shape = list_of(part.shape);
      Array values(dtype_of(buffers()[b]), part.shape);
      fill_elements(values, Json::object(), random);
      const std::int64_t from = add({{"kind", "input"}, {"name", name}, {"dtype", dtype}, {"shape", part_shape}});
      const std::int64_t to = view(part, part_shape);
      around[random.below(2)].push_back(copy_call(from, to));
      case_.strided.program["outputs"].push_back({{"name", name}, {"buffer", to}});
      case_.strided.inputs[name] = std::move(values);
    }
    Json all = Json::array();
    for (std::size_t c = 0; c < calls.size(); ++c) {
      if (c == writer) all.insert(all.end(), around[0].begin(), around[0].end());
      all.push_back(calls[c]);
      if (c == writer) all.insert(all.end(), around[1].begin(), around[1].end());
    }
    calls = std::move(all);
  }
};

/// Gives every input and weight of the plain program its values; false when some buffer would be too large.
bool fill_plain(Case& one, const Json& fills, std::uint64_t seed) {
  const Json& buffers = one.plain.program["buffers"];
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    const std::string kind = buffers[b]["kind"];
    if (kind == "view" || kind == "state" || has_names(buffers[b])) continue;
    const std::vector<std::int64_t> sizes = sizes_of(buffers[b]["shape"]);
    std::int64_t elements = 1;
    for (std::int64_t size : sizes) {
      elements *= size;
      if (size < 0 || elements > kMostElements) return false;
    }
    if (kind == "temp") continue;
    const std::string name = buffers[b][kind == "input" ? "name" : "tensor"];
    const Json spec = fills.value(name, Json::object());
    Array array(dtype_of(buffers[b]), sizes);
    Random random(seed, b + kFirstFill);
    if (is_structured(spec)) fill_structured(array, spec, one.plain.inputs, random);
    else fill_elements(array, spec, random);
    (kind == "input" ? one.plain.inputs : one.weights)[name] = std::move(array);
  }
  return true;
}

/// Shapes use the names of symbols, in bodies too: there they are symbols that the call gives their value.
void use_names(const Json& written, Json& program, const std::set<std::string>& symbols) {
  const auto named = [&](const Json& size) {
    return size.is_string() && size.get_ref<const std::string&>()[0] == '$' &&
           symbols.contains(size.get_ref<const std::string&>().substr(1));
  };
  const auto use = [&](const Json& size, Json& value) {
    if (named(size)) value = size.get_ref<const std::string&>().substr(1);
  };
  for (std::size_t b = 0; b < written["buffers"].size(); ++b) {
    const Json& buffer = written["buffers"][b];
    if (buffer["kind"] != "input" && buffer["kind"] != "temp") continue;
    // A shape that is one variable, a list, has no names of its own.
    for (std::size_t d = 0; buffer["shape"].is_array() && d < buffer["shape"].size(); ++d)
      use(buffer["shape"][d], program["buffers"][b]["shape"][d]);
  }
  for (std::size_t c = 0; c < written["calls"].size(); ++c) {
    const Json& call = written["calls"][c];
    if (!call.is_object() || !call.contains("control")) continue;
    if (call["params"].contains("length")) use(call["params"]["length"], program["calls"][c]["params"]["length"]);
    for (std::size_t i = 0; i < call["bodies"].size(); ++i) {
      Json& body = program["calls"][c]["bodies"][i];
      for (const std::string& name : symbols) {
        body["program"]["symbols"].push_back({{"name", name}, {"min", 0}, {"max", nullptr}});
        body["sizes"][name] = name;
      }
      use_names(call["bodies"][i]["program"], body["program"], symbols);
    }
  }
}

/// Makes some sizes symbols of the plain program, each bound by an input of its own, and shapes use their names.
void declare_symbols(Case& one, const Json& written, const Environment& environment, Random& random) {
  Json& program = one.plain.program;
  std::set<std::string> symbols;
  for (const std::string& name : environment.sizes())
    if (random.chance(3)) symbols.insert(name);
  use_names(written, program, symbols);
  for (const std::string& name : symbols) {
    program["symbols"].push_back({{"name", name}, {"min", 0}, {"max", nullptr}});
    program["buffers"].push_back(
        {{"kind", "input"}, {"name", "bind." + name}, {"dtype", "uint8"}, {"shape", Json::array({name})}});
    one.plain.inputs["bind." + name] = Array(DType::uint8, {environment.size(name)});
  }
}

}  // namespace

std::optional<Case> Template::make(std::uint64_t seed, std::uint64_t plain, Level level) const {
  Environment environment;
  Random values(seed, kValues), symbols(seed, kSymbols), run(seed, kRun);
  environment.choose(json_["vars"], values);
  const Json concrete = environment.evaluate(json_["program"]);
  const Json fills = environment.evaluate(json_.value("fills", Json::object()));
  Case one;
  one.name = name_;
  one.level = level;
  one.strided.threads = static_cast<int>(run.between(1, 3));
  one.plain.threads = static_cast<int>(run.between(1, 3));
  if (json_.contains("magnitude")) one.magnitude = environment.evaluate(json_["magnitude"]);
  if (json_.contains("cache")) {
    const Json cache = environment.evaluate(json_["cache"]);
    one.cache = {cache["blocks"], cache["block_size"]};
  }
  one.plain.program = concrete;
  if (!fill_plain(one, fills, seed)) return {};
  declare_symbols(one, json_["program"], environment, symbols);
  Strider(one, concrete, fills, seed, plain).run();
  return one;
}

}  // namespace ingot::fuzz
