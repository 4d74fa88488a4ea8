// Reading producers, and the words about them.
#include "version.h"

#include <array>
#include <charconv>
#include <optional>

namespace ingot {
namespace {

using Numbers = std::array<int, 3>;

/// The version in "ingot 1.2.3", to which a suffix such as rc1 may be joined.
std::optional<Numbers> numbers_of(std::string_view producer) {
  constexpr std::string_view kName = "ingot ";
  constexpr std::size_t kMost = 40;  // characters: the name goes into messages
  if (!producer.starts_with(kName) || producer.size() > kMost) return std::nullopt;
  const char* at = producer.data() + kName.size();
  const char* const end = producer.data() + producer.size();
  Numbers numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0 && (at == end || *at++ != '.')) return std::nullopt;
    if (at == end || *at < '0' || *at > '9') return std::nullopt;
    const auto [next, fault] = std::from_chars(at, end, numbers[i]);
    if (fault != std::errc()) return std::nullopt;
    at = next;
  }
  for (; at != end; ++at) {
    const bool plain = (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') || *at == '.' || *at == '+';
    if (!plain) return std::nullopt;
  }
  return numbers;
}

std::string this_library() { return std::string("ingot ") + library_version(); }

}  // namespace

const char* library_version() noexcept { return INGOT_VERSION; }

bool is_newer(std::string_view producer) {
  static const std::optional<Numbers> ours = numbers_of(this_library());
  const std::optional<Numbers> theirs = numbers_of(producer);
  return ours && theirs && *theirs > *ours;
}

std::string who_reads(std::string_view producer) {
  const std::string here = "this is " + this_library();
  if (is_newer(producer)) {
    const std::string name(producer);
    return "written by " + name + ", " + here + ": use " + name + " or newer, or build the engine again with this one";
  }
  const std::string writer = producer.empty() ? "" : "written by " + quote(producer) + ", ";
  return writer + here + ": use the version that wrote it, or build the engine again with this one";
}

void check_version(const Json& json, const char* key, std::int64_t oldest, std::int64_t newest) {
  if (!json.is_object() || !json.contains(key) || !json[key].is_number_integer()) return;
  const Json& number = json[key];
  if (!number.is_number_unsigned()) {  // what is unsigned here is beyond 63 bits
    const auto value = number.get<std::int64_t>();
    if (value < 1 || (value >= oldest && value <= newest)) return;
  }
  const std::string range = std::to_string(oldest) + (oldest == newest ? "" : " to " + std::to_string(newest));
  throw Error(code::engine_version, std::string("it is of ") + key + " " + number.dump() + "; this ingot reads " + key +
                                        (oldest == newest ? " " : "s ") + range);
}

std::string_view producer_of(const Json& ours) {
  const auto found = ours.find("producer");
  return found != ours.end() && found->is_string() ? found->get_ref<const std::string&>() : std::string_view();
}

void check_format(const Json& ours) {
  check_version(ours, "format", kOldestFormat, kNewestFormat);
  if (!ours.is_object() || !ours.contains("format") || !ours["format"].is_number_integer() || ours["format"] < 1)
    throw Error(code::engine_file, "the engine's description has no format number from 1 on");
}

Error explained(const Error& error, std::string_view producer) {
  const std::string_view what = error.code;
  const bool of_file = what == code::engine_file || what == code::program || what == code::kernel_refused;
  if (what != code::engine_version && !(of_file && is_newer(producer))) return error;
  return {code::engine_version, std::string(error.what()) + "; " + who_reads(producer)};
}

}  // namespace ingot
