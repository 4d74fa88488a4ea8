// The engine file as a container: a safetensors file with our header in its metadata, every byte of the layout checked.
//
//   u64 little-endian n | header: n bytes, 8 + n a multiple of 4096, padded with spaces | tensor data
//
// The header begins byte for byte with {"__metadata__":{"ingot.sha256":"<64 hex>","ingot":" and the digest is that of
// the header with those 64 digits replaced by '0'. Tensors follow each other in the order of the header without holes;
// real ones begin at multiples of 64, and padding tensors (~pad.K, U8) fill the gaps. The file ends with the last
// tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dtype.h"
#include "memory.h"

namespace ingot {

constexpr std::size_t kMaxHeaderBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxTensors = std::size_t{1} << 18;
constexpr std::size_t kMaxTensorName = 512;
constexpr std::size_t kTensorAlignment = 64;

struct Tensor {
  std::string name;
  DType dtype = DType::uint8;
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

/// Where the weights of a file lie. In the mapped file they are read when first touched, and shared with the page
/// cache. Copied into huge pages they cost the copy once, and are read faster.
enum class WeightPlace : std::uint8_t { mapped, resident };

class Container {
 public:
  /// Reads a file. Throws Error("engine_file") for anything that is not exactly a container, Error("io"),
  /// Error("memory").
  static Container open(const std::string& path, WeightPlace place = WeightPlace::mapped);

  /// A container that was never a file: our header's JSON and tensors whose data `owner` keeps.
  static Container from_memory(std::string header, std::vector<Tensor> tensors, std::shared_ptr<void> owner);

  /// A container in memory that somebody else keeps (the fuzz driver and tests); checked like a file.
  static Container parse(std::string_view bytes);

  const std::string& header() const noexcept { return header_; }
  const std::vector<Tensor>& tensors() const noexcept { return tensors_; }  // without padding, in file order
  const Tensor* find(std::string_view name) const;
  std::uint64_t bytes_mapped() const noexcept { return file_ ? file_->size() : 0; }
  std::uint64_t tensor_bytes() const noexcept;

 private:
  std::string header_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // keys live in tensors_
  std::unique_ptr<MappedFile> file_;
  Pages resident_;
  std::shared_ptr<void> owner_;

  void index();
  /// Copies the weights, points the tensors into the copy and lets go of the file.
  void make_resident();
};

}  // namespace ingot
