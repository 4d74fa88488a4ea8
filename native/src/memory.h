// Memory straight from the operating system: arenas and caches (anonymous, huge pages) and mapped files.
#pragma once

#include <cstddef>
#include <string>

namespace ingot {

/// Zeroed memory aligned to 64 bytes at least, in huge pages where the system has them. Pages are taken when first
/// touched.
class Pages {
 public:
  Pages() = default;
  /// Throws Error("memory"), whose message says that it was for `purpose`.
  Pages(std::size_t bytes, const char* purpose);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
};

/// A regular file, mapped read-only. When the file is shortened under the mapping, the process ends with exit code 1
/// and one line on standard error that names the file, instead of a crash.
class MappedFile {
 public:
  /// Throws Error("io") when the system refuses, Error("engine_file") when `path` is not a regular file or is empty.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }

 private:
  const char* data_ = nullptr;
  std::size_t bytes_ = 0;
  int guard_ = -1;  // slot of the SIGBUS guard
};

}  // namespace ingot
