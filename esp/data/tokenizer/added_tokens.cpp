#include "esp/data/tokenizer/added_tokens.h"

#include <algorithm>
#include <functional>

#include "esp/data/tokenizer/unicode.h"

namespace esp::data {
namespace {

size_t begin_of_last(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

uint32_t class_of_first(std::string_view text) {
  return 1u << (point_cell(read_point(text.data(), text.size()).value) & kClassMask);
}

constexpr uint32_t kWordClasses = 1u << kNumber | 1u << kLower | 1u << kUpper | 1u << kOtherLetter | 1u << kMark;
constexpr uint32_t kWhiteClasses = 1u << kSpace | 1u << kNewline;

bool touches_word(std::string_view text, size_t begin, size_t end) {
  auto is_word = [](std::string_view rest) { return rest[0] == '_' || (class_of_first(rest) & kWordClasses); };
  if (begin > 0 && is_word(text.substr(begin_of_last(text.substr(0, begin))))) return true;
  return end < text.size() && is_word(text.substr(end));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (size_t row = 0; row < tokens_.size(); ++row) {
    const AddedToken& token = tokens_[row];
    ids_[token.id] = row;
    size_ = std::max(size_, token.id + 1);
    if (token.content.empty()) continue;
    ContentIndex& index = indices_[token.normalized];
    index.rows[token.content] = row;
    uint8_t first = static_cast<uint8_t>(token.content[0]);
    if (index.lengths[first].empty()) index.first_bytes += token.content[0];
    index.lengths[first].push_back(static_cast<uint32_t>(token.content.size()));
  }
  for (ContentIndex& index : indices_)
    for (auto& lengths : index.lengths) {
      std::sort(lengths.begin(), lengths.end(), std::greater<>());
      lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    }
}

std::optional<AddedTokens::Occurrence> AddedTokens::find(std::string_view text, size_t from, bool normalized) const {
  const ContentIndex& index = indices_[normalized];
  if (index.rows.empty()) return std::nullopt;
  bool one_byte = index.first_bytes.size() == 1;
  for (size_t at = from;; ++at) {
    if (one_byte)
      at = text.find(index.first_bytes[0], at);
    else
      while (at < text.size() && index.lengths[static_cast<uint8_t>(text[at])].empty()) ++at;
    if (at >= text.size()) return std::nullopt;
    for (uint32_t length : index.lengths[static_cast<uint8_t>(text[at])]) {
      if (at + length > text.size()) continue;
      auto row = index.rows.find(text.substr(at, length));
      if (row == index.rows.end()) continue;
      const AddedToken& token = tokens_[row->second];
      Occurrence match{at, at + length, &token};
      if (token.single_word && touches_word(text, match.begin, match.end)) break;
      while (token.lstrip && match.begin > from) {
        size_t before = begin_of_last(text.substr(0, match.begin));
        if (before < from || !(class_of_first(text.substr(before)) & kWhiteClasses)) break;
        match.begin = before;
      }
      while (token.rstrip && match.end < text.size() && (class_of_first(text.substr(match.end)) & kWhiteClasses))
        match.end += read_point(text.data() + match.end, text.size() - match.end).bytes;
      return match;
    }
  }
}

const AddedToken* AddedTokens::by_id(int32_t id) const {
  auto row = ids_.find(id);
  return row == ids_.end() ? nullptr : &tokens_[row->second];
}

const AddedToken* AddedTokens::by_content(std::string_view content) const {
  for (const AddedToken& token : tokens_)
    if (token.content == content) return &token;
  return nullptr;
}

}  // namespace esp::data
