// Anonymous pages and file mappings, and the handler that turns a lost mapping into a clean exit.
#include "memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "error.h"
#include "json.h"
#include "red_zone.h"

namespace ingot {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// ---- SIGBUS -----------------------------------------------------------------------------------------------
// A fixed table, so that the handler needs no lock and no allocation. A file that finds no free slot is refused.

struct GuardSlot {
  std::atomic<std::uintptr_t> begin{0};  // 0: free
  std::atomic<std::uintptr_t> end{0};
  char message[320] = {};
  std::size_t length = 0;
};

constexpr int kGuardSlots = 1024;
GuardSlot guard_slots[kGuardSlots];
std::mutex guard_mutex;
struct sigaction previous_action;

void on_sigbus(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const GuardSlot& slot : guard_slots) {
    const std::uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= slot.end.load(std::memory_order_relaxed)) continue;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, slot.message, slot.length);
    _exit(1);
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else {
    // The fault repeats on return, now with the default action.
    sigaction(SIGBUS, &previous_action, nullptr);
  }
}

int guard(const char* begin, std::size_t bytes, const std::string& path) {
  const std::lock_guard lock(guard_mutex);
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    return sigaction(SIGBUS, &action, &previous_action) == 0;
  }();
  for (int i = 0; installed && i < kGuardSlots; ++i) {
    GuardSlot& slot = guard_slots[i];
    if (slot.begin.load(std::memory_order_relaxed) != 0) continue;
    const std::string message = "ingot: the engine file " + path.substr(path.size() > 200 ? path.size() - 200 : 0) +
                                " was shortened or lost while it was in use; exiting\n";
    slot.length = std::min(message.size(), sizeof slot.message);
    std::memcpy(slot.message, message.data(), slot.length);
    slot.end.store(reinterpret_cast<std::uintptr_t>(begin) + bytes, std::memory_order_relaxed);
    slot.begin.store(reinterpret_cast<std::uintptr_t>(begin), std::memory_order_release);
    return i;
  }
  throw Error(code::memory, "more than " + std::to_string(kGuardSlots) + " engine files are open");
}

// ---- files ------------------------------------------------------------------------------------------------

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

[[noreturn]] void refuse(const std::string& path, const char* action) {
  const int reason = errno;
  const char* error_code = reason == ENOMEM ? code::memory : code::io;
  throw Error(error_code, "cannot " + std::string(action) + " " + path + ": " + std::strerror(reason));
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "no regular file";
}

// ---- limits ---------------------------------------------------------------------------------------------------

/// The most that this process can ever have: the machine's memory, or its cgroup's limit when that is less.
std::uint64_t memory_limit() {
  static const std::uint64_t limit = [] {
    std::uint64_t bytes =
        static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
    if (std::FILE* file = std::fopen("/sys/fs/cgroup/memory.max", "re")) {
      unsigned long long most = 0;
      if (std::fscanf(file, "%llu", &most) == 1) bytes = std::min<std::uint64_t>(bytes, most);  // else "max"
      std::fclose(file);
    }
    return bytes;
  }();
  return limit;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  if (path.find('\0') != std::string::npos) throw Error(code::io, "the path " + quote(path) + " contains a NUL byte");
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  if (file.number < 0) refuse(path, "open");
  struct stat status = {};
  if (fstat(file.number, &status) != 0) refuse(path, "look at");
  if (!S_ISREG(status.st_mode))
    throw Error(code::engine_file, path + " is " + kind_of(status.st_mode) + ", not an engine file");
  if (status.st_size <= 0) throw Error(code::engine_file, path + " is empty, not an engine file");
  bytes_ = static_cast<std::size_t>(status.st_size);
  void* mapping = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (mapping == MAP_FAILED) refuse(path, "map");
  data_ = static_cast<const char*>(mapping);
  try {
    guard_ = guard(data_, bytes_, path);
  } catch (...) {
    munmap(mapping, bytes_);
    throw;
  }
}

MappedFile::~MappedFile() {
  guard_slots[guard_].begin.store(0, std::memory_order_release);
  munmap(const_cast<char*>(data_), bytes_);
}

// ---- anonymous --------------------------------------------------------------------------------------------

Pages::Pages(std::size_t bytes, const char* purpose) : bytes_(bytes) {
  if (bytes == 0) return;
  const bool huge = bytes >= kHugePage;
  // One huge page more than needed, to begin at a huge page; and a red zone on both sides.
  if (__builtin_add_overflow(bytes, (huge ? kHugePage : 0) + 2 * kRedZone, &mapped_)) mapped_ = SIZE_MAX;
  // The system promises more than there is, and ends processes later: what can never fit is refused here.
  mapping_ = mapped_ > memory_limit()
                 ? MAP_FAILED
                 : mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw Error(code::memory, "no memory for " + std::string(purpose) + ": " + std::to_string(bytes) + " bytes (" +
                                  std::to_string(bytes >> 20) + " MiB) were asked for, and all there can be is " +
                                  std::to_string(memory_limit() >> 20) + " MiB");
  }
  auto address = reinterpret_cast<std::uintptr_t>(mapping_) + kRedZone;
  if (huge) {
    address = (address + kHugePage - 1) / kHugePage * kHugePage;
#ifdef MADV_HUGEPAGE
    madvise(reinterpret_cast<void*>(address), bytes, MADV_HUGEPAGE);  // advice: small pages do as well
#endif
  }
  data_ = reinterpret_cast<std::byte*>(address);
  close_memory(mapping_, mapped_);
  open_memory(data_, bytes_);
}

Pages::~Pages() {
  if (mapping_ == nullptr) return;
  open_memory(mapping_, mapped_);
  munmap(mapping_, mapped_);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

}  // namespace ingot
