// What prepare() leaves beside a token file (NAME.json): what the tokens are and which tokenizer made them. Files of
// other programs have none, and are taken as they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "esp/base/json.h"
#include "esp/data/inputs.h"
#include "esp/data/source.h"

namespace esp::data {

struct TokenRecord {
  std::string path;                   // of the record
  std::optional<TokenType> type;      // the rest may be absent: a record of before, or one written by hand
  std::optional<uint64_t> tokens;     // of all files together
  std::string kind, fingerprint;      // of the tokenizer; empty where the record does not say
  std::optional<int64_t> vocab = {};  // the same
};

// The record of a raw file, if there is one. A NAME.bin.json that is no JSON is an IoError.
std::optional<TokenRecord> record_of_raw(const std::string& path);

// The ids a tokenizer gives a text of many kinds, as a name: equal for equal tokenizers, whatever files they came from.
std::string tokenizer_fingerprint(const Tokenizer& tokenizer);
void describe_tokenizer(const Tokenizer& tokenizer, Json& record);
// UsageError where the file has a record that says it was made with another tokenizer.
void check_tokenizer(const Input& input, const Tokenizer& tokenizer);

}  // namespace esp::data
