// Added tokens such as "<|endoftext|>" and "[MASK]": found in the text before the model encodes it. The leftmost match
// wins, then the longest.
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
  bool normalized = false;              // matched in normalized text
  bool single_word = false;             // matched only if no letter or digit is adjacent
  bool lstrip = false, rstrip = false;  // the match includes the white space before or after it
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);
  AddedTokens(const AddedTokens&) = delete;
  AddedTokens& operator=(const AddedTokens&) = delete;
  AddedTokens(AddedTokens&&) = default;
  AddedTokens& operator=(AddedTokens&&) = default;

  struct Occurrence {
    size_t begin, end;
    const AddedToken* token;
  };
  // Returns the first match at or after `from`, considering only tokens with the given `normalized` flag.
  std::optional<Occurrence> find(std::string_view text, size_t from, bool normalized) const;

  const std::vector<AddedToken>& all() const { return tokens_; }
  const AddedToken* by_id(int32_t id) const;
  const AddedToken* by_content(std::string_view content) const;
  int32_t size() const { return size_; }  // largest id + 1; 0 without tokens

  // Calls plain(text) for the text between matches and added(token) for each match, in order.
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
  struct ContentIndex {
    std::string first_bytes;                            // the first bytes of all tokens
    std::array<std::vector<uint32_t>, 256> lengths;     // token lengths by first byte, longest first
    std::unordered_map<std::string_view, size_t> rows;  // maps the content of a token to its index in tokens_
  };
  std::vector<AddedToken> tokens_;
  ContentIndex indices_[2];  // indexed by AddedToken::normalized
  std::unordered_map<int32_t, size_t> ids_;
  int32_t size_ = 0;
};

}  // namespace esp::data
