// Fuzzes everything that an engine file reaches: container, description, programs, planning, and every kernel at every
// level that this machine has, with one, two and three threads. Built under ASan and UBSan with red zones
// (cmake -DINGOT_SANITIZE=ON).
//
//   fuzz_reader FILE|DIRECTORY…            each file once, with its outcome; a saved case is run and compared again
//   fuzz_reader --seconds N [--seed S] [--jobs J] [--faults DIRECTORY] [--kernel NAME] [--level NAME]
//               FILE|DIRECTORY…
//   fuzz_reader --self-check               whether strays that are made on purpose are found
//
// Most cases are valid programs made from the templates in the corpus (template.h), run once with strided operands and
// once with plain ones, which must agree; one in eight is a file with changed bytes or tokens. Each job runs its cases
// in a child process. When a fault ends it, or results differ, the job takes away what of the layout the fault does not
// need, saves the case as DIRECTORY/fault-J-K.ingot with what was said in fault-J-K.txt, and goes on. The exit code is
// 1 when there were faults, and 3 when there were none but some kernel never ran at some level.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "any_file.h"
#include "coverage.h"
#include "error.h"
#include "self_check.h"
#include "template.h"

namespace ingot::fuzz {
namespace {

namespace files = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kDiffers = 9;            // exit code of a child whose two variants disagree
constexpr int kFaultsPerTemplate = 2;  // then the template is left out: one fault is enough to mend
constexpr int kMostFaults = 200;
constexpr std::size_t kCopies = 8;     // of files with control calls among those that are changed
constexpr unsigned kCaseSeconds = 60;

std::string read(const files::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write(const files::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

std::map<std::string, std::string> read_all(const std::vector<std::string>& paths) {
  std::map<std::string, std::string> found;
  for (const std::string& path : paths) {
    if (!files::is_directory(path)) {
      found[path] = read(path);
      continue;
    }
    for (const auto& entry : files::recursive_directory_iterator(path))
      if (entry.is_regular_file()) found[entry.path().string()] = read(entry.path());
  }
  return found;
}

/// Our header of a file that is an engine; null for any other.
Json header_of(const std::string& bytes) {
  try {
    return Json::parse(Container::parse(bytes).header(), nullptr, false);
  } catch (const Error&) {
    return nullptr;
  }
}

bool has_bodies(const std::string& bytes) { return bytes.find("bodies") != std::string::npos; }

/// A case that hangs is a finding, too.
void on_alarm(int) {
  constexpr char kText[] = "fuzz_reader: one case took more than 60 s\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
  std::abort();
}

struct Settings {
  long seconds = 0;
  std::uint64_t seed = 1;
  int jobs = 1;
  files::path faults = ".";
  std::string kernel;  // only its templates
  std::vector<Level> levels = usable_levels();
  std::vector<std::string> paths;
};

/// Runs a case both ways. What is wrong, or empty.
std::string run_case(const Case& one, Counts* counts, std::string* declined = nullptr) {
  red_zone_fill = std::byte{0xff};
  const Outcome strided = run_variant(one, one.strided);
  red_zone_fill = std::byte{0x11};
  const Outcome plain = run_variant(one, one.plain);
  if (counts == nullptr) {
    std::printf("%s at %s: strided %s%s%s, plain %s%s%s\n", one.name.c_str(), std::string(name_of(one.level)).c_str(),
                strided.code.c_str(), strided.message.empty() ? "" : ": ", strided.message.c_str(), plain.code.c_str(),
                plain.message.empty() ? "" : ": ", plain.message.c_str());
    return contradiction(one, strided, plain);
  }
  KernelCounts& kernel = *counts_of(*counts, one.name.substr(0, one.name.find('.')));
  for (const Outcome* outcome : {&strided, &plain}) {
    count_calls(*counts, *outcome, one.level);
    const bool expected = outcome->code == "ok" || outcome->code == code::kernel_refused ||
                          outcome->code == code::value || outcome->code == code::memory;
    if (!expected && counts->invalid++ == 0)
      std::snprintf(counts->invalid_message, sizeof counts->invalid_message, "%s: %s: %s", one.name.c_str(),
                    outcome->code.c_str(), outcome->message.c_str());
  }
  const std::string wrong = contradiction(one, strided, plain);
  if (!wrong.empty()) return wrong;
  if (strided.code == "ok" && plain.code == "ok") ++kernel.compared;
  else if (strided.code == code::value) ++kernel.values;
  else ++kernel.layouts;
  if (declined != nullptr) *declined = plain.message;
  return "";
}

class Fuzzer {
 public:
  Fuzzer(const Settings& settings, const std::map<std::string, std::string>& corpus, Counts& counts, int job)
      : settings_(settings), counts_(counts), job_(job), end_(Clock::now() + std::chrono::seconds(settings.seconds)) {
    for (const auto& [path, content] : corpus) {
      // There are few with programs in programs, and a changed token of the many others reaches nothing of those.
      if (content.size() <= 1 << 16) files_.insert(files_.end(), has_bodies(content) ? kCopies : 1, content);
      const Json header = header_of(content);
      if (!header.is_object() || !header.contains("config") || !header["config"].contains("fuzz")) continue;
      Template one(files::path(path).stem().string(), header["config"]["fuzz"]);
      if (counts_of(counts_, one.kernel()) == nullptr)
        throw std::runtime_error(path + ": there is no kernel " + one.kernel());
      if (settings.kernel.empty() || settings.kernel == one.kernel()) templates_.push_back(std::move(one));
    }
    if (!settings.kernel.empty() && templates_.empty())
      throw std::runtime_error("no template is of a kernel " + settings.kernel);
    std::map<std::string, std::vector<std::uint32_t>> by_kernel;
    for (std::uint32_t i = 0; i < templates_.size(); ++i) by_kernel[templates_[i].kernel()].push_back(i);
    for (auto& [kernel, indices] : by_kernel) by_kernel_.push_back(std::move(indices));
    if (templates_.size() > kMostTemplates) throw std::runtime_error("too many templates");
  }

  std::size_t templates() const { return templates_.size(); }

  void run() {
    for (std::uint64_t round = 0; Clock::now() < end_ && counts_.faults < kMostFaults; ++round) {
      const int status = in_child([&] { work(round); });
      if (status != 0) save(++counts_.faults, status);
    }
    files::remove(current());
    files::remove(log());
  }

 private:
  const Settings& settings_;
  Counts& counts_;
  int job_;
  Clock::time_point end_;
  std::vector<Template> templates_;
  std::vector<std::vector<std::uint32_t>> by_kernel_;  // their numbers: kernels come equally often
  std::vector<std::string> files_;

  files::path own(const std::string& name) const { return settings_.faults / (name + "-" + std::to_string(job_)); }
  files::path log() const { return own("stderr"); }
  files::path current() const { return own("case"); }

  /// Calls `action` in a child whose messages go to the log; its exit status, 0 when all is well.
  template <class Action>
  int in_child(const Action& action) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("cannot fork");
    if (child == 0) {
      if (std::freopen(log().c_str(), "w", stderr) == nullptr) _exit(8);
      std::signal(SIGALRM, on_alarm);
      action();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }

  void work(std::uint64_t round) {
    Random random(settings_.seed, (static_cast<std::uint64_t>(job_) << 32) + round);
    TokenMutator tokens(files_, random.engine()());
    while (Clock::now() < end_) {
      if (templates_.empty() || (settings_.kernel.empty() && random.chance(8))) {
        if (!files_.empty()) change_file(tokens);
      } else {
        counts_.template_index = random.pick(random.pick(by_kernel_));
        counts_.level = static_cast<std::uint32_t>(random.pick(settings_.levels));
        counts_.seed = random.engine()();
        counts_.plain = 0;
        if (counts_.muted[counts_.template_index] < kFaultsPerTemplate) make_case();
      }
    }
  }

  void change_file(TokenMutator& tokens) {
    counts_.token_case = 1;
    const std::string file = tokens.next();
    write(current(), file);
    alarm(kCaseSeconds);
    check_file(file, tokens.random());
    alarm(0);
    ++counts_.tokens;
  }

  /// Makes the case of `counts_` and runs it. When a layout is declined, buffers go back to plain ones until it runs.
  void make_case() {
    counts_.token_case = 0;
    const Template& made_from = templates_[counts_.template_index];
    KernelCounts& kernel = *counts_of(counts_, made_from.kernel());
    Random random(counts_.seed, ~std::uint64_t{0});
    constexpr int kTries = 4;
    std::string declined_because;
    for (int tries = 0; tries < kTries; ++tries) {
      const std::optional<Case> one = made_from.make(counts_.seed, counts_.plain, static_cast<Level>(counts_.level));
      if (!one) {
        ++counts_.large;
        return;
      }
      write(current(), encode(*one));
      const std::uint64_t declined = kernel.layouts;
      alarm(kCaseSeconds);
      const std::string wrong = run_case(*one, &counts_, &declined_because);
      alarm(0);
      ++counts_.cases;
      if (!wrong.empty()) {
        std::fprintf(stderr, "fuzz_reader: %s\n", wrong.c_str());
        std::fflush(stderr);
        _exit(kDiffers);
      }
      if (kernel.layouts == declined) return;
      counts_.plain |= tries + 2 == kTries ? ~std::uint64_t{0} : random.engine()();
    }
    ++kernel.declined;
    std::snprintf(kernel.why, sizeof kernel.why, "%s", declined_because.c_str());
  }

  void save(std::uint64_t number, int status) {
    const std::string name = own("fault").string() + "-" + std::to_string(number);
    std::string what = "a changed file";
    if (counts_.token_case == 0) {
      const Template& made_from = templates_[counts_.template_index];
      ++counts_of(counts_, made_from.kernel())->faults;
      ++counts_.muted[counts_.template_index];
      what = made_from.name() + " at " + std::string(name_of(static_cast<Level>(counts_.level)));
      std::string said = read(log());
      reduce(status, said);
      write(log(), said);
    }
    files::copy_file(current(), name + ".ingot", files::copy_options::overwrite_existing);
    files::copy_file(log(), name + ".txt", files::copy_options::overwrite_existing);
    std::printf("FAULT: %s: %s\n  again: fuzz_reader %s.ingot\n", what.c_str(), first_line().c_str(), name.c_str());
    std::fflush(stdout);
  }

  /// Puts buffers back to plain ones as long as the case still ends the same way; leaves the smallest case and its log.
  void reduce(int status, std::string& said) {
    const Template& made_from = templates_[counts_.template_index];
    const auto level = static_cast<Level>(counts_.level);
    std::uint64_t plain = counts_.plain;
    for (int bit = 0; bit < 16; ++bit) {
      const std::uint64_t fewer = plain | std::uint64_t{1} << bit;
      if (fewer == plain) continue;
      const int found = in_child([&] {
        const std::optional<Case> one = made_from.make(counts_.seed, fewer, level);
        alarm(kCaseSeconds);
        const std::string wrong = one ? run_case(*one, &counts_) : "";
        if (wrong.empty()) return;
        std::fprintf(stderr, "fuzz_reader: %s\n", wrong.c_str());
        std::fflush(stderr);
        _exit(kDiffers);
      });
      if (found != status) continue;
      plain = fewer;
      said = read(log());
    }
    if (const std::optional<Case> one = made_from.make(counts_.seed, plain, level)) write(current(), encode(*one));
  }

  /// The line of the log that says most.
  std::string first_line() const {
    std::ifstream stream(log());
    std::string line;
    while (std::getline(stream, line))
      if (line.find("ERROR:") != std::string::npos || line.find("runtime error") != std::string::npos ||
          line.starts_with("fuzz_reader:") || line.starts_with("ingot:"))
        return line.substr(0, 300);
    return "ended without a word";
  }
};

int fuzz(const Settings& settings, const std::map<std::string, std::string>& corpus) {
  files::create_directories(settings.faults);
  Counts* counts = shared_counts(settings.jobs);
  std::size_t templates = 0;
  std::vector<pid_t> children;
  for (int job = 0; job < settings.jobs; ++job) {
    Fuzzer fuzzer(settings, corpus, counts[job], job);
    templates = fuzzer.templates();
    std::fflush(stdout);
    children.push_back(fork());
    if (children.back() < 0) throw std::runtime_error("cannot fork");
    if (children.back() != 0) continue;
    fuzzer.run();
    std::fflush(stdout);
    _exit(0);
  }
  bool ended_well = true;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    ended_well = ended_well && status == 0;
  }
  for (int job = 1; job < settings.jobs; ++job) add_counts(counts[0], counts[job]);
  const Counts& all = counts[0];
  const auto number = [](std::uint64_t count) { return static_cast<unsigned long long>(count); };
  std::printf("%llu cases from %zu templates and %llu changed files, seed %llu, %d jobs: %llu faults, %llu invalid, "
              "%llu too large\n",
              number(all.cases), templates, number(all.tokens), number(settings.seed), settings.jobs,
              number(all.faults), number(all.invalid), number(all.large));
  print_table(all);
  if (all.invalid != 0) std::printf("first invalid program: %s\n", all.invalid_message);
  if (!ended_well || all.faults != 0 || all.invalid != 0) return 1;
  if (!settings.kernel.empty() || templates == 0) return 0;
  const std::vector<std::string> missing = never_ran(all, settings.levels);
  for (const std::string& text : missing) std::printf("never ran: %s\n", text.c_str());
  return missing.empty() ? 0 : 3;
}

int replay(const std::map<std::string, std::string>& given, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  int wrong_cases = 0;
  for (const auto& [path, content] : given) {
    if (!is_case(header_of(content))) {
      std::printf("%s: %s\n", path.c_str(), check_file(content, random).c_str());
      continue;
    }
    const std::string wrong = run_case(decode(Container::parse(content)), nullptr);
    std::printf("%s: %s\n", path.c_str(), wrong.empty() ? "agrees" : wrong.c_str());
    wrong_cases += !wrong.empty();
  }
  return wrong_cases == 0 ? 0 : 1;
}

Settings read_settings(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool option = argument.starts_with("--");
    if (option && i + 1 == argc) throw std::runtime_error(argument + " needs a value");
    const std::string value = option ? argv[++i] : "";
    if (argument == "--seconds") {
      settings.seconds = std::atol(value.c_str());
    } else if (argument == "--seed") {
      settings.seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (argument == "--jobs") {
      settings.jobs = std::clamp(std::atoi(value.c_str()), 1, 64);
    } else if (argument == "--faults") {
      settings.faults = value;
    } else if (argument == "--kernel") {
      settings.kernel = value;
    } else if (argument == "--level") {
      std::erase_if(settings.levels, [&](Level level) { return name_of(level) != value; });
      if (settings.levels.empty()) throw std::runtime_error("this machine has no level " + value);
    } else if (option) {
      throw std::runtime_error("there is no option " + argument);
    } else {
      settings.paths.push_back(argument);
    }
  }
  return settings;
}

}  // namespace
}  // namespace ingot::fuzz

int main(int argc, char** argv) {
  using namespace ingot::fuzz;
  if (argc == 2 && argv[1] == std::string("--self-check")) return self_check();
  try {
    const Settings settings = read_settings(argc, argv);
    const std::map<std::string, std::string> given = read_all(settings.paths);
    if (given.empty()) {
      std::fprintf(stderr,
                   "usage: fuzz_reader [--seconds N] [--seed S] [--jobs J] [--faults DIRECTORY] [--kernel NAME] "
                   "[--level NAME] FILE|DIRECTORY…\n");
      return 2;
    }
    return settings.seconds > 0 ? fuzz(settings, given) : replay(given, settings.seed);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz_reader: %s\n", error.what());
    return 2;
  }
}
