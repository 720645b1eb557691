// TrainedModel: a model opened for inference, from a checkpoint, a run folder (its newest checkpoint), a checkpoints
// folder, or a Hugging Face folder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "esp/data/tokenizer/tokenizer.h"
#include "esp/device/pool.h"
#include "esp/model/model.h"
#include "esp/train/device_context.h"
#include "esp/train/run_config.h"

namespace esp::train {

// Owns all its members. Cannot be moved.
struct TrainedModel {
  explicit TrainedModel(int num_threads, const std::string& device = "cpu")
      : threads(num_threads), device_context(device, account), context{device_context.stream(&threads), &pool} {}

  RunConfig config;
  std::string path;  // path of the checkpoint or the Hugging Face folder
  int64_t step = 0;
  device::MemoryAccount account;
  device::ThreadPool threads;
  DeviceContext device_context;
  device::MemoryPool pool{account, device::MemoryTier::device, device_context.memory()};
  tensor::Context context;
  std::unique_ptr<data::Tokenizer> tokenizer;  // null if a Hugging Face folder has no tokenizer
  std::vector<int32_t> end_ids;                // ids at which generated text ends
  std::unique_ptr<model::Model> model;
  std::vector<std::string> unused_tensors;  // names of tensors in a Hugging Face folder that the model does not use
  std::vector<std::string> skipped_checkpoints;  // newer checkpoints that were skipped because they cannot be used
};

struct LoadOptions {
  int threads = 0;             // 0: all available cores
  std::optional<DType> dtype;  // dtype of the parameters; empty: the dtype of the training or of the folder
  std::string device = "cpu";
};

// Opens a model for inference. IoError if there is no complete checkpoint.
std::unique_ptr<TrainedModel> load_model(const std::string& path, const LoadOptions& options = {});
const data::Tokenizer& require_tokenizer(const TrainedModel& loaded);  // UsageError if the model has no tokenizer

// Returns `path` if it is a checkpoint, else the newest complete checkpoint below it. `skipped` gets the newer
// incomplete ones.
std::string resolve_checkpoint(const std::string& path, std::vector<std::string>* skipped = nullptr);
// The run file in a checkpoint, or an equivalent run file for a Hugging Face folder. data.tokenizer is set to the path
// of the tokenizer there.
RunConfig resolve_run_config(const std::string& path);

// Loads the initial parameters of a new run. The head may be missing in `path`: returns the names of the parameters
// that `path` does not have. `left_out`, if given, gets the names of tensors in a Hugging Face folder that the model
// does not use.
std::vector<std::string> load_pretrained(model::Model& model, const std::string& path, const device::Stream& stream,
                                         std::vector<std::string>* left_out = nullptr);

}  // namespace esp::train
