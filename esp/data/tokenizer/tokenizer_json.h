// Reads and writes Hugging Face's tokenizer.json, which contains vocabulary, merges, normalizer, pre-tokenizer,
// post-processor and decoder.
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

// A parsed tokenizer.json. Vocabulary and merges are kept outside the JSON tree, which therefore stays small.
struct TokenizerFile {
  Json rest;                                           // the JSON tree without model.vocab and model.merges
  std::vector<std::pair<std::string, int32_t>> vocab;  // model.vocab as a map (BPE, WordPiece)
  std::vector<std::pair<std::string, double>> scored;  // model.vocab as a list (Unigram)
  std::vector<std::pair<std::string, std::string>> merges;
};

// As strict as base/json.h. Errors are IoError; `what` names the file.
TokenizerFile parse_tokenizer_file(std::string_view text, std::string_view what);
// Reads a vocab.json: one object from token to id.
std::vector<std::pair<std::string, int32_t>> parse_vocab_json(std::string_view text, std::string_view what);

// Throws an IoError that names the feature if the file uses one that is not supported.
std::unique_ptr<Tokenizer> read_tokenizer_json(std::string_view text, std::string_view what);
// Fills tokens and merges from tokens spelled in GPT-2's byte alphabet (byte_unicode.h).
void set_byte_level_vocab(BpeParts& parts, std::vector<std::pair<std::string, int32_t>> vocab,
                          const std::vector<std::pair<std::string, std::string>>& merges, std::string_view what);
std::vector<AddedToken> read_added_tokens(const Json& rest, std::string_view what);

// True if a tokenizer of these parts encodes every text exactly as the byte tokenizer does.
bool is_byte_tokenizer(const BpeParts& parts);
std::string compose_tokenizer_json(const BpeParts& parts, const std::vector<AddedToken>& added,
                                   const Json& post_processor);
std::string quote_json(std::string_view text);

}  // namespace esp::data
