// Byte-level BPE in the files of its first users: GPT-2's vocab.json + merges.txt, and rank files of tiktoken.
#pragma once

#include <memory>
#include <string_view>

#include "esp/data/tokenizer/tokenizer.h"

namespace esp::data {

std::unique_ptr<Tokenizer> read_gpt2_files(std::string_view vocab_json, std::string_view merges_txt,
                                           std::string_view what);

// Lines of «base64(token) rank». `stem` is the file's name without its ending: o200k_base and its like bring their
// pattern and special tokens; another stem has neither. A `pattern` that is not empty wins.
std::unique_ptr<Tokenizer> read_tiktoken(std::string_view text, std::string_view stem, std::string_view pattern,
                                         std::string_view what);
// Whether the text begins like a rank file (LLaMA 3 calls one tokenizer.model).
bool looks_like_tiktoken(std::string_view text);

}  // namespace esp::data
