// What a run learns from: tokenizer, token sources, objectives for training and for evaluation, made from [data].
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

// Owns everything its objectives lend from; not moved after `make_feed`.
struct Feed {
  std::unique_ptr<data::Tokenizer> tokenizer;
  data::TokenSource train_tokens, val_tokens;
  data::Items train_items, val_items;
  std::unique_ptr<data::Objective> train, val;  // val null: nothing held out
};

// Also settles what the data decide about the model: vocab and classes, where the file leaves them 0.
std::unique_ptr<Feed> make_feed(RunConfig& config, const Log& log);
// The same without reading data: UsageError or IoError for what could never be made, a file that is not there among it.
void check_feed(RunConfig config);

// next_token, masked_token, span_corruption, pairs, classification, synthetic: the objective's name, or what the
// architecture is made for.
std::string objective_name(const RunConfig& config);

// Of a text, in order and as evaluations during a run see it; for objectives of plain text (the first three).
std::unique_ptr<data::Objective> evaluation_of(const RunConfig& config, const data::Tokenizer& tokenizer,
                                               const data::TokenSource& text);

}  // namespace esp::train
