// The strict layer over nlohmann's streaming parser.
#include "json.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "error.h"

namespace ingot {
namespace {

/// Enforces the limits, then passes each piece on. Returning false stops nlohmann's parser; the reason is in `problem`.
class StrictHandler final : public nlohmann::json_sax<Json> {
 public:
  explicit StrictHandler(JsonEvents& events) : events_(events) {}

  std::string problem;

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return scalar(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<number_unsigned_t>(INT64_MAX)) return scalar(static_cast<std::int64_t>(value));
    return scalar(value);
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") == string_t::npos)
      return stop("the integer " + text.substr(0, 32) + " does not fit in 64 bits");
    return scalar(value);
  }
  bool string(string_t& value) override { return scalar(std::move(value)); }
  bool binary(binary_t&) override { return stop("binary data"); }

  bool start_object(std::size_t) override { return begin(true); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) return stop("the key " + quote(name) + " occurs twice in one object");
    events_.key(name);
    return true;
  }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override { return begin(false); }
  bool end_array() override { return end(); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string reason = error.what();
    if (const std::size_t prefix = reason.find("] "); prefix != std::string::npos) reason.erase(0, prefix + 2);
    if (const std::size_t colon = reason.find(": "); colon != std::string::npos && reason.starts_with("parse error"))
      reason.erase(0, colon + 2);
    if (const std::size_t last_read = reason.find("; last read"); last_read != std::string::npos)
      reason.erase(last_read);
    constexpr std::size_t kMost = 160;  // a number is quoted whole, however long
    return stop("at byte " + std::to_string(position) + ": " + reason.substr(0, kMost));
  }

 private:
  JsonEvents& events_;
  std::vector<std::set<std::string>> keys_;  // one set per open container; an array's stays empty
  std::size_t values_ = 0;

  bool stop(std::string why) {
    if (problem.empty()) problem = std::move(why);
    return false;
  }

  bool count() {
    return ++values_ <= kMaxJsonValues || stop("more than " + std::to_string(kMaxJsonValues) + " values");
  }

  bool scalar(Json&& value) {
    if (!count()) return false;
    events_.scalar(std::move(value));
    return true;
  }

  bool begin(bool object) {
    if (!count()) return false;
    if (keys_.size() == kMaxJsonDepth) return stop("nested deeper than " + std::to_string(kMaxJsonDepth));
    keys_.emplace_back();
    events_.begin(object);
    return true;
  }

  bool end() {
    keys_.pop_back();
    events_.end();
    return true;
  }
};

/// Builds the document, leaving out the members of the top-level object that nobody asked for.
class Builder final : public JsonEvents {
 public:
  Builder(std::initializer_list<std::string_view> keep, std::vector<std::string>* keys) : keep_(keep), keys_(keys) {}

  Json root;

  void begin(bool object) override {
    ++depth_;
    if (dropping_) return;
    Json* placed = place(object ? Json::object() : Json::array());
    open_.push_back(placed);
  }

  void key(std::string& name) override {
    if (depth_ == 1) {
      if (keys_ != nullptr) keys_->push_back(name);
      dropping_ = keep_.size() != 0 && std::find(keep_.begin(), keep_.end(), name) == keep_.end();
    }
    if (!dropping_) key_ = std::move(name);
  }

  void scalar(Json&& value) override {
    if (!dropping_) place(std::move(value));
  }

  void end() override {
    --depth_;
    if (!dropping_ || depth_ == 0) open_.pop_back();
  }

 private:
  std::initializer_list<std::string_view> keep_;
  std::vector<std::string>* keys_;
  std::vector<Json*> open_;
  std::string key_;
  int depth_ = 0;
  bool dropping_ = false;

  Json* place(Json&& value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }
};

}  // namespace

void parse_json(std::string_view text, const char* error_code, const std::string& what, JsonEvents& events) {
  // nlohmann skips a byte order mark and takes a NUL for the end of the text.
  if (text.starts_with("\xef\xbb\xbf")) throw Error(error_code, what + " begins with a byte order mark");
  if (std::memchr(text.data(), 0, text.size()) != nullptr) throw Error(error_code, what + " contains a NUL byte");
  StrictHandler handler(events);
  if (!Json::sax_parse(text.begin(), text.end(), &handler))
    throw Error(error_code, what + " is not valid: " + handler.problem);
}

Json parse_json(std::string_view text, const char* error_code, const std::string& what,
                std::initializer_list<std::string_view> keep, std::vector<std::string>* keys) {
  Builder builder(keep, keys);
  parse_json(text, error_code, what, builder);
  return std::move(builder.root);
}

std::string quote(std::string_view name) {
  constexpr std::size_t kMost = 80;
  constexpr char kHex[] = "0123456789abcdef";
  std::string result = "'";
  for (char c : name.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return result + (name.size() > kMost ? "…'" : "'");
}

std::string Place::text() const { return std::string(list) + "[" + std::to_string(index) + "]"; }

Fields::Fields(const Json& object, Place place, const char* error_code, std::initializer_list<const char*> required,
               std::initializer_list<const char*> optional)
    : object_(object), place_(place), code_(error_code) {
  if (!object.is_object()) fail(std::string("an object is needed, not ") + object.type_name());
  std::size_t found = 0;
  for (const char* key : required) {
    if (!object.contains(key)) fail(std::string("the key '") + key + "' is missing");
    ++found;
  }
  for (const char* key : optional) found += object.contains(key) ? 1 : 0;
  if (found == object.size()) return;
  const auto known = [](std::initializer_list<const char*> keys, const std::string& name) {
    return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return name == key; });
  };
  for (const auto& [name, value] : object.items()) {
    if (!known(required, name) && !known(optional, name)) fail("the key " + quote(name) + " is unknown");
  }
}

std::int64_t Fields::integer(const char* key, std::int64_t low, std::int64_t high) const {
  const Json& value = object_.at(key);
  if (!value.is_number_integer() || value.is_number_unsigned()) fail(std::string(key) + ": an integer is needed");
  const auto number = value.get<std::int64_t>();
  if (number < low || number > high) {
    fail(std::string(key) + ": " + std::to_string(number) + " is not in " + std::to_string(low) + " … " +
         std::to_string(high));
  }
  return number;
}

bool Fields::boolean(const char* key) const {
  if (!object_.at(key).is_boolean()) fail(std::string(key) + ": true or false is needed");
  return object_.at(key).get<bool>();
}

std::string Fields::text(const char* key, bool empty) const {
  constexpr std::size_t kMost = 512;
  const Json& value = object_.at(key);
  if (!value.is_string()) fail(std::string(key) + ": a string is needed");
  const auto& text = value.get_ref<const std::string&>();
  if ((text.empty() && !empty) || text.size() > kMost)
    fail(std::string(key) + ": the string has " + std::to_string(text.size()) + " bytes; at most 512 are allowed");
  if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; })) {
    fail(std::string(key) + ": " + quote(text) + " contains a control character");
  }
  return text;
}

const Json& Fields::array(const char* key, std::size_t most) const {
  const Json& value = object_.at(key);
  if (!value.is_array()) fail(std::string(key) + ": an array is needed");
  if (value.size() > most)
    fail(std::string(key) + ": " + std::to_string(value.size()) + " entries; at most " + std::to_string(most) +
         " are allowed");
  return value;
}

const Json& Fields::object(const char* key) const {
  if (!object_.at(key).is_object()) fail(std::string(key) + ": an object is needed");
  return object_.at(key);
}

void Fields::fail(const std::string& why) const { throw Error(code_, place_.text() + ": " + why); }

}  // namespace ingot
