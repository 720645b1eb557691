// Metadata that prepare() writes beside a token file (NAME.json): the token type and the tokenizer. Files of other
// programs have no metadata and are read unchecked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "esp/base/json.h"
#include "esp/data/inputs.h"
#include "esp/data/source.h"

namespace esp::data {

struct TokenMetadata {
  std::string path;                   // path of the metadata file
  std::optional<TokenType> type;      // this and the members below may be absent (older or hand-written metadata)
  std::optional<uint64_t> tokens;     // sum over all files
  std::string kind, fingerprint;      // kind and fingerprint of the tokenizer; empty if not recorded
  std::optional<int64_t> vocab = {};  // vocabulary size of the tokenizer
};

// Reads the metadata of a raw file, if it has any. A NAME.bin.json that is not JSON is an IoError.
std::optional<TokenMetadata> find_raw_metadata(const std::string& path);

// Fingerprint of a tokenizer: a hash of the ids of a fixed sample text. It depends on the ids only, not on the file
// format from which the tokenizer was loaded.
std::string tokenizer_fingerprint(const Tokenizer& tokenizer);
void describe_tokenizer(const Tokenizer& tokenizer, Json& record);
// Throws UsageError if the file's metadata names another tokenizer.
void check_tokenizer(const Input& input, const Tokenizer& tokenizer);

}  // namespace esp::data
