#include "expression.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "check.h"

namespace ingot {

namespace {

constexpr int kNone = -1;
constexpr std::string_view kClassNames[kClasses] = {"float32", "int64", "bool", "float64", "uint64"};

/// Steps whose arguments are other steps. For comparisons `cls` is that of the result, and `arguments` stands for any class.
struct Rule {
  std::string_view name;
  Class cls;
  Class arguments;
  int count;
  Step step;
  bool any_class = false;  // a comparison: both arguments of one class
  bool swapped = false;    // greater is less with its arguments exchanged
};

constexpr Class F = Class::float32, I = Class::int64, B = Class::boolean, D = Class::float64, U = Class::uint64;
constexpr Rule kRules[] = {
    {"add", F, F, 2, Step::add},        {"sub", F, F, 2, Step::sub},       {"mul", F, F, 2, Step::mul},
    {"div", F, F, 2, Step::div},        {"pow", F, F, 2, Step::pow},       {"max", F, F, 2, Step::max},
    {"min", F, F, 2, Step::min},        {"neg", F, F, 1, Step::neg},       {"abs", F, F, 1, Step::abs},
    {"exp", F, F, 1, Step::exp},        {"log", F, F, 1, Step::log},       {"sqrt", F, F, 1, Step::sqrt},
    {"rsqrt", F, F, 1, Step::rsqrt},    {"sin", F, F, 1, Step::sin},       {"cos", F, F, 1, Step::cos},
    {"tanh", F, F, 1, Step::tanh},      {"sigmoid", F, F, 1, Step::sigmoid}, {"erf", F, F, 1, Step::erf},
    {"floor", F, F, 1, Step::floor},    {"ceil", F, F, 1, Step::ceil},     {"recip", F, F, 1, Step::recip},
    {"silu", F, F, 1, Step::silu},      {"floordiv", F, F, 2, Step::floordiv}, {"mod", F, F, 2, Step::mod},
    {"fmod", F, F, 2, Step::fmod},      {"to_float", F, I, 1, Step::to_float}, {"to_float", F, B, 1, Step::to_float},
    {"to_float", F, D, 1, Step::to_float}, {"to_float", F, U, 1, Step::to_float},
    {"add", D, D, 2, Step::double_add}, {"sub", D, D, 2, Step::double_sub}, {"mul", D, D, 2, Step::double_mul},
    {"div", D, D, 2, Step::double_div}, {"pow", D, D, 2, Step::double_pow}, {"max", D, D, 2, Step::double_max},
    {"min", D, D, 2, Step::double_min}, {"neg", D, D, 1, Step::double_neg}, {"abs", D, D, 1, Step::double_abs},
    {"exp", D, D, 1, Step::double_exp}, {"log", D, D, 1, Step::double_log}, {"sqrt", D, D, 1, Step::double_sqrt},
    {"rsqrt", D, D, 1, Step::double_rsqrt}, {"sin", D, D, 1, Step::double_sin}, {"cos", D, D, 1, Step::double_cos},
    {"tanh", D, D, 1, Step::double_tanh}, {"sigmoid", D, D, 1, Step::double_sigmoid}, {"erf", D, D, 1, Step::double_erf},
    {"floor", D, D, 1, Step::double_floor}, {"ceil", D, D, 1, Step::double_ceil}, {"round", D, D, 1, Step::double_round},
    {"recip", D, D, 1, Step::double_recip}, {"silu", D, D, 1, Step::double_silu},
    {"floordiv", D, D, 2, Step::double_floordiv}, {"mod", D, D, 2, Step::double_mod}, {"fmod", D, D, 2, Step::double_fmod},
    {"to_float", D, F, 1, Step::to_double}, {"to_float", D, I, 1, Step::to_double}, {"to_float", D, U, 1, Step::to_double},
    {"to_float", D, B, 1, Step::to_double},
    {"add", I, I, 2, Step::int_add},    {"sub", I, I, 2, Step::int_sub},   {"mul", I, I, 2, Step::int_mul},
    {"floordiv", I, I, 2, Step::int_floordiv}, {"mod", I, I, 2, Step::int_mod}, {"fmod", I, I, 2, Step::int_fmod},
    {"max", I, I, 2, Step::int_max},
    {"min", I, I, 2, Step::int_min},    {"neg", I, I, 1, Step::int_neg},   {"abs", I, I, 1, Step::int_abs},
    {"and", I, I, 2, Step::int_and},    {"or", I, I, 2, Step::int_or},     {"xor", I, I, 2, Step::int_xor},
    {"to_int", I, B, 1, Step::int_from_bool}, {"to_int", I, U, 1, Step::int_from_int},
    {"add", U, U, 2, Step::int_add},    {"sub", U, U, 2, Step::int_sub},   {"mul", U, U, 2, Step::int_mul},
    {"floordiv", U, U, 2, Step::int_floordiv}, {"mod", U, U, 2, Step::int_mod}, {"fmod", U, U, 2, Step::int_mod},
    {"max", U, U, 2, Step::int_max},
    {"min", U, U, 2, Step::int_min},    {"neg", U, U, 1, Step::int_neg},   {"abs", U, U, 1, Step::int_abs},
    {"and", U, U, 2, Step::int_and},    {"or", U, U, 2, Step::int_or},     {"xor", U, U, 2, Step::int_xor},
    {"to_int", U, F, 1, Step::int_from_float}, {"to_int", U, D, 1, Step::int_from_float},
    {"to_int", U, B, 1, Step::int_from_bool}, {"to_int", U, I, 1, Step::int_from_int},
    {"eq", B, B, 2, Step::equal, true}, {"ne", B, B, 2, Step::not_equal, true},
    {"lt", B, B, 2, Step::less, true},  {"le", B, B, 2, Step::less_equal, true},
    {"gt", B, B, 2, Step::less, true, true}, {"ge", B, B, 2, Step::less_equal, true, true},
    {"and", B, B, 2, Step::bool_and},   {"or", B, B, 2, Step::bool_or},    {"xor", B, B, 2, Step::bool_xor},
    {"not", B, B, 1, Step::bool_not},   {"to_bool", B, F, 1, Step::bool_from_float},
    {"to_bool", B, I, 1, Step::bool_from_int}, {"to_bool", B, U, 1, Step::bool_from_int},
    {"to_bool", B, D, 1, Step::bool_from_float},
};

std::size_t bytes_of(Class cls) { return cls == F ? 4 : cls == B ? 1 : 8; }

/// The class in which elements of a dtype are read and computed, and from which they are stored.
Class class_of(DType dtype) {
  if (dtype == DType::float64) return D;
  if (is_float(dtype)) return F;
  return dtype == DType::boolean ? B : dtype == DType::uint64 ? U : I;
}

double float_constant(const nlohmann::json& value, bool* good) {
  *good = true;
  if (value.is_number()) return value.get<double>();
  if (value == "inf") return INFINITY;
  if (value == "-inf") return -INFINITY;
  if (value == "nan") return NAN;
  *good = false;
  return 0;
}

}  // namespace

/// The checked steps, before dead ones are dropped and slots are given.
struct Expression::Parsed {
  struct Item {
    Instruction instruction{};
    Class cls = F;
    int arguments[3] = {kNone, kNone, kNone};
    int constant = kNone;  // index into `constants`
  };
  std::string_view kernel;
  std::span<const DType> inputs;
  std::vector<Item> items;
  std::vector<Constant> constants;
  std::vector<int> outputs;

  [[noreturn]] void fail(std::size_t at, const std::string& what) const {
    refuse(kernel, "expression step " + std::to_string(at) + ": " + what);
  }
  void step(std::size_t at, const nlohmann::json& json);
  void constant(std::size_t at, Item& item, const nlohmann::json& json);
  void plain(std::size_t at, Item& item, std::string_view name, const nlohmann::json& json);
  void truncation(std::size_t at, Item& item, const nlohmann::json& json);
  int argument(std::size_t at, const nlohmann::json& json, std::size_t position) const;
  void expect(std::size_t at, int argument, Class cls) const {
    if (items[argument].cls != cls)
      fail(at, "argument step " + std::to_string(argument) + " is " + std::string(kClassNames[int(items[argument].cls)]) +
                   ", must be " + std::string(kClassNames[int(cls)]));
  }
  void fuse_silu_mul();
  void name_activations();
  void name_nan();
  void read_bytes();
  void write_bytes(std::span<const DType> dtypes);

 private:
  std::vector<std::vector<int>> users() const;
  bool is(int item, Step step, Class cls) const { return items[item].constant == kNone && items[item].instruction.step == step && items[item].instruction.cls == cls; }
  bool is_number(int item, float value) const { return items[item].cls == F && items[item].constant != kNone && number<float>(item) == value; }
  /// The other argument of a step that takes this number, or none.
  int beside(int item, Step step, float value) const;
  int inside_of_mish(const Item& item) const;
  int inside_of_gelu(const Item& item) const;
  bool is_output(int item) const { return std::find(outputs.begin(), outputs.end(), item) != outputs.end(); }
  template <class T>
  T number(int item) const {
    T value;
    std::memcpy(&value, constants[items[item].constant].bytes, sizeof value);
    return value;
  }
  bool in_range(int item, DType dtype) const;
};

int Expression::Parsed::argument(std::size_t at, const nlohmann::json& json, std::size_t position) const {
  const nlohmann::json& value = json[position];
  if (!value.is_number_integer() || value < 0 || value >= static_cast<std::int64_t>(items.size()))
    fail(at, "argument " + std::to_string(position - 2) + " must be the index of an earlier step");
  return value.get<int>();
}

void Expression::Parsed::constant(std::size_t at, Item& item, const nlohmann::json& json) {
  Constant constant;
  const nlohmann::json& value = json[2];
  if (item.cls == F || item.cls == D) {
    bool good;
    const double number = float_constant(value, &good);
    const float narrow = static_cast<float>(number);
    if (!good) fail(at, R"(a float const must be a number, "inf", "-inf" or "nan")");
    if (item.cls == F)
      for (int i = 0; i < 16; ++i) std::memcpy(constant.bytes + 4 * i, &narrow, 4);
    else
      for (int i = 0; i < 8; ++i) std::memcpy(constant.bytes + 8 * i, &number, 8);
  } else if (item.cls == U) {
    if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<std::int64_t>() < 0))
      fail(at, "a uint64 const must be a natural number of 64 bits");
    const std::uint64_t number = value.get<std::uint64_t>();
    for (int i = 0; i < 8; ++i) std::memcpy(constant.bytes + 8 * i, &number, 8);
  } else if (item.cls == I) {
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX))
      fail(at, "an int64 const must be an integer of 64 bits");
    const std::int64_t number = value.get<std::int64_t>();
    for (int i = 0; i < 8; ++i) std::memcpy(constant.bytes + 8 * i, &number, 8);
  } else {
    if (!value.is_boolean()) fail(at, "a bool const must be true or false");
    std::memset(constant.bytes, value.get<bool>() ? 1 : 0, 64);
  }
  item.constant = static_cast<int>(constants.size());
  constants.push_back(constant);
}

void Expression::Parsed::plain(std::size_t at, Item& item, std::string_view name, const nlohmann::json& json) {
  const std::size_t given = json.size() - 2;
  bool known = false;
  for (const Rule& rule : kRules) {
    if (rule.name != name || rule.cls != item.cls) continue;
    known = true;
    if (given != static_cast<std::size_t>(rule.count))
      fail(at, std::string(name) + " takes " + std::to_string(rule.count) + " arguments, got " + std::to_string(given));
    const int first = argument(at, json, 2);
    const int second = rule.count == 2 ? argument(at, json, 3) : kNone;
    const Class wanted = rule.any_class ? items[first].cls : rule.arguments;
    const bool conversion = name.starts_with("to_");
    if (conversion && items[first].cls != wanted) continue;  // the next rule takes the other class
    expect(at, first, wanted);
    if (second != kNone) expect(at, second, wanted);
    item.instruction.step = rule.step;
    item.instruction.cls = rule.any_class || conversion ? wanted : rule.cls;
    if (rule.step == Step::int_from_float) item.instruction.b = static_cast<std::uint16_t>(DType::uint64);
    item.arguments[0] = rule.swapped ? second : first;
    item.arguments[1] = rule.swapped ? first : second;
    return;
  }
  const std::string cls(kClassNames[int(item.cls)]);
  fail(at, known ? std::string(name) + " to " + cls + " cannot take an argument of that class"
                 : "there is no step " + std::string(name).substr(0, 40) + " of class " + cls);
}

/// to_int of class int64 out of a float: the last argument is the register, int32 or int64, that cuts off the rest.
void Expression::Parsed::truncation(std::size_t at, Item& item, const nlohmann::json& json) {
  item.arguments[0] = argument(at, json, 2);
  const Class from = items[item.arguments[0]].cls;
  if (from != F && from != D) fail(at, "to_int to int64 with a dtype takes a float32 or float64 step");
  if (json[3] != "int32" && json[3] != "int64") fail(at, "to_int must name int32 or int64");
  item.instruction.step = Step::int_from_float;
  item.instruction.cls = from;
  item.instruction.b = static_cast<std::uint16_t>(json[3] == "int32" ? DType::int32 : DType::int64);
}

void Expression::Parsed::step(std::size_t at, const nlohmann::json& json) {
  if (!json.is_array() || json.size() < 3 || json.size() > 5 || !json[0].is_string() || !json[1].is_string())
    fail(at, "must be [op, class, arguments...]");
  const auto& name = json[0].get_ref<const std::string&>();
  const auto& class_name = json[1].get_ref<const std::string&>();
  const auto cls = std::find(std::begin(kClassNames), std::end(kClassNames), class_name);
  if (cls == std::end(kClassNames)) fail(at, "class " + class_name.substr(0, 40) + " must be float32, float64, int64, uint64 or bool");
  Item item;
  item.cls = static_cast<Class>(cls - std::begin(kClassNames));
  item.instruction.cls = item.cls;
  const auto takes = [&](std::size_t count) {
    if (json.size() != count + 2) fail(at, name + " takes " + std::to_string(count) + " arguments");
  };
  if (name == "input") {
    takes(1);
    if (!json[2].is_number_integer() || json[2] < 0 || json[2] >= static_cast<std::int64_t>(inputs.size()))
      fail(at, "input must be the index of an operand: there are " + std::to_string(inputs.size()));
    item.instruction.step = Step::load;
    item.instruction.a = json[2].get<std::uint16_t>();
    const DType dtype = inputs[item.instruction.a];
    if (dtype == DType::float8_e4m3fn)
      fail(at, "operand " + std::to_string(item.instruction.a) + " is float8_e4m3fn, which is for weights of products alone");
    if (class_of(dtype) != item.cls)
      fail(at, "operand " + std::to_string(item.instruction.a) + " is " + std::string(name_of(dtype)) + ", whose class is " +
                   std::string(kClassNames[int(class_of(dtype))]) + ", not " + class_name);
  } else if (name == "const") {
    takes(1);
    constant(at, item, json);
  } else if (name == "where") {
    takes(3);
    for (int i = 0; i < 3; ++i) item.arguments[i] = argument(at, json, 2 + i);
    expect(at, item.arguments[0], B);
    expect(at, item.arguments[1], item.cls);
    expect(at, item.arguments[2], item.cls);
    constexpr Step kSelect[kClasses] = {Step::select_float, Step::select_int, Step::select_bool, Step::select_double,
                                        Step::select_int};
    item.instruction.step = kSelect[int(item.cls)];
  } else if (name == "round" && item.cls == F) {
    if (json.size() == 4 && json[3] != "bfloat16" && json[3] != "float16") fail(at, "round must be to bfloat16 or float16");
    if (json.size() > 4) fail(at, "round takes 1 or 2 arguments");
    item.arguments[0] = argument(at, json, 2);
    expect(at, item.arguments[0], F);
    item.instruction.step =
        json.size() == 3 ? Step::round : json[3] == "bfloat16" ? Step::round_bfloat16 : Step::round_float16;
  } else if (name == "wrap" && item.cls == I) {
    takes(2);
    item.arguments[0] = argument(at, json, 2);
    expect(at, item.arguments[0], I);
    DType dtype;
    if (!json[3].is_string() || !dtype_from_name(json[3].get_ref<const std::string&>(), &dtype) || class_of(dtype) != I)
      fail(at, "wrap must name an integer dtype other than uint64");
    item.instruction.step = Step::int_wrap;
    item.instruction.b = static_cast<std::uint16_t>(dtype);
  } else if (name == "to_int" && item.cls == I && json.size() == 4) {
    truncation(at, item, json);
  } else {
    plain(at, item, name, json);
  }
  items.push_back(item);
}

/// silu(a) * b in one step: the epilogue of nearly every language model's gate.
void Expression::Parsed::fuse_silu_mul() {
  for (Item& item : items) {
    if (item.instruction.step != Step::mul || item.constant != kNone) continue;
    for (int side = 0; side < 2; ++side) {
      const Item& gate = items[item.arguments[side]];
      if (gate.instruction.step != Step::silu || gate.constant != kNone) continue;
      item.instruction.step = Step::silu_mul;
      item.arguments[1] = item.arguments[1 - side];
      item.arguments[0] = gate.arguments[0];
      break;
    }
  }
}

int Expression::Parsed::beside(int item, Step step, float value) const {
  if (!is(item, step, F)) return kNone;
  for (int side = 0; side < 2; ++side)
    if (is_number(items[item].arguments[1 - side], value)) return items[item].arguments[side];
  return kNone;
}

/// x, where a product is x p / (p + 2), p = n (n + 2), n = exp(min(x, 20)).
int Expression::Parsed::inside_of_mish(const Item& item) const {
  for (int side = 0; side < 2; ++side) {
    const int x = item.arguments[side], ratio = item.arguments[1 - side];
    if (!is(ratio, Step::div, F)) continue;
    const int p = items[ratio].arguments[0];
    if (!is(p, Step::mul, F) || beside(items[ratio].arguments[1], Step::add, 2.0f) != p) continue;
    const int n = items[p].arguments[0];
    if (beside(items[p].arguments[1], Step::add, 2.0f) == n && is(n, Step::exp, F) && beside(items[n].arguments[0], Step::min, 20.0f) == x) return x;
  }
  return kNone;
}

/// x, where a product is (x / 2) (1 + erf(x / sqrt(2))).
int Expression::Parsed::inside_of_gelu(const Item& item) const {
  for (int side = 0; side < 2; ++side) {
    const int x = beside(item.arguments[side], Step::mul, 0.5f), erf = beside(item.arguments[1 - side], Step::add, 1.0f);
    if (x != kNone && erf != kNone && is(erf, Step::erf, F) && beside(items[erf].arguments[0], Step::mul, 0.7071067811865476f) == x) return x;
  }
  return kNone;
}

/// Activations that are written out in one step each: of a chain it is computed in registers.
void Expression::Parsed::name_activations() {
  for (Item& item : items) {
    if (item.constant != kNone || item.instruction.step != Step::mul || item.cls != F) continue;
    const int mish = inside_of_mish(item), gelu = inside_of_gelu(item);
    if (mish == kNone && gelu == kNone) continue;
    item.instruction.step = mish != kNone ? Step::mish : Step::gelu;
    item.arguments[0] = mish != kNone ? mish : gelu;
    item.arguments[1] = kNone;
  }
}

/// where(v == v, v, c) in one step.
void Expression::Parsed::name_nan() {
  for (Item& item : items) {
    if (item.constant != kNone || item.instruction.step != Step::select_float) continue;
    const Item& condition = items[item.arguments[0]];
    const int value = item.arguments[1];
    if (condition.constant != kNone || condition.instruction.step != Step::equal || condition.instruction.cls != F) continue;
    if (condition.arguments[0] != value || condition.arguments[1] != value) continue;
    item.instruction.step = Step::replace_nan;
    item.arguments[0] = value;
    item.arguments[1] = item.arguments[2];
    item.arguments[2] = kNone;
  }
}

std::vector<std::vector<int>> Expression::Parsed::users() const {
  std::vector<std::vector<int>> found(items.size());
  for (std::size_t i = 0; i < items.size(); ++i)
    for (int argument : items[i].arguments)
      if (argument != kNone) found[argument].push_back(static_cast<int>(i));
  return found;
}

/// Numbers of 8 bits that only become floats, less a constant or not, are loaded as floats: they and their differences are exact.
void Expression::Parsed::read_bytes() {
  constexpr std::int64_t kExact = 1 << 20;
  const std::vector<std::vector<int>> used = users();
  const int count = static_cast<int>(items.size());
  std::vector<bool> fits(items.size(), false);  // loads
  const auto all = [](const std::vector<int>& some, const auto& holds) { return std::all_of(some.begin(), some.end(), holds); };
  const auto to_float = [&](int user) { return is(user, Step::to_float, I) && items[user].cls == F; };
  const auto difference = [&](int user) {  // of a load that fits
    if (!is(user, Step::int_sub, I) || is_output(user) || !fits[items[user].arguments[0]]) return false;
    const int zero = items[user].arguments[1];
    if (items[zero].constant == kNone || is_output(zero)) return false;
    const auto value = number<std::int64_t>(zero);
    return value >= -kExact && value <= kExact && all(used[user], to_float);
  };
  for (int i = 0; i < count; ++i) {
    const DType dtype = is(i, Step::load, I) ? inputs[items[i].instruction.a] : DType::int64;
    fits[i] = (dtype == DType::int8 || dtype == DType::uint8) && !is_output(i);
  }
  for (bool changed = true; changed;) {  // one that does not fit keeps the integers of others
    changed = false;
    for (int i = 0; i < count; ++i) {
      const auto constant_too = [&](int user) { return difference(user) && all(used[items[user].arguments[1]], difference); };
      if (!fits[i] || all(used[i], [&](int user) { return to_float(user) || constant_too(user); })) continue;
      fits[i] = false;
      changed = true;
    }
  }
  std::vector<int> same(items.size());
  for (int i = 0; i < count; ++i) {
    Item& item = items[i];
    same[i] = i;
    for (int& argument : item.arguments)
      if (argument != kNone) argument = same[argument];
    if (to_float(i) && items[item.arguments[0]].cls == F) {
      same[i] = item.arguments[0];
    } else if (is(i, Step::int_sub, I) && items[item.arguments[0]].cls == F) {
      item.instruction.step = Step::sub;
      item.cls = item.instruction.cls = F;
      Item& zero = items[item.arguments[1]];
      if (zero.cls == I) {
        const float value = static_cast<float>(number<std::int64_t>(item.arguments[1]));
        for (int lane = 0; lane < 16; ++lane) std::memcpy(constants[zero.constant].bytes + 4 * lane, &value, 4);
        zero.cls = zero.instruction.cls = F;
      }
    } else if (fits[i]) {
      item.cls = item.instruction.cls = F;
    }
  }
  for (int& output : outputs) output = same[output];
}

/// Whether a step is held within constants in the range of an 8-bit type, and no NaN.
bool Expression::Parsed::in_range(int item, DType dtype) const {
  const float low = dtype == DType::int8 ? -128.0f : 0.0f, high = dtype == DType::int8 ? 127.0f : 255.0f;
  const auto held = [&](int at, Step step) { return is(at, step, F) && items[items[at].arguments[1]].constant != kNone; };
  if (!held(item, Step::min)) return false;
  const float most = number<float>(items[item].arguments[1]);
  if (!(most >= low && most <= high)) return false;
  item = items[item].arguments[0];
  if (!held(item, Step::max) || !(number<float>(items[item].arguments[1]) >= low)) return false;
  item = items[item].arguments[0];
  for (; is(item, Step::add, F); item = items[item].arguments[0]) {
    const int added = items[item].arguments[1];
    const bool byte = is(added, Step::load, F) && !is_float(inputs[items[added].instruction.a]);
    if (!byte && (items[added].constant == kNone || !std::isfinite(number<float>(added)))) return false;
  }
  return is(item, Step::replace_nan, F) && items[items[item].arguments[1]].constant != kNone &&
         number<float>(items[item].arguments[1]) == 0;
}

/// Outputs of 8 bits whose integer is that of a float in their range are stored from the float.
void Expression::Parsed::write_bytes(std::span<const DType> dtypes) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (dtypes[i] != DType::int8 && dtypes[i] != DType::uint8) continue;
    int item = outputs[i];
    while (is(item, Step::int_wrap, I)) item = items[item].arguments[0];
    if (!is(item, Step::int_from_float, F) || !in_range(items[item].arguments[0], dtypes[i])) continue;
    outputs[i] = items[item].arguments[0];
  }
}

Expression::Expression(std::string_view kernel, const nlohmann::json& json, std::span<const DType> inputs,
                       std::span<const DType> outputs) {
  if (!json.is_object() || json.size() != 2 || !json.contains("steps") || !json.contains("outputs") ||
      !json["steps"].is_array() || !json["outputs"].is_array())
    refuse(kernel, R"(an expression must be {"steps": [...], "outputs": [...]})");
  const nlohmann::json& steps = json["steps"];
  const nlohmann::json& results = json["outputs"];
  if (steps.empty() || steps.size() > kMaxSteps)
    refuse(kernel, "the expression has " + std::to_string(steps.size()) + " steps, must have 1 to " + std::to_string(kMaxSteps));
  if (inputs.size() > kMaxInputs) refuse(kernel, "an expression takes at most " + std::to_string(kMaxInputs) + " operands");
  if (results.size() != outputs.size() || results.empty() || results.size() > kMaxOutputs)
    refuse(kernel, "the expression has " + std::to_string(results.size()) + " outputs, the call has " + std::to_string(outputs.size()) +
                       " (1 to " + std::to_string(kMaxOutputs) + " are allowed)");
  Parsed parsed{kernel, inputs, {}, {}, {}};
  for (std::size_t i = 0; i < steps.size(); ++i) parsed.step(i, steps[i]);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const nlohmann::json& value = results[i];
    if (!value.is_number_integer() || value < 0 || value >= static_cast<std::int64_t>(parsed.items.size()))
      refuse(kernel, "expression output " + std::to_string(i) + " must be the index of a step");
    const int step = value.get<int>();
    if (class_of(outputs[i]) != parsed.items[step].cls)
      refuse(kernel, "expression output " + std::to_string(i) + " is of class " + std::string(kClassNames[int(parsed.items[step].cls)]) +
                         " and cannot be stored as " + std::string(name_of(outputs[i])));
    parsed.outputs.push_back(step);
  }
  parsed.fuse_silu_mul();
  parsed.name_activations();
  parsed.name_nan();
  parsed.read_bytes();
  parsed.write_bytes(outputs);
  compile(parsed);
}

namespace {

std::vector<DType> dtypes_of(int values, Types operands) {
  std::vector<DType> dtypes(static_cast<std::size_t>(values), DType::float32);
  for (const OperandType& operand : operands) dtypes.push_back(operand.dtype);
  return dtypes;
}

}  // namespace

Expression::Expression(Params& params, const char* name, int values, Types extras, Types out)
    : Expression(params.kernel(), params.value(name), dtypes_of(values, extras), dtypes_of(0, out)) {}

Expression Expression::identity(std::string_view kernel) {
  constexpr DType kFloat = DType::float32;
  return Expression(kernel, {{"steps", {{"input", "float32", 0}}}, {"outputs", {0}}}, {&kFloat, 1}, {&kFloat, 1});
}

/// Drops steps that no output needs, then gives every register a slot that is free from its first to its last use.
void Expression::compile(const Parsed& parsed) {
  const int count = static_cast<int>(parsed.items.size());
  std::vector<int> last_use(count, kNone);
  std::vector<bool> output(count, false);
  for (int step : parsed.outputs) output[step] = true;
  for (int i = count - 1; i >= 0; --i) {
    if (!output[i] && last_use[i] == kNone) continue;
    for (int argument : parsed.items[i].arguments)
      if (argument != kNone) last_use[argument] = std::max(last_use[argument], i);
  }
  std::vector<std::uint32_t> free_slots[kClasses];
  std::vector<std::uint16_t> register_of(count, 0);
  for (int i = 0; i < count; ++i) {
    const Parsed::Item& item = parsed.items[i];
    if (!output[i] && last_use[i] == kNone) continue;
    register_of[i] = static_cast<std::uint16_t>(places_.size());
    if (item.constant != kNone) {
      places_.push_back({static_cast<std::uint32_t>(constants_.size() * sizeof(Constant)), true});
      constants_.push_back(parsed.constants[item.constant]);
      continue;
    }
    std::vector<std::uint32_t>& free = free_slots[int(item.cls)];
    std::uint32_t offset = static_cast<std::uint32_t>(scratch_);
    if (!free.empty() && !output[i]) {
      offset = free.back();
      free.pop_back();
    } else {
      scratch_ += kTile * bytes_of(item.cls);
    }
    places_.push_back({offset, false});
    Instruction instruction = item.instruction;
    instruction.to = register_of[i];
    std::uint16_t* fields[3] = {&instruction.a, &instruction.b, &instruction.c};
    for (int j = 0; j < 3; ++j)
      if (item.arguments[j] != kNone) *fields[j] = register_of[item.arguments[j]];
    steps_.push_back(instruction);
    for (int j = 0; j < 3; ++j) {  // an argument's slot is free after its last use, once even when it is used twice
      const int argument = item.arguments[j];
      if (argument == kNone || last_use[argument] != i || output[argument] || parsed.items[argument].constant != kNone) continue;
      if (std::find(item.arguments, item.arguments + j, argument) != item.arguments + j) continue;
      free_slots[int(parsed.items[argument].cls)].push_back(places_[register_of[argument]].offset);
    }
  }
  for (int step : parsed.outputs) {
    outputs_.push_back(register_of[step]);
    output_classes_.push_back(parsed.items[step].cls);
  }
}

TileCode Expression::code() const noexcept {
  return {steps_.data(),           static_cast<int>(steps_.size()), places_.data(),
          static_cast<int>(places_.size()), outputs_.data(),        output_classes_.data(),
          static_cast<int>(outputs_.size()), constants_.empty() ? nullptr : constants_[0].bytes};
}

RunTile run_tile_for(Level level) { return half_for(elementwise_halves, level).run_tile; }

}  // namespace ingot
