// BERT's text processing before WordPiece: clean the text, separate Chinese characters, strip accents, lower-case; then
// split at white space and around punctuation. Equal to BertNormalizer and BertPreTokenizer of `tokenizers`.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "esp/data/tokenizer/unicode.h"

namespace esp::data {

struct BertTextOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lower_case = true;
};

std::string normalize_bert(std::string_view text, const BertTextOptions& options);

// Calls visit(std::string_view word) for each word of normalized text.
template <typename Visit>
void for_each_bert_word(std::string_view text, Visit&& visit) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    Point point = read_point(text.data() + at, text.size() - at);
    uint8_t cell = point_cell(point.value);
    bool white = (cell & kClassMask) == kSpace || (cell & kClassMask) == kNewline;
    if (white || (cell & kBertPunctuation)) {
      if (at > begin) visit(text.substr(begin, at - begin));
      if (!white) visit(text.substr(at, point.bytes));
      begin = at + point.bytes;
    }
    at += point.bytes;
  }
  if (begin < text.size()) visit(text.substr(begin));
}

}  // namespace esp::data
