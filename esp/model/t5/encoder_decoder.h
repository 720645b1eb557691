// Implementation of t5.h. Block L is the first decoder block. Before it, the encoder output becomes
// HiddenStates::memory and the embedded target becomes the residual stream.
#pragma once

#include <optional>

#include "esp/model/blocks/stack.h"
#include "esp/model/model.h"
#include "esp/nn/layers/embedding.h"
#include "esp/nn/layers/head.h"

namespace esp::model {

class EncoderDecoder final : public Model {
 public:
  EncoderDecoder(const ModelConfig& config, const ModelPart& part);

  const ModelConfig& config() const override { return config_; }
  nn::ParameterList& parameters() override { return list_; }

  int num_blocks() const override { return stack_.size(); }
  HiddenStates stem(nn::ForwardContext& pass, const ModelBatch& batch) override;
  HiddenStates blocks(int first, int last, nn::ForwardContext& pass, const HiddenStates& state,
                      const ModelBatch& batch) override;
  autograd::Loss loss(nn::ForwardContext& pass, const HiddenStates& state, const ModelBatch& batch,
                      double scale) override;
  tensor::Tensor logits(nn::ForwardContext& pass, const HiddenStates& state) override;

  bool can_generate() const override { return true; }
  bool has_encoder() const override { return true; }
  void encode_source(nn::ForwardContext& pass, const ModelBatch& source, KvCache& cache) override;
  tensor::Tensor extend(nn::ForwardContext& pass, const tensor::Tensor& ids, KvCache& cache) override;

 private:
  autograd::Variable encoder_output(nn::ForwardContext& pass, const autograd::Variable& encoded) const;
  autograd::Variable embed_target(nn::ForwardContext& pass, const tensor::Tensor& ids, int64_t first_position) const;
  HiddenStates start_decoder(nn::ForwardContext& pass, const HiddenStates& encoded, const ModelBatch& batch) const;
  autograd::Variable last_norm(nn::ForwardContext& pass, const autograd::Variable& x) const;

  ModelConfig config_;
  nn::ParameterList list_;
  std::optional<nn::Embedding> tokens_, positions_, decoder_positions_;
  BlockStack stack_;
  std::optional<nn::Norm> encoder_norm_, norm_;  // final norms of encoder and decoder; empty in post-norm models
  std::optional<nn::Head> head_;
};

}  // namespace esp::model
