#include "esp/train/rank_partition.h"

#include <algorithm>

#include "esp/base/check.h"
#include "esp/parallel/pp/partition.h"
#include "esp/sync/ps/layout.h"

namespace esp::train {

parallel::LayoutSizes layout_sizes(const RunConfig& config) {
  const model::ModelConfig model = model_config(config.model);
  parallel::LayoutSizes s;
  s.arch = model.arch;
  s.layers = model.layers;
  s.heads = model.heads;
  s.kv_heads = model.kv_heads_or_all();
  s.ffn = model.ffn_or_default();
  s.vocab = model.vocab;
  s.seq_len = model.seq_len;
  s.experts = model.experts;
  s.global_batch = config.train.global_batch;
  s.micro_batch = config.train.micro_batch;
  return s;
}

parallel::Layout layout_of(const RunConfig& config, int world) {
  const ParallelSection& p = config.parallel;
  parallel::Layout layout;
  if (config.sync.method == "ps") world = sync::num_workers_of(world, config.sync.ps);
  layout.mesh = parallel::mesh_shape(p.tp, p.cp, p.dp, p.pp, p.ep, world);
  layout.sequence = p.sequence;
  layout.context = p.context;
  layout.schedule = p.schedule;
  layout.interleave = p.interleave;
  return layout;
}

parallel::ModelParallelOptions region_options(const RunConfig& config) {
  parallel::ModelParallelOptions options;
  options.sequence = config.parallel.sequence;
  options.context = config.parallel.context;
  options.timeout = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(2 * config.comm.timeout_s));
  return options;
}

std::vector<ModelChunk> partition_model(const model::ModelConfig& config, int num_chunks) {
  // A single chunk is the whole model, also of an encoder-decoder.
  if (num_chunks == 1) return {{{0, config.layers}, true, true}};
  // The cost of a unit is its number of multiplications per token: the weight matrices and the attention of a block,
  // the output matrix of the head. Embedding look-ups cost almost nothing.
  const auto dim = static_cast<double>(config.dim),
             kv = static_cast<double>(config.kv_heads_or_all()) / static_cast<double>(config.heads);
  const double attention = dim * dim * (2 + 2 * kv) + 2 * dim * static_cast<double>(config.seq_len);
  std::vector<double> costs;
  for (int64_t i = 0; i < config.layers; ++i) {
    int64_t ffn = config.ffn_or_default();  // total MLP width through which one token passes
    if (config.has_experts(i)) ffn = config.experts_per_token * ffn + config.shared_expert;
    costs.push_back(attention + dim * static_cast<double>(ffn) * (config.gated ? 3 : 2));
  }
  costs.front() += dim;
  costs.back() += dim * static_cast<double>(config.num_classes > 0 ? config.num_classes : config.vocab);
  const std::vector<int> cuts = parallel::linear_partition(costs, num_chunks);
  std::vector<ModelChunk> chunks;
  for (int i = 0; i < num_chunks; ++i)
    chunks.push_back({{cuts[static_cast<size_t>(i)], cuts[static_cast<size_t>(i) + 1]}, i == 0, i + 1 == num_chunks});
  return chunks;
}

std::vector<ModelChunk> stage_chunks(const std::vector<ModelChunk>& all, int stage, int num_stages) {
  std::vector<ModelChunk> mine;
  for (size_t i = static_cast<size_t>(stage); i < all.size(); i += static_cast<size_t>(num_stages))
    mine.push_back(all[i]);
  return mine;
}

model::ModelPart make_model_part(const std::vector<ModelChunk>& mine, const nn::ModelShards& shares) {
  model::ModelPart part;
  part.shards = shares;
  part.stem = part.head = false;
  for (const ModelChunk& chunk : mine) {
    part.stem = part.stem || chunk.stem;
    part.head = part.head || chunk.head;
    part.blocks.push_back(chunk.blocks);
  }
  part.all_blocks = mine.size() == 1 && mine[0].stem && mine[0].head;
  if (part.all_blocks) part.blocks.clear();
  return part;
}

TokenShard::TokenShard(nn::TokenMap tokens, bool first_cp_rank)
    : tokens_(std::move(tokens)), all_(tokens_.count() == tokens_.length), first_cp_rank_(first_cp_rank) {}

void TokenShard::take(std::vector<int32_t>& to, const std::vector<int32_t>& from, int64_t rows) const {
  to.resize(static_cast<size_t>(rows * tokens_.count()));
  auto at = to.begin();
  for (int64_t row = 0; row < rows; ++row)
    for (const nn::TokenRun& run : tokens_.runs)
      at = std::copy_n(from.begin() + row * tokens_.length + run.first, run.count, at);
}

const data::Batch& TokenShard::of(const data::Batch& batch) {
  if (all_) return batch;
  ESP_CHECK(batch.shape.T == tokens_.length && batch.shape.T_decoder == 0,
            "token shard: got rows of {} tokens; expected {}", batch.shape.T, tokens_.length);
  held_.B = batch.B;
  held_.shape = {tokens_.count(), 0, batch.shape.num_targets == batch.shape.T ? tokens_.count() : 1};
  held_.lengths = batch.lengths;
  held_.counted = batch.counted;
  take(held_.inputs, batch.inputs, batch.B);
  if (batch.shape.num_targets == batch.shape.T) {
    take(held_.targets, batch.targets, batch.B);
  } else {
    held_.targets = batch.targets;
    if (!first_cp_rank_) std::fill(held_.targets.begin(), held_.targets.end(), data::kIgnoreIndex);
  }
  return held_;
}

}  // namespace esp::train
