// A model's parameters from the tensors of a Hugging Face folder, and back: found by name, transposed, packed side by
// side, cut, cast. Where source and destination have one type, every bit is kept.
#pragma once

#include <string>
#include <vector>

#include "esp/ckpt/hf_folder.h"
#include "esp/model/model.h"

namespace esp::train {

// The folder under the names that `config` has for it. IoError where two names of one tensor hold different values.
ckpt::HfFolder open_hf_folder(const std::string& path, const model::ModelConfig& config);

// The type that holds every tensor of the model without loss: theirs, where all agree.
DType hf_storage_type(const ckpt::HfFolder& folder, const model::ModelConfig& config);

struct HfReading {
  std::vector<std::string> unknown;  // tensors of the folder that the model has no place for
  std::vector<std::string> fresh;    // parameters of the model's head that the folder does not have
};
enum class HeadMayBe { there, new_too };  // new_too: what the folder lacks of the head stays as it was initialised

// IoError names a tensor that is missing or of another shape. With a new head, fewer positions than the folder's are
// its first ones.
HfReading read_hf_weights(model::Model& model, ckpt::HfFolder& folder, HeadMayBe head, const device::Stream& stream);

// What to write, in `dtype`, with the first `vocab` rows of the tables of tokens. Lends from the model.
std::vector<ckpt::TensorToMake> hf_tensors(model::Model& model, DType dtype, int64_t vocab,
                                           const device::Stream& stream);

// The first rows of learned positions will do where `init` is longer than the model.
inline constexpr std::string_view kPositionsName = "positions.weight";
bool is_of_head(model::Model& model, const nn::Parameter& parameter);

}  // namespace esp::train
