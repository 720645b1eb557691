// Our parameters in terms of the tensors of a Hugging Face folder.
//
// A linear map of ours is [in, out]; theirs is [out, in] (transposed), except GPT-2's. Where ours packs several maps
// side by side (q | k | v, gate | up), each part fills a range of our columns. Rotary positions are half-split in both,
// so LLaMA's q and k need no permutation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "esp/model/config.h"

namespace esp::model {

struct HfPart {
  std::string name;
  bool transposed = false;
  // The columns of our parameter (its last dimension) it fills; num_columns 0: all of them.
  int64_t first_column = 0, num_columns = 0;
};

struct HfTensor {
  std::string name;  // ours
  std::vector<HfPart> parts;
};

// One row per parameter of the built model, in any order. UsageError where the architecture has no such form.
std::vector<HfTensor> hf_names(const ModelConfig& config);

// What a folder may carry beside: masks, frequencies, copies of tied tables.
bool hf_is_ignored(const ModelConfig& config, std::string_view name);

// A name as hf_names spells it, from the spellings found in folders: without the model's prefix ("h.0.ln_1.weight" for
// "transformer.h.0.ln_1.weight"), or with the old "gamma" and "beta" of norms.
std::string hf_canonical_name(const ModelConfig& config, std::string_view name);

}  // namespace esp::model
