// Tokens that are looked for in the text before the model sees it: "<|endoftext|>", "[MASK]". Leftmost, then longest.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace esp::data {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = true;
  bool normalized = false;              // looked for in normalized text
  bool single_word = false;             // only where no letter or digit touches it
  bool lstrip = false, rstrip = false;  // takes the white space before or after it along
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);
  AddedTokens(const AddedTokens&) = delete;
  AddedTokens& operator=(const AddedTokens&) = delete;
  AddedTokens(AddedTokens&&) = default;
  AddedTokens& operator=(AddedTokens&&) = default;

  struct Match {
    size_t begin, end;
    const AddedToken* token;
  };
  // The first match at or after `from`, among tokens that are looked for in normalized text or among the others.
  std::optional<Match> find(std::string_view text, size_t from, bool normalized) const;

  const std::vector<AddedToken>& all() const { return tokens_; }
  const AddedToken* by_id(int32_t id) const;
  const AddedToken* by_content(std::string_view content) const;
  int32_t size() const { return size_; }  // one more than the largest id, 0 when there are none

  // plain(text) for what lies between, added(token) for each match, in order.
  template <typename Plain, typename Added>
  void walk(std::string_view text, bool normalized, Plain&& plain, Added&& added) const {
    size_t at = 0;
    while (auto match = find(text, at, normalized)) {
      if (match->begin > at) plain(text.substr(at, match->begin - at));
      added(*match->token);
      at = match->end;
    }
    if (at < text.size()) plain(text.substr(at));
  }

 private:
  struct Group {
    std::string first_bytes;                            // each byte some token begins with
    std::array<std::vector<uint32_t>, 256> lengths;     // by first byte, longest first
    std::unordered_map<std::string_view, size_t> rows;  // into tokens_
  };
  std::vector<AddedToken> tokens_;
  Group groups_[2];  // [normalized]
  std::unordered_map<int32_t, size_t> ids_;
  int32_t size_ = 0;
};

}  // namespace esp::data
