// A session: its options, its states, and one run at a time.
#include "session.h"

#include "error.h"

namespace ingot {
namespace {

int checked_threads(int threads) {
  if (threads < 0 || threads > kMaxThreads) {
    throw Error(code::argument, "threads: " + std::to_string(threads) + " is not in 0 … " +
                                    std::to_string(kMaxThreads) + " (0: as many as the machine gives)");
  }
  return threads == 0 ? default_threads() : threads;
}

}  // namespace

Session::Session(std::shared_ptr<const Engine> engine, const std::string& entry, const SessionOptions& options,
                 Host host)
    : engine_(std::move(engine)),
      loaded_(engine_->load(entry)),
      threads_(checked_threads(options.threads)),
      states_(program(), options.cache),
      together_{std::move(host), threads_, states_.views(), nullptr, options.rounds, 0},
      runner_(loaded_, together_) {
  const std::vector<std::string> operations = program().host_operations();
  if (!operations.empty() && !together_.host) {
    std::string names;
    for (const std::string& name : operations) names += (names.empty() ? "" : ", ") + name;
    throw Error(code::argument, "the program has operations without a native kernel (" + names +
                                    "): run it from Python, which has references for them");
  }
}

MemoryReport Session::memory() const {
  MemoryReport report;
  report.weights = loaded_.weight_bytes;
  report.arena = runner_.arena_bytes();
  report.state = states_.bytes();
  report.arena_lower_bound = runner_.lower_bound();
  return report;
}

PlannedMemory Session::planned(const std::map<std::string, std::int64_t>& symbols) const {
  if (program().stages != 1) throw Error(code::argument, "the program binds symbols while it runs");
  std::vector<std::int64_t> values;
  for (const Symbol& symbol : program().dims.symbols()) {
    const auto found = symbols.find(symbol.name);
    if (found == symbols.end()) throw Error(code::argument, "the symbol " + quote(symbol.name) + " has no value");
    values.push_back(found->second);
  }
  const StagePlan plan = make_plan({loaded_, 0, threads_, values, nullptr, states_.views()});
  return {plan.layout.bytes, plan.layout.lower_bound, plan.arena_bytes - plan.shared_offset, plan.arena_bytes,
          plan.layout.most_at};
}

// ---- one run ----------------------------------------------------------------------------------------------

Session::Run::Run(Session& session) : session_(session) {
  if (session.running_.test_and_set(std::memory_order_acquire)) {
    throw Error(
        code::busy,
        "the session is running already: a session does one run at a time, another thread needs another session");
  }
}

std::span<const TensorView> Session::Run::outputs() const { return session_.runner_.outputs(); }

void Session::Run::execute(std::span<const TensorView> arrays, const Results& results) {
  session_.runner_.run(arrays, results);
}

std::vector<CallProfile> Session::profile(std::span<const TensorView> arrays) {
  Run run(*this);
  std::vector<CallProfile> calls;
  calls.reserve(program().calls.size());
  together_.profile = &calls;
  try {
    run.execute(arrays);
  } catch (...) {
    together_.profile = nullptr;
    throw;
  }
  together_.profile = nullptr;
  return calls;
}

}  // namespace ingot
