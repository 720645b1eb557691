#include "esp/model/blocks/decoder_only.h"

#include "esp/autograd/functions/pointwise.h"
#include "esp/model/blocks/options.h"

namespace esp::model {

using autograd::Variable;
using tensor::Tensor;

DecoderOnly::DecoderOnly(const ModelConfig& config, const ModelPart& part)
    : config_(config), list_(part.shards), experts_(part.shards) {
  const nn::Init init = nn::Init::normal(config.init_std);
  if (part.stem) {
    list_.begin_unit("stem");
    tokens_.emplace(list_, "embedding", config.vocab, config.dim, init, true);
    if (config.positions == Positions::learned)
      positions_.emplace(list_, "positions", config.seq_len, config.dim,
                         config.zero_positions ? nn::Init::zeros() : init);
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    if (part.has_block(i))
      stack_.add(list_, BlockStack::begin(list_, i), block_options(config, i, true, false, true),
                 part.shards.experts.whole() ? nullptr : &experts_);
    else
      stack_.skip();
  }
  if (!part.head) return;
  list_.begin_unit("head");
  norm_.emplace(list_, "norm", config.dim, norm_options(config));
  head_.emplace(vocabulary_head(list_, config, false, tokens_ ? &tokens_->parameter() : nullptr));
}

Variable DecoderOnly::embed(nn::ForwardContext& pass, const Tensor& ids, int64_t first_position) const {
  const Variable x = (*tokens_)(pass, ids, positions_ ? &*positions_ : nullptr, first_position);
  return nn::DropoutSite{config_.dropout, kStemSite}(pass, x);
}

HiddenStates DecoderOnly::stem(nn::ForwardContext& pass, const ModelBatch& batch) {
  return {embed(pass, batch.inputs, 0), {}};
}

HiddenStates DecoderOnly::blocks(int first, int last, nn::ForwardContext& pass, const HiddenStates& state,
                                 const ModelBatch& batch) {
  nn::BlockInputs inputs;
  inputs.lengths = batch.lengths;
  return {stack_.run(first, last, pass, state.x, inputs), {}};
}

autograd::Loss DecoderOnly::loss(nn::ForwardContext& pass, const HiddenStates& state, const ModelBatch& batch,
                                 double scale) {
  return head_->loss(pass, (*norm_)(pass, state.x), batch.targets, scale);
}

Tensor DecoderOnly::logits(nn::ForwardContext& pass, const HiddenStates& state) {
  return head_->logits(pass, (*norm_)(pass, state.x).value());
}

Tensor DecoderOnly::extend(nn::ForwardContext& pass, const Tensor& ids, KvCache& cache) {
  check_ids(ids, 0, config_.vocab, "token id");
  const autograd::NoGradGuard quiet(*pass.tape);
  nn::ResidualStream stream{embed(pass, ids, cache.length), {}};
  for (int i = 0; i < num_blocks(); ++i)
    stream = stack_[i].extend(pass, stream, cache.layers[static_cast<size_t>(i)], cache.length);
  cache.length += ids.dim(1);
  // The head needs only the last token's row.
  const Variable last = autograd::select_token(*pass.tape, nn::close(pass, stream), ids.dim(1) - 1);
  return head_->logits(pass, (*norm_)(pass, last).value());
}

}  // namespace esp::model
