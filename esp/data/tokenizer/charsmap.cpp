#include "esp/data/tokenizer/charsmap.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::data {
namespace {

// bounds the work on a damaged trie with a cycle, which would match all of the text at each byte
constexpr size_t kMaxMatchBytes = 256;

// A unit of the double array: nine low bits hold label and leaf flag, then a scale bit, then the offset of its
// children.
uint32_t label_of(uint32_t unit) {
  return unit & ((1u << 31) | 0xFF);
}
bool has_leaf(uint32_t unit) {
  return (unit >> 8) & 1;
}
uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

}  // namespace

Charsmap::Charsmap(std::string_view blob, std::string_view what) {
  if (blob.empty()) return;
  uint32_t trie_bytes = 0;
  if (blob.size() >= sizeof trie_bytes) std::memcpy(&trie_bytes, blob.data(), sizeof trie_bytes);
  if (blob.size() < sizeof trie_bytes || trie_bytes > blob.size() - sizeof trie_bytes || trie_bytes % 4 != 0 ||
      trie_bytes == 0)
    throw IoError(
        fmt::format("{}: its normalization table of {} bytes begins with a trie size of {} bytes; expected a multiple "
                    "of 4 that fits into the table",
                    what, blob.size(), trie_bytes));
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), blob.data() + 4, trie_bytes);
  replacements_ = blob.substr(4 + trie_bytes);
  replacements_ += '\0';  // terminates the last replacement even if the file does not
}

Charsmap::Replacement Charsmap::match(std::string_view text) const {
  Replacement best;
  if (units_.empty()) return best;
  size_t at = offset_of(units_[0]);
  for (size_t i = 0; i < std::min(text.size(), kMaxMatchBytes); ++i) {
    uint8_t byte = static_cast<uint8_t>(text[i]);
    at ^= byte;
    if (at >= units_.size() || label_of(units_[at]) != byte) break;
    uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (at >= units_.size()) break;
    if (!has_leaf(unit)) continue;
    uint32_t value = units_[at] & 0x7FFFFFFF;
    if (value < replacements_.size()) best = {i + 1, std::string_view(replacements_.c_str() + value)};
  }
  return best;
}

}  // namespace esp::data
