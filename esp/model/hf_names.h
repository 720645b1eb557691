// Maps Espalier's parameters to the tensors of a Hugging Face folder.
//
// Linear weights are [in, out] in Espalier and [out, in] (transposed) in Hugging Face, except GPT-2's. Where Espalier
// packs several matrices (q | k | v, gate | up), each tensor fills a range of columns. Both use half-split rotary
// positions, so LLaMA's q and k need no permutation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "esp/model/config.h"

namespace esp::model {

struct HfPart {
  std::string name;
  bool transposed = false;
  // The columns (last dimension) of the packed parameter that this tensor fills; num_columns 0: all columns.
  int64_t first_column = 0, num_columns = 0;
};

struct HfTensor {
  std::string name;  // Espalier's name
  std::vector<HfPart> parts;
};

// One row per parameter of the built model, in any order. UsageError if the architecture has no Hugging Face format.
std::vector<HfTensor> hf_names(const ModelConfig& config);

// `name` is a second name of the tensor `of`. A folder may contain either name or both.
struct HfAlias {
  std::string name, of;
  bool tied = true;  // false: in `transformers` these are two separate tensors; it computes with `of`
};
std::vector<HfAlias> hf_aliases(const ModelConfig& config);

// True if the tensor does not affect the output: masks, frequencies, heads of other objectives.
bool hf_is_ignored(const ModelConfig& config, std::string_view name);

// Returns the current full name of a tensor. Folders may also contain names without the model's prefix
// ("h.0.ln_1.weight" for "transformer.h.0.ln_1.weight"), or with the old "gamma" and "beta" of norms.
std::string hf_canonical_name(const ModelConfig& config, std::string_view name);

}  // namespace esp::model
