// SHA-256 (FIPS 180-4), for the checksum of an engine's header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ingot {

class Sha256 {
 public:
  void update(std::string_view bytes);
  /// The digest in lower-case hexadecimal; the object is spent afterwards.
  std::string hex();

 private:
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> block_ = {};
  std::size_t filled_ = 0;
  std::uint64_t length_ = 0;

  void compress(const unsigned char* block);
};

}  // namespace ingot
