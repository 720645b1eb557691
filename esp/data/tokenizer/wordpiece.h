// WordPiece (Wu et al. 2016) as in BERT: the longest token that begins the word, then repeatedly the longest
// continuation.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "esp/data/tokenizer/added_tokens.h"
#include "esp/data/tokenizer/bert_text.h"
#include "esp/data/tokenizer/token_table.h"
#include "esp/data/tokenizer/tokenizer.h"
#include "esp/data/tokenizer/tokenizer_json.h"
#include "esp/data/tokenizer/word_cache.h"

namespace esp::data {

struct WordPieceParts {
  TokenTable tokens;
  std::string unknown = "[UNK]", continuing = "##";
  size_t max_word_chars = 100;
  BertTextOptions text;
  std::vector<AddedToken> added;
  std::string source;  // text of the loaded tokenizer.json, which save() writes unchanged; empty: save() composes it
};

class WordPiece : public Tokenizer {
 public:
  WordPiece(WordPieceParts parts, std::string_view what);

  void encode(std::string_view text, std::vector<int32_t>& out) const override;
  void encode_ordinary(std::string_view text, std::vector<int32_t>& out) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int32_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> id_of(std::string_view token) const override;
  std::string_view kind() const override { return "wordpiece"; }
  void save(const std::string& folder) const override;

 private:
  void encode_normalized(std::string_view text, std::vector<int32_t>& out) const;
  void encode_word(std::string_view word, std::vector<int32_t>& out) const;
  std::string compose() const;

  WordPieceParts parts_;
  AddedTokens added_;
  TokenTable continuations_;  // continuation tokens without their "##"; row i has the id continuation_ids_[i]
  std::vector<int32_t> continuation_ids_;
  int32_t unknown_id_, vocab_size_;
  bool added_in_normalized_ = false;
  WordCache cache_;
};

std::unique_ptr<Tokenizer> read_wordpiece_json(TokenizerFile& file, std::string_view text, std::string_view what);
// Reads a BERT vocab.txt: one token per line; the id is the line number from 0.
std::unique_ptr<Tokenizer> read_vocab_txt(std::string_view text, bool lower_case, std::string_view what);

}  // namespace esp::data
