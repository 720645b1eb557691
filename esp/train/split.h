// What one rank has of the run's model and data, from the layout alone: nothing is built.
//
// The model's row of stem, blocks and head is cut in pp·interleave pieces of about equal work; stage k has the pieces
// k, k + pp, k + 2pp, … of it. Matrices are divided over the tensor axis, experts over theirs, tokens over the context
// axis.
#pragma once

#include <vector>

#include "esp/data/batch.h"
#include "esp/model/config.h"
#include "esp/model/model_part.h"
#include "esp/parallel/layout.h"
#include "esp/parallel/regions.h"
#include "esp/train/run_config.h"

namespace esp::train {

parallel::LayoutSizes layout_sizes(const RunConfig& config);
parallel::Layout layout_of(const RunConfig& config, int world);  // UsageError: sizes that do not make `world`
parallel::RegionOptions region_options(const RunConfig& config);

// A run of the model that one chunk of a stage computes.
struct Piece {
  nn::IndexRange blocks;
  bool stem = false, head = false;
};
// All pieces in the order of the model; each has a block at least.
std::vector<Piece> pieces_of(const model::ModelConfig& config, int num_pieces);
// Those of one stage, chunk by chunk.
std::vector<Piece> stage_pieces(const std::vector<Piece>& all, int stage, int num_stages);
model::ModelPart part_of(const std::vector<Piece>& mine, const nn::ModelShards& shares);

// The tokens of each row that this place on the context axis has.
class HeldTokens {
 public:
  explicit HeldTokens(nn::TokenMap tokens, bool first_place);
  const nn::TokenMap* map() const { return all_ ? nullptr : &tokens_; }
  // The batch with those tokens only; itself where that is all. Lent until the next call. What a sequence has one of (a
  // class) counts at the first place.
  const data::Batch& of(const data::Batch& batch);

 private:
  void take(std::vector<int32_t>& to, const std::vector<int32_t>& from, int64_t rows) const;

  const nn::TokenMap tokens_;
  const bool all_, first_place_;
  data::Batch held_;
};

}  // namespace esp::train
