#include "esp/model/t5/encoder_decoder.h"

#include <algorithm>

#include "esp/autograd/functions/pointwise.h"
#include "esp/base/error.h"
#include "esp/model/blocks/options.h"

namespace esp::model {

using autograd::Variable;
using tensor::Tensor;

EncoderDecoder::EncoderDecoder(const ModelConfig& config, const ModelPart& part) : config_(config), list_(part.shards) {
  if (!part.stem || !part.head || !part.all_blocks)
    throw UsageError(
        "arch = \"t5\" cannot be split into pipeline stages: encoder, decoder and head share one table. Use "
        "parallel.pp = 1");
  const nn::Init init = nn::Init::normal(config.init_std);
  const nn::Init position_init = config.zero_positions ? nn::Init::zeros() : init;
  const bool learned = config.positions == Positions::learned, pre_norm = !config.post_norm;
  list_.begin_unit("stem");
  tokens_.emplace(list_, "embedding", config.vocab, config.dim, init, true);
  if (learned) positions_.emplace(list_, "positions", config.seq_len, config.dim, position_init);
  for (int64_t i = 0; i < 2 * config.layers; ++i) {
    const bool decoder = i >= config.layers;
    const std::string name = BlockStack::begin(list_, i);
    // Parameters between encoder and decoder belong to the unit of the first decoder block.
    if (i == config.layers) {
      if (pre_norm) encoder_norm_.emplace(list_, "encoder_norm", config.dim, norm_options(config));
      if (learned) decoder_positions_.emplace(list_, "decoder_positions", config.seq_len, config.dim, position_init);
    }
    stack_.add(list_, name, block_options(config, i, decoder, decoder, pre_norm));
  }
  list_.begin_unit("head");
  if (pre_norm) norm_.emplace(list_, "norm", config.dim, norm_options(config));
  head_.emplace(list_, "head", config.dim, config.vocab, false, init, &tokens_->parameter(), true);
}

HiddenStates EncoderDecoder::stem(nn::ForwardContext& pass, const ModelBatch& batch) {
  const Variable x = (*tokens_)(pass, batch.inputs, positions_ ? &*positions_ : nullptr);
  return {nn::DropoutSite{config_.dropout, kStemSite}(pass, x), {}};
}

Variable EncoderDecoder::encoder_output(nn::ForwardContext& pass, const Variable& encoded) const {
  return encoder_norm_ ? (*encoder_norm_)(pass, encoded) : encoded;
}

Variable EncoderDecoder::embed_target(nn::ForwardContext& pass, const Tensor& ids, int64_t first_position) const {
  const Variable x = (*tokens_)(pass, ids, decoder_positions_ ? &*decoder_positions_ : nullptr, first_position);
  return nn::DropoutSite{config_.dropout, kDecoderStemSite}(pass, x);
}

HiddenStates EncoderDecoder::start_decoder(nn::ForwardContext& pass, const HiddenStates& encoded,
                                           const ModelBatch& batch) const {
  const Variable memory = encoder_output(pass, encoded.x);
  return {embed_target(pass, batch.decoder_inputs, 0), memory};
}

HiddenStates EncoderDecoder::blocks(int first, int last, nn::ForwardContext& pass, const HiddenStates& in,
                                    const ModelBatch& batch) {
  const int border = static_cast<int>(config_.layers);
  HiddenStates state = in;
  nn::BlockInputs inputs;
  if (first < border) {
    inputs.lengths = batch.lengths;
    state.x = stack_.run(first, std::min(last, border), pass, state.x, inputs);
  }
  if (last <= border) return state;
  if (first <= border) state = start_decoder(pass, state, batch);
  // The decoder needs no target lengths: padding is at the end, and causal attention of earlier tokens does not read
  // it.
  inputs.lengths = {};
  inputs.memory = state.memory;
  inputs.memory_lengths = batch.lengths;
  state.x = stack_.run(std::max(first, border), last, pass, state.x, inputs);
  return state;
}

Variable EncoderDecoder::last_norm(nn::ForwardContext& pass, const Variable& x) const {
  return norm_ ? (*norm_)(pass, x) : x;
}

autograd::Loss EncoderDecoder::loss(nn::ForwardContext& pass, const HiddenStates& state, const ModelBatch& batch,
                                    double scale) {
  return head_->loss(pass, last_norm(pass, state.x), batch.targets, scale);
}

Tensor EncoderDecoder::logits(nn::ForwardContext& pass, const HiddenStates& state) {
  return head_->logits(pass, last_norm(pass, state.x).value());
}

void EncoderDecoder::encode_source(nn::ForwardContext& pass, const ModelBatch& source, KvCache& cache) {
  check_ids(source.inputs, 0, config_.vocab, "token id");
  const autograd::NoGradGuard quiet(*pass.tape);
  const int border = static_cast<int>(config_.layers);
  const Variable memory = encoder_output(pass, blocks(0, border, pass, stem(pass, source), source).x);
  cache.memory.clear();
  for (int i = border; i < num_blocks(); ++i) cache.memory.push_back(stack_[i].keys_values(pass, memory));
  cache.memory_lengths = source.lengths;
  cache.length = 0;
}

Tensor EncoderDecoder::extend(nn::ForwardContext& pass, const Tensor& ids, KvCache& cache) {
  ESP_CHECK(!cache.memory.empty(), "encode_source() must be called first");
  check_ids(ids, 0, config_.vocab, "token id");
  const autograd::NoGradGuard quiet(*pass.tape);
  nn::ResidualStream stream{embed_target(pass, ids, cache.length), {}};
  for (size_t i = 0; i < cache.layers.size(); ++i)
    stream = stack_[static_cast<int>(config_.layers) + static_cast<int>(i)].extend(
        pass, stream, cache.layers[i], cache.length, cache.memory[i], cache.memory_lengths);
  cache.length += ids.dim(1);
  // The head needs only the last token's row.
  const Variable last = autograd::select_token(*pass.tape, nn::close(pass, stream), ids.dim(1) - 1);
  return head_->logits(pass, last_norm(pass, last).value());
}

}  // namespace esp::model
