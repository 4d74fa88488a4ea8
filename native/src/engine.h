// An engine: a container whose programs are parsed and verified. Immutable and shared by sessions.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "container.h"
#include "kernel.h"
#include "layout.h"
#include "program.h"

namespace ingot {

/// A program made ready to run here: its kernels made, its weights found.
struct LoadedProgram {
  const Program* program;
  std::vector<std::shared_ptr<const Kernel>> kernels;  // by call; none for host and control calls
  std::vector<std::vector<LoadedProgram>> bodies;      // by call
  std::vector<const std::byte*> weights;               // by buffer; null for all others
  std::vector<Stage> stages;
  std::uint64_t weight_bytes = 0;  // of the tensors that it uses
};

class Engine {
 public:
  /// Its kernels are made for `level`, or for current_level() when there is none. Throws Error("engine_file"),
  /// ("engine_version"), ("program"), ("io"), ("memory").
  explicit Engine(Container container, std::optional<Level> level = std::nullopt);
  /// An engine of the programs of `like` with other tensors. It takes over the kernels of `like`, with what these have made of
  /// the weights that they keep, where those weights lie where they lay. Throws what load() does.
  Engine(Container container, const Engine& like);
  /// The same from a file; every message begins with its path.
  static std::shared_ptr<const Engine> open(const std::string& path, WeightPlace place = WeightPlace::mapped);

  const Container& container() const noexcept { return container_; }
  /// The names of the entries for the CPU, sorted.
  std::vector<std::string> entries() const;
  /// Throws Error("argument") for an unknown entry.
  const Program& program(const std::string& entry) const;
  /// Loads on first use. Throws Error("program") when a weight does not fit the file's tensor, Error("kernel_refused"),
  /// Error("engine_version") for a version of a kernel that is not here.
  const LoadedProgram& load(const std::string& entry) const;

 private:
  Container container_;
  std::optional<Level> level_;
  std::string producer_;
  std::shared_ptr<const std::map<std::string, Program>> programs_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<LoadedProgram>> loaded_;

  std::unique_ptr<LoadedProgram> loaded(const std::string& entry, const LoadedProgram* like) const;
};

/// Points a program's weights into the container, and makes its kernels or takes over those of `like`, the same program. The
/// same for all bodies in it.
std::unique_ptr<LoadedProgram> load_program(const Program& program, const std::string& entry,
                                            const Container& container, Level level,
                                            const LoadedProgram* like = nullptr);

}  // namespace ingot
