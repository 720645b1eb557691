// A trained model for use: opened from a checkpoint, a run folder (its newest checkpoint) or a checkpoints folder.
#pragma once

#include <memory>
#include <string>

#include "esp/data/tokenizer/tokenizer.h"
#include "esp/device/pool.h"
#include "esp/model/model.h"
#include "esp/train/run_config.h"

namespace esp::train {

// Owns everything; not moved.
struct LoadedModel {
  explicit LoadedModel(int num_threads) : threads(num_threads), context{{{}, &threads, nullptr}, &pool} {}

  RunConfig config;
  std::string path;  // of the checkpoint
  int64_t step = 0;
  device::MemoryAccount account;
  device::ThreadPool threads;
  device::Pool pool{account};
  tensor::Context context;
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::unique_ptr<model::Model> model;
};

// threads 0: the cores there are. IoError when nothing complete is there.
std::unique_ptr<LoadedModel> load_model(const std::string& path, int threads = 0);

// The checkpoint a path means: itself, or the newest complete one below it.
std::string checkpoint_at(const std::string& path);

}  // namespace esp::train
