// Mutations below the level of programs: they reach the container, the parser and the verifier.
#include "any_file.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>

#include "case.h"
#include "error.h"
#include "session.h"

namespace ingot::fuzz {
namespace {

constexpr std::size_t kDigestAt = 8 + 33;  // behind the length and {"__metadata__":{"ingot.sha256":"
constexpr std::uint64_t kMostArena = 1 << 20;
constexpr std::int64_t kMostElements = 1 << 16;  // of any operand: a case must be quick
constexpr std::int64_t kMostRounds = 1 << 12;    // of all loops together, for the same reason

// ---- one case ---------------------------------------------------------------------------------------------

bool small(const Program& program, const StagePlan& plan) {
  const auto quick = [&](const Step& step) {
    const Call& call = program.calls[static_cast<std::size_t>(step.call)];
    for (std::size_t b = 0; b < call.bodies.size(); ++b)
      if (!small(*call.bodies[b].program, plan.bodies[step.bodies + b])) return false;
    return true;
  };
  const bool views = std::all_of(plan.views.begin(), plan.views.end(),
                                 [](const TensorView& view) { return view.elements() <= kMostElements; });
  return views && plan.arena_bytes <= kMostArena && std::all_of(plan.steps.begin(), plan.steps.end(), quick);
}

/// Counts up, small integers or wild bytes: indices in and out of range, metadata that is in order and that is not.
void fill(const TensorView& array, std::mt19937_64& random) {
  const std::uint64_t kind = random() % 4;
  const std::size_t size = size_of(array.dtype);
  for (std::int64_t i = 0; i < array.elements(); ++i) {
    std::uint64_t value = kind == 0 ? static_cast<std::uint64_t>(i) : kind == 1 ? random() : random() % 4;
    if (kind == 2 && random() % 16 == 0) value = ~std::uint64_t{0};
    std::memcpy(array.as<std::byte>() + static_cast<std::size_t>(i) * size, &value, size);
  }
}

/// Plans stage 0 of an entry for one value of all symbols and runs it when that is cheap.
void run_entry(const std::shared_ptr<const Engine>& engine, const std::string& entry, std::int64_t size,
               std::mt19937_64& random) {
  const LoadedProgram& loaded = engine->load(entry);
  const Program& program = *loaded.program;
  std::vector<std::int64_t> symbols;
  for (const Symbol& symbol : program.dims.symbols())
    symbols.push_back(symbol.unbacked ? 0 : std::clamp(size, symbol.min, symbol.max));
  const States states(program, {4, 16});
  const StagePlan plan = make_plan({loaded, 0, 1, symbols, nullptr, states.views()});
  if (!small(program, plan) || states.bytes() > kMostArena) return;
  Session session(engine, entry, {1, {4, 16}, kMostRounds},
                  [](const HostRequest&) { return std::vector<HostArray>(); });
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorView> arrays(plan.at(plan.entering).begin(), plan.at(plan.entering).end());
  for (TensorView& array : arrays) {
    memory.emplace_back(static_cast<std::size_t>(array.elements()) * size_of(array.dtype) + 1);
    array.data = memory.back().data();
    fill(array, random);
  }
  Session::Run run(session);
  run.execute(arrays);
}

constexpr const char* kNumbers[] = {
    "0",    "-1",    "1",          "2",          "3",                   "5",                    "7",
    "8",    "15",    "16",         "17",         "63",                  "64",                   "65",
    "4096", "65536", "2147483647", "4294967296", "9223372036854775807", "-9223372036854775808", "18446744073709551615",
    "0.5",  "1e400", "null",       "true",       "[]",                  "{}"};
constexpr const char* kNames[] = {"T",    "B",           "n",      "x",      "w",       "+",        "//",    "%",
                                  "in",   "input",       "weight", "temp",   "float32", "bfloat16", "int64", "bool",
                                  "out",  "axis",        "state",  "matmul", "concat",  "reduce",   "take",  "copy",
                                  "view", "elementwise", "max"};

/// Puts length, padding and digest in order again, so that a change inside the header is not stopped by the checksum.
void repair(std::string& file, std::size_t old_header) {
  if (old_header < kDigestAt + 64 || file.size() < 8 + old_header) return;
  std::string header = file.substr(8, old_header);
  header.erase(header.find_last_not_of(' ') + 1);
  if (header.size() < kDigestAt - 8 + 64) return;
  file = seal(header, file.substr(8 + old_header));
}

}  // namespace

std::string check_file(const std::string& bytes, std::mt19937_64& random) {
  std::string outcome = "ok";
  const auto attempt = [&](auto&& action) {
    try {
      action();
    } catch (const Error& error) {
      if (outcome == "ok") outcome = error.code;
    } catch (const std::bad_alloc&) {
      if (outcome == "ok") outcome = code::memory;
    }
  };
  attempt([&] {
    const auto engine = std::make_shared<const Engine>(Container::parse(bytes));
    for (const std::string& entry : engine->entries()) {
      for (std::int64_t size : {1, 3, 17}) attempt([&] { run_entry(engine, entry, size, random); });
    }
  });
  return outcome;
}

std::string TokenMutator::next() {
  std::string file = pick(corpus_);
  std::uint64_t n = 0;
  if (file.size() >= 8) std::memcpy(&n, file.data(), 8);
  if (n == 0 || n > file.size() - 8 || random_() % 16 == 0) {
    change_bytes(file, 0, file.size());
    return file;
  }
  const std::size_t before = file.size();
  for (std::uint64_t changes = random_() % 2 == 0 ? 1 : 1 + random_() % 4; changes > 0; --changes) {
    const std::size_t end = 8 + n + file.size() - before;
    const std::size_t text_end = std::min(file.size(), file.find_last_not_of(' ', end - 1) + 1);
    random_() % 8 == 0 ? change_bytes(file, 8, text_end) : change_token(file, text_end);
  }
  const std::size_t header = n + file.size() - before;
  if (random_() % 64 != 0) repair(file, header);
  return file;
}

void TokenMutator::change_bytes(std::string& file, std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  const std::size_t at = begin + random_() % (end - begin);
  switch (random_() % 4) {
    case 0: file[at] = static_cast<char>(random_()); break;
    case 1: file.erase(at, 1 + random_() % 64); break;
    case 2: file.insert(at, file.substr(begin + random_() % (end - begin), random_() % 64)); break;
    default: file.resize(at); break;
  }
}

/// Replaces one number, name or list of the header by another: changes that stay JSON.
void TokenMutator::change_token(std::string& file, std::size_t end) {
  const std::size_t begin = kDigestAt + 64;
  if (end <= begin + 1) return;
  std::size_t at = begin + random_() % (end - begin);
  const auto word = [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_';
  };
  while (at < end && !word(file[at])) ++at;
  if (at == end) return;
  std::size_t first = at, last = at;
  while (first > begin && word(file[first - 1])) --first;
  while (last < end && word(file[last])) ++last;
  const bool number = std::isdigit(static_cast<unsigned char>(file[first])) != 0 || file[first] == '-';
  const std::uint64_t choice = random_();
  file.replace(first, last - first,
               number ? kNumbers[choice % std::size(kNumbers)] : kNames[choice % std::size(kNames)]);
}

}  // namespace ingot::fuzz
