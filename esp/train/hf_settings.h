// Settings files of a Hugging Face folder besides weights and vocabulary: token ids, generation settings, chat
// template, labels. A checkpoint keeps these files. Its hf_config.json is the config.json from which the model was
// read.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/json.h"

namespace esp::train {

// The contents of the settings files, by their names in a checkpoint. `folder` is a Hugging Face folder, a checkpoint,
// or a file of a Hugging Face folder, such as its tokenizer.json. Empty for any other file.
std::map<std::string, std::string> read_hf_settings(std::string folder);
// Writes the files into a new folder. With `hf` (a Hugging Face folder) hf_config.json is omitted, because config.json
// contains its fields.
void write_hf_settings(const std::map<std::string, std::string>& files, const std::string& folder, bool hf);

// The config.json from which the model in the folder was read; an empty object if there is none.
Json hf_source_config(const std::string& folder);

// Ids at which generated text ends: eos_token_id of generation_config.json; if missing, that of config.json; if that is
// missing too, that of the tokenizer.
std::vector<int32_t> end_token_ids(const std::string& folder, std::optional<int32_t> tokenizer_eos);

}  // namespace esp::train
