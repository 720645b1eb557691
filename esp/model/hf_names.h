// Maps Espalier parameters to the tensors of a Hugging Face folder.
//
// Espalier's linear weights are [in, out]; Hugging Face's are [out, in] (transposed), except GPT-2's. Where Espalier
// packs several maps (q | k | v, gate | up), each part fills a column range. Both use half-split rotary positions, so
// LLaMA's q and k need no permutation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "esp/model/config.h"

namespace esp::model {

struct HfPart {
  std::string name;
  bool transposed = false;
  // Columns of the packed parameter (last dimension) it fills; num_columns 0: all.
  int64_t first_column = 0, num_columns = 0;
};

struct HfTensor {
  std::string name;  // Espalier's
  std::vector<HfPart> parts;
};

// One row per parameter of the built model, in any order. UsageError where the architecture has no such form.
std::vector<HfTensor> hf_names(const ModelConfig& config);

// A second name of a tensor. A folder may have either name or both.
struct HfCopy {
  std::string name, of;
  bool tied = true;  // false: `transformers` has two tensors, and computes with `of`
};
std::vector<HfCopy> hf_copies(const ModelConfig& config);

// Tensors that do not affect the output: masks, frequencies, heads of other objectives.
bool hf_is_ignored(const ModelConfig& config, std::string_view name);

// The canonical name for the variants found in folders: without the model's prefix ("h.0.ln_1.weight" for
// "transformer.h.0.ln_1.weight"), or with the old "gamma" and "beta" of norms.
std::string hf_canonical_name(const ModelConfig& config, std::string_view name);

}  // namespace esp::model
