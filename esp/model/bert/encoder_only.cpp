#include "esp/model/bert/encoder_only.h"

#include "esp/autograd/functions/pointwise.h"
#include "esp/base/error.h"
#include "esp/model/blocks/options.h"
#include "esp/nn/parallel_ops.h"

namespace esp::model {

using autograd::Variable;
using tensor::Tensor;

EncoderOnly::EncoderOnly(const ModelConfig& config, const ModelPart& part) : config_(config), list_(part.shards) {
  const nn::Init init = nn::Init::normal(config.init_std);
  if (part.stem) {
    list_.begin_unit("stem");
    tokens_.emplace(list_, "embedding", config.vocab, config.dim, init, true);
    if (config.positions == Positions::learned)
      positions_.emplace(list_, "positions", config.seq_len, config.dim,
                         config.zero_positions ? nn::Init::zeros() : init);
    if (config.type_vocab > 0) segments_.emplace(list_, "segments", config.type_vocab, config.dim, init);
    if (config.embedding_norm) embedding_norm_.emplace(list_, "embedding_norm", config.dim, norm_options(config));
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    if (part.has_block(i))
      stack_.add(list_, BlockStack::begin(list_, i), block_options(config, i, false, false, !config.post_norm));
    else
      stack_.skip();
  }
  if (!part.head) return;
  list_.begin_unit("head");
  if (!config.post_norm) norm_.emplace(list_, "norm", config.dim, norm_options(config));
  make_head(init);
}

void EncoderOnly::make_head(nn::Init init) {
  const ModelConfig& c = config_;
  if (c.num_classes > 0 || c.headless) list_.set_full_sequence();
  if (c.pooler) pooler_.emplace(list_, "pooler", c.dim, c.dim, true, init);
  if (c.headless) return;
  if (c.num_classes > 0) {
    head_.emplace(list_, "classifier", c.dim, c.num_classes, true, init);
    return;
  }
  transform_.emplace(list_, "transform", c.dim, c.dim, true, init);
  transform_norm_.emplace(list_, "transform_norm", c.dim, norm_options(c));
  head_.emplace(vocabulary_head(list_, c, true, tokens_ ? &tokens_->parameter() : nullptr));
}

HiddenStates EncoderOnly::stem(nn::ForwardContext& pass, const ModelBatch& batch) {
  nn::ResidualStream sum{(*tokens_)(pass, batch.inputs, positions_ ? &*positions_ : nullptr), {}};
  if (segments_) {
    const bool given = batch.segments.defined();
    sum.branch = (*segments_)(pass, given ? batch.segments
                                          : tensor::zeros(pass.tape->context(), batch.inputs.shape(), DType::i32,
                                                          device::MemoryCategory::activation));
  }
  const Variable x = embedding_norm_ ? (*embedding_norm_)(pass, sum).y : nn::close(pass, sum);
  // The dropout of the embeddings is part of their norm, so a model without embedding_norm has none here.
  return {embedding_norm_ ? nn::DropoutSite{config_.dropout, kStemSite}(pass, x) : x, {}};
}

HiddenStates EncoderOnly::blocks(int first, int last, nn::ForwardContext& pass, const HiddenStates& state,
                                 const ModelBatch& batch) {
  nn::BlockInputs inputs;
  inputs.lengths = batch.lengths;
  return {stack_.run(first, last, pass, state.x, inputs), {}};
}

Variable EncoderOnly::features(nn::ForwardContext& pass, const HiddenStates& state) const {
  if (!head_)
    throw UsageError("model.headless = true: the model has no loss and no logits, only hidden states. Use false");
  autograd::Tape& tape = *pass.tape;
  const Variable x = norm_ ? (*norm_)(pass, state.x) : state.x;
  if (config_.num_classes == 0)
    return (*transform_norm_)(pass, autograd::activation(tape, (*transform_)(pass, x), config_.activation));
  const Variable first = autograd::select_token(tape, pass.ops->gather_stream(pass, x), 0);
  if (!pooler_) return first;
  const Variable pooled = autograd::activation(tape, (*pooler_)(pass, first), kernel::Activation::tanh);
  return nn::DropoutSite{config_.dropout, kHeadSite}(pass, pooled);
}

autograd::Loss EncoderOnly::loss(nn::ForwardContext& pass, const HiddenStates& state, const ModelBatch& batch,
                                 double scale) {
  const Variable x = features(pass, state);
  return head_->loss(pass, x, batch.targets, scale);
}

Tensor EncoderOnly::logits(nn::ForwardContext& pass, const HiddenStates& state) {
  const Variable x = features(pass, state);
  return head_->logits(pass, x.value());
}

}  // namespace esp::model
