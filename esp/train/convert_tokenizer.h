// The tokenizer of a Hugging Face folder: copies the vocabulary files, and writes the two small files that
// `transformers` also needs.
#pragma once

#include <string>

#include "esp/data/tokenizer/tokenizer.h"

namespace esp::train {

bool has_tokenizer_files(const std::string& folder);
void copy_tokenizer_files(const std::string& from, const std::string& to);

// Writes tokenizer_config.json and special_tokens_map.json if the folder does not have them. The "byte" tokenizer has
// no file, so tokenizer.json is written for it. Ids >= `vocab` are left out.
void complete_hf_tokenizer(const data::Tokenizer& tokenizer, const std::string& folder, int64_t vocab, int64_t seq_len);

}  // namespace esp::train
