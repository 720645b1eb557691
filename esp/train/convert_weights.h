// Converts a model's parameters from and to the tensors of a Hugging Face folder. Names, transposition, packing,
// sharding and dtype may differ. If source and destination have the same dtype, every bit is kept.
#pragma once

#include <string>
#include <vector>

#include "esp/ckpt/hf_folder.h"
#include "esp/model/model.h"

namespace esp::train {

// Opens a folder and renames its tensors to the names that a model with `config` uses. IoError if the folder has a
// tensor under two names with different values.
ckpt::HfFolder open_hf_folder(const std::string& path, const model::ModelConfig& config);

// Returns a dtype that represents all tensors of the model without loss: their dtype if it is the same for all, else a
// wider one.
DType hf_storage_type(const ckpt::HfFolder& folder, const model::ModelConfig& config);

struct HfReadReport {
  std::vector<std::string> unused_tensors;  // tensors in the folder that the model does not use
  std::vector<std::string> new_parameters;  // head parameters of the model that are not in the folder
};
// Whether the folder must contain the head. may_be_new: missing head parameters keep their initial values.
enum class HeadPolicy { required, may_be_new };

// Fills the model's parameters from the folder. IoError names a tensor that is missing or has another shape. If the
// model has fewer positions than the folder, may_be_new uses the first ones.
HfReadReport read_hf_weights(model::Model& model, ckpt::HfFolder& folder, HeadPolicy head,
                             const device::Stream& stream);

// Returns the tensors to write, in `dtype`. Of the embedding and the head, only the first `vocab` rows are written. The
// tensors reference the model's memory.
std::vector<ckpt::DeferredTensor> hf_tensors(model::Model& model, DType dtype, int64_t vocab,
                                             const device::Stream& stream);

// Name of the learned position embeddings. If model.init has more positions than the model, the first rows are used.
inline constexpr std::string_view kPositionsName = "positions.weight";
bool is_head_parameter(model::Model& model, const nn::Parameter& parameter);

}  // namespace esp::train
