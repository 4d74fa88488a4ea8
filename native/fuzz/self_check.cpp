// A call that touches what it was not given, made by hand.
#include "self_check.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "executor.h"
#include "memory.h"

namespace ingot::fuzz {
namespace {

constexpr std::int64_t kSize = 5;  // elements of each operand
constexpr std::uint64_t kResult = align_up(2 * kSize * sizeof(float));  // bytes of a result with gaps
constexpr Scratch kScratch{40, 24};
#ifdef __SANITIZE_ADDRESS__
constexpr bool kSeesReads = true;
#else
constexpr bool kSeesReads = false;
#endif

struct Trespass {
  const char* name;
  bool reads;  // which only the address sanitizer sees
  void (*run)(const TensorView& in, const TensorView& out, const Worker& worker);
};

void read(const void* at) { (void)*static_cast<const volatile char*>(at); }
void write(void* at) { *static_cast<volatile char*>(at) = 1; }
/// As instructions that the sanitizer does not look at do.
[[gnu::no_sanitize("address")]] void write_unseen(void* at) { *static_cast<volatile char*>(at) = 1; }

float* floats(const TensorView& view) { return view.as<float>(); }

const Trespass kTrespasses[] = {
    {"reads behind an operand", true, [](auto& in, auto&, auto&) { read(floats(in) + kSize); }},
    {"reads before an operand", true, [](auto& in, auto&, auto&) { read(floats(in) - 2); }},
    {"reads a buffer that is no operand", true,
     [](auto& in, auto&, auto&) { read(in.template as<std::byte>() + align_up(kSize * sizeof(float))); }},
    {"writes behind a result", false, [](auto&, auto& out, auto&) { write(floats(out) + 2 * kSize); }},
    {"writes into the gap of a result", false, [](auto&, auto& out, auto&) { write_unseen(floats(out) + 1); }},
    {"writes an operand", false, [](auto& in, auto&, auto&) { write_unseen(in.data); }},
    {"writes before a result, where the first worker's is if it is a group's", false,
     [](auto&, auto& out, auto&) { write_unseen(out.template as<std::byte>() - kResult); }},
    {"reads behind its shared memory", true, [](auto&, auto&, auto& worker) { read(worker.shared + kScratch.shared); }},
    {"writes behind its own memory", false,
     [](auto&, auto&, auto& worker) { write_unseen(worker.local + kScratch.per_thread); }},
};

class Trespasser final : public Kernel {
 public:
  explicit Trespasser(const Trespass* trespass) : trespass_(trespass) {}
  Scratch plan(std::span<const TensorView>, std::span<const TensorView>, int) const override { return kScratch; }
  void run(std::span<const TensorView> in, std::span<const TensorView> out, const Worker& worker) const override {
    for (std::int64_t i = 0; i < kSize; ++i) {
      out[0].as<float>()[i * out[0].stride[0]] = in[0].as<float>()[i];
      worker.shared[i] = worker.local[i] = std::byte{0};
    }
    if (trespass_ != nullptr) trespass_->run(in[0], out[0], worker);
  }

 private:
  const Trespass* trespass_;
};

/// One call on an arena of three buffers, of which the second is no operand and the third has gaps. group: it is the second worker's alone,
/// and each worker has a third buffer.
void run_call(const Trespass* trespass, bool group) {
  const Trespasser kernel(trespass);
  const std::uint64_t room = align_up(kSize * sizeof(float));
  const int workers = group ? 2 : 1;
  const auto times = static_cast<std::uint64_t>(workers);
  StagePlan plan;
  plan.layout.bytes = plan.shared_offset = 2 * room + times * kResult;
  plan.local_offset = plan.shared_offset + align_up(kScratch.shared);
  plan.local_bytes = (group ? align_up(kScratch.shared) : 0) + align_up(kScratch.per_thread);
  plan.arena_bytes = plan.local_offset + times * plan.local_bytes;
  const Pages arena(plan.arena_bytes, "the arena");
  TensorView in{arena.data(), DType::float32, 1, {kSize}, {1}};
  TensorView out{arena.data() + 2 * room, DType::float32, 1, {kSize}, {2}};
  plan.views = {in, out};
  plan.apart = {0, kResult};
  plan.steps = {{0, &kernel, {0, 1}, {1, 1}}};
  if (group) plan.steps[0].group = 1, plan.steps[0].shared = align_up(kScratch.shared);
  RedZones zones;
  zones.begin(0, arena.data(), arena.size());
  Region region{};
  region.steps = plan.steps;
  region.plan = &plan;
  region.arena = arena.data();
  region.pool = &ThreadPool::get(workers);
  region.zones = &zones;
  region.run();
}

bool ends_well(const Trespass* trespass, bool group) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(8);
    run_call(trespass, group);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0;
}

}  // namespace

int self_check() {
  int missed = 0;
  for (const bool group : {false, true}) {
    if (ends_well(nullptr, group)) continue;
    std::printf("a call that does nothing wrong is reported%s\n", group ? ", for a group of images" : "");
    ++missed;
  }
  for (const Trespass& trespass : kTrespasses) {
    if (trespass.reads && !kSeesReads) {
      std::printf("a call that %s: not looked for without the address sanitizer\n", trespass.name);
      continue;
    }
    const bool found = !ends_well(&trespass, false) && !ends_well(&trespass, true);
    std::printf("a call that %s: %s\n", trespass.name, found ? "found" : "MISSED");
    missed += !found;
  }
  return missed == 0 ? 0 : 1;
}

}  // namespace ingot::fuzz
