// DataPipeline: tokenizer, token sources, and the objectives for training and evaluation, built from the [data]
// section.
#pragma once

#include <memory>
#include <string>

#include "esp/base/log.h"
#include "esp/data/items.h"
#include "esp/data/objective.h"
#include "esp/data/source.h"
#include "esp/data/tokenizer/tokenizer.h"
#include "esp/train/run_config.h"

namespace esp::train {

// Owns all data that its objectives reference, so it must not be moved after make_data_pipeline.
struct DataPipeline {
  std::unique_ptr<data::Tokenizer> tokenizer;
  data::TokenSource train_tokens, val_tokens;
  data::Items train_items, val_items;
  std::unique_ptr<data::Objective> train, val;  // val: null if there is no held-out data
};

// Also sets model.vocab and model.classes from the data if the run file has 0 for them.
std::unique_ptr<DataPipeline> make_data_pipeline(RunConfig& config, const Log& log);
// Checks the settings without reading the data. UsageError or IoError if they cannot work, for example because a file
// is missing.
void check_data_pipeline(RunConfig config);

// The objective's name, or the default of the architecture: next_token, masked_token, span_corruption, pairs,
// classification or synthetic.
std::string objective_name(const RunConfig& config);

// Makes an evaluation objective that reads `text` in sequence. For next_token, masked_token and span_corruption.
std::unique_ptr<data::Objective> evaluation_of(const RunConfig& config, const data::Tokenizer& tokenizer,
                                               const data::TokenSource& text);

}  // namespace esp::train
