// What a Hugging Face folder says beside weights and tokenizer: token ids, generation settings, chat template, labels.
// A checkpoint carries these files along; its hf_config.json is the config.json that the model was read from.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/json.h"

namespace esp::train {

// The files of a folder of either layout, by the names they have in a checkpoint. Empty where `folder` is a file.
std::map<std::string, std::string> read_hf_settings(const std::string& folder);
// Into a new folder; with `hf` without hf_config.json, whose fields are part of config.json there.
void write_hf_settings(const std::map<std::string, std::string>& files, const std::string& folder, bool hf);

// The config.json that the model of a folder was read from; an empty object where there is none.
Json hf_source_config(const std::string& folder);

// Ids that end a generated text: eos_token_id of generation_config.json, else of config.json, else the tokenizer's.
std::vector<int32_t> end_token_ids(const std::string& folder, std::optional<int32_t> tokenizer_eos);

}  // namespace esp::train
