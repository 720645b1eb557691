// Hugging Face's tokenizer.json: one file for vocabulary, merges and everything that is done to text before and after.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "esp/base/json.h"
#include "esp/data/tokenizer/added_tokens.h"
#include "esp/data/tokenizer/byte_bpe.h"
#include "esp/data/tokenizer/tokenizer.h"

namespace esp::data {

// The file in parts: the long lists are kept out of the tree, which stays small.
struct TokenizerFile {
  Json rest;                                           // without model.vocab and model.merges
  std::vector<std::pair<std::string, int32_t>> vocab;  // of a map (BPE, WordPiece)
  std::vector<std::pair<std::string, double>> scored;  // of a list (Unigram)
  std::vector<std::pair<std::string, std::string>> merges;
};

// Strict as base/json.h; `what` names the file in errors, which are IoError.
TokenizerFile parse_tokenizer_file(std::string_view text, std::string_view what);
// vocab.json: one object from token to id.
std::vector<std::pair<std::string, int32_t>> parse_vocab_json(std::string_view text, std::string_view what);

// What it asks for and we do not have is an IoError that names it.
std::unique_ptr<Tokenizer> read_tokenizer_json(std::string_view text, std::string_view what);
// Fills tokens and merges from GPT-2's spelling.
void set_spelled_vocab(BpeParts& parts, std::vector<std::pair<std::string, int32_t>> vocab,
                       const std::vector<std::pair<std::string, std::string>>& merges, std::string_view what);
std::vector<AddedToken> read_added_tokens(const Json& rest, std::string_view what);

// Whether it does to every text what the byte tokenizer does.
bool is_byte_tokenizer(const BpeParts& parts);
std::string compose_tokenizer_json(const BpeParts& parts, const std::vector<AddedToken>& added,
                                   const Json& post_processor);
std::string quote_json(std::string_view text);

}  // namespace esp::data
