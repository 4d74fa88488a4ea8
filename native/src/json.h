// Strict JSON: what a file from a stranger may contain and nothing else. The grammar is nlohmann's. On top of it
// duplicate keys, deep nesting, integers beyond 64 bits, numbers beyond double, byte order marks, NUL bytes and too
// many values are refused, before anything is built from them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ingot {

using Json = nlohmann::json;

constexpr int kMaxJsonDepth = 64;
constexpr std::size_t kMaxJsonValues = std::size_t{1} << 22;

/// Receives a document piece by piece, in order.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void begin(bool object) = 0;
  virtual void key(std::string& name) = 0;
  virtual void scalar(Json&& value) = 0;
  virtual void end() = 0;
};

/// Parses `text` into `events`. Throws Error(error_code); `what` names the document in the message.
void parse_json(std::string_view text, const char* error_code, const std::string& what, JsonEvents& events);

/// Parses `text` whole. With `keep`, the other members of the top-level object are checked and dropped; `keys`, when
/// given, receives the names of all of them.
Json parse_json(std::string_view text, const char* error_code, const std::string& what,
                std::initializer_list<std::string_view> keep = {}, std::vector<std::string>* keys = nullptr);

/// A name from outside, fit for a message: in quotes, control and non-ASCII bytes escaped, cut after 80 bytes.
std::string quote(std::string_view name);

/// Where in a document something is, made into text only when there is an error to report: "calls[12]".
struct Place {
  const char* list;
  std::size_t index;
  std::string text() const;
};

/// The members of one JSON object, read by name and type; every violation is Error(error_code) with the place.
class Fields {
 public:
  /// `optional` and `required` together are all the keys that may be there.
  Fields(const Json& object, Place place, const char* error_code, std::initializer_list<const char*> required,
         std::initializer_list<const char*> optional = {});

  bool has(const char* key) const { return object_.contains(key); }
  const Json& at(const char* key) const { return object_.at(key); }
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const;
  bool boolean(const char* key) const;
  /// Between 1 (or 0 with `empty`) and 512 bytes, without control characters.
  std::string text(const char* key, bool empty = false) const;
  const Json& array(const char* key, std::size_t most) const;
  const Json& object(const char* key) const;
  [[noreturn]] void fail(const std::string& why) const;

 private:
  const Json& object_;
  Place place_;
  const char* code_;
};

}  // namespace ingot
