// Computes from the layout which part of the model and of the data one rank has. Builds no model.
//
// The sequence of stem, blocks and head is cut into pp·interleave model chunks of about equal work. Stage k has the
// chunks k, k + pp, k + 2pp, …. Matrices are sharded over the tensor axis, experts over the expert axis, tokens over
// the context axis.
#pragma once

#include <vector>

#include "esp/data/batch.h"
#include "esp/model/config.h"
#include "esp/model/model_part.h"
#include "esp/parallel/layout.h"
#include "esp/parallel/model_parallel_ops.h"
#include "esp/train/run_config.h"

namespace esp::train {

parallel::LayoutSizes layout_sizes(const RunConfig& config);
parallel::Layout layout_of(const RunConfig& config, int world);  // UsageError if the layout does not fit `world` ranks
parallel::ModelParallelOptions region_options(const RunConfig& config);

// Consecutive parts of the model that form one chunk; a stage computes one or more chunks.
struct ModelChunk {
  nn::IndexRange blocks;
  bool stem = false, head = false;
};
// All chunks in model order; each has at least one block.
std::vector<ModelChunk> partition_model(const model::ModelConfig& config, int num_chunks);
// The chunks of one stage, in order.
std::vector<ModelChunk> stage_chunks(const std::vector<ModelChunk>& all, int stage, int num_stages);
model::ModelPart make_model_part(const std::vector<ModelChunk>& mine, const nn::ModelShards& shares);

// Selects the tokens of each row that this rank of the context axis has.
class TokenShard {
 public:
  explicit TokenShard(nn::TokenMap tokens, bool first_cp_rank);
  const nn::TokenMap* map() const { return all_ ? nullptr : &tokens_; }
  // Returns a batch with only this rank's tokens, or `batch` itself if this rank has all of them. The result is valid
  // until the next call. If there is one target per sequence (a class), only the first context rank counts it.
  const data::Batch& of(const data::Batch& batch);

 private:
  void take(std::vector<int32_t>& to, const std::vector<int32_t>& from, int64_t rows) const;

  const nn::TokenMap tokens_;
  const bool all_, first_cp_rank_;
  data::Batch held_;
};

}  // namespace esp::train
