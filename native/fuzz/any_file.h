// Files that may be no engines: changed bytes and tokens of good ones, and everything that can be done with the result.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace ingot::fuzz {

/// Reads a file's bytes, plans and runs every entry; the outcome is "ok" or the first error's code.
std::string check_file(const std::string& bytes, std::mt19937_64& random);

/// Changes single bytes, and numbers and names of the header: most results break a rule, which is what they are for.
class TokenMutator {
 public:
  TokenMutator(const std::vector<std::string>& corpus, std::uint64_t seed) : corpus_(corpus), random_(seed) {}

  std::mt19937_64& random() { return random_; }
  std::string next();

 private:
  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_;

  template <class List>
  const typename List::value_type& pick(const List& list) {
    return list[random_() % list.size()];
  }
  void change_bytes(std::string& file, std::size_t begin, std::size_t end);
  void change_token(std::string& file, std::size_t end);
};

}  // namespace ingot::fuzz
