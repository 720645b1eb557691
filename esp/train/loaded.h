// A trained model for use: opened from a checkpoint, a run folder (its newest checkpoint), a checkpoints folder, or a
// Hugging Face folder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "esp/data/tokenizer/tokenizer.h"
#include "esp/device/pool.h"
#include "esp/model/model.h"
#include "esp/train/place.h"
#include "esp/train/run_config.h"

namespace esp::train {

// Owns everything; not moved.
struct LoadedModel {
  explicit LoadedModel(int num_threads, const std::string& device = "cpu")
      : threads(num_threads), place(device, account), context{place.stream(&threads), &pool} {}

  RunConfig config;
  std::string path;  // of the checkpoint or the Hugging Face folder
  int64_t step = 0;
  device::MemoryAccount account;
  device::ThreadPool threads;
  Place place;
  device::MemoryPool pool{account, device::MemoryTier::device, place.memory()};
  tensor::Context context;
  std::unique_ptr<data::Tokenizer> tokenizer;  // null: a Hugging Face folder without one
  std::vector<int32_t> end_ids;                // a generated text ends at any of these
  std::unique_ptr<model::Model> model;
  std::vector<std::string> unknown;      // tensors of a Hugging Face folder that were not used
  std::vector<std::string> passed_over;  // checkpoints that are newer and cannot be used
};

struct LoadOptions {
  int threads = 0;             // 0: the cores there are
  std::optional<DType> dtype;  // of the parameters; as they were trained or stored without it
  std::string device = "cpu";
};

// IoError when nothing complete is there.
std::unique_ptr<LoadedModel> load_model(const std::string& path, const LoadOptions& options = {});
const data::Tokenizer& tokenizer_of(const LoadedModel& loaded);  // UsageError where there is none

// The checkpoint a path means: itself, or the newest complete one below it. `skipped`: newer ones that are not.
std::string checkpoint_at(const std::string& path, std::vector<std::string>* skipped = nullptr);
// The run file that made what lies at a path, or one that would have; data.tokenizer is where its tokenizer is.
RunConfig config_at(const std::string& path);

// Fills the model of a run about to begin. The head may be new: returns the parameters that `path` does not have.
// `left_out`, where given, gets the tensors of a Hugging Face folder that the model has no place for.
std::vector<std::string> load_initial(model::Model& model, const std::string& path, const device::Stream& stream,
                                      std::vector<std::string>* left_out = nullptr);

}  // namespace esp::train
