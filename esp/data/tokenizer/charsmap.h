// SentencePiece's compiled normalization: a double-array trie from byte strings to their replacements (nmt_nfkc).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace esp::data {

class Charsmap {
 public:
  Charsmap() = default;
  // The blob as in a .model file: size of the trie, its units, then the replacements, each ended by a zero. Throws
  // IoError; a trie that points outside itself simply does not match.
  Charsmap(std::string_view blob, std::string_view what);

  bool empty() const { return units_.empty(); }
  struct Match {
    size_t bytes = 0;  // of the longest source that begins the text; 0: none
    std::string_view into;
  };
  Match match(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace esp::data
