// SentencePiece's precompiled normalization table (precompiled_charsmap, nmt_nfkc): a double-array trie from byte
// strings to their replacements.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace esp::data {

class Charsmap {
 public:
  Charsmap() = default;
  // `blob` as in a .model file: size of the trie, its units, then zero-terminated replacements. Throws IoError. A trie
  // entry that points outside the trie does not match.
  Charsmap(std::string_view blob, std::string_view what);

  bool empty() const { return units_.empty(); }
  struct Replacement {
    size_t bytes = 0;  // length of the longest source string that matches; 0: no match
    std::string_view into;
  };
  Replacement match(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace esp::data
