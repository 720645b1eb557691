// The tokenizer of a model folder: its vocabulary files, copied as they are, and the two small files that
// `transformers` reads with them.
#pragma once

#include <string>

#include "esp/data/tokenizer/tokenizer.h"

namespace esp::train {

bool has_tokenizer_files(const std::string& folder);
void copy_tokenizer_files(const std::string& from, const std::string& to);

// tokenizer_config.json and special_tokens_map.json, where the folder lacks them; and first a tokenizer.json where the
// tokenizer is "byte", which has no file. Ids of `vocab` and beyond are not the model's, and left out.
void complete_hf_tokenizer(const data::Tokenizer& tokenizer, const std::string& folder, int64_t vocab, int64_t seq_len);

}  // namespace esp::train
