// Byte-level BPE from GPT-2's vocab.json + merges.txt and from tiktoken rank files.
#pragma once

#include <memory>
#include <string_view>

#include "esp/data/tokenizer/tokenizer.h"

namespace esp::data {

std::unique_ptr<Tokenizer> read_gpt2_files(std::string_view vocab_json, std::string_view merges_txt,
                                           std::string_view what);

// Each line is "base64(token) rank". `stem` is the file name without its extension: a known encoding such as o200k_base
// sets the split pattern and the special tokens; any other stem sets neither. A non-empty `pattern` overrides it.
std::unique_ptr<Tokenizer> read_tiktoken(std::string_view text, std::string_view stem, std::string_view pattern,
                                         std::string_view what);
// True if the text begins like a rank file. (LLaMA 3 names a rank file tokenizer.model.)
bool looks_like_tiktoken(std::string_view text);

}  // namespace esp::data
