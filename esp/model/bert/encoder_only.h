// Implementation of BERT; see bert.h.
#pragma once

#include <optional>

#include "esp/model/blocks/stack.h"
#include "esp/model/model.h"
#include "esp/nn/layers/embedding.h"
#include "esp/nn/layers/head.h"

namespace esp::model {

class EncoderOnly final : public Model {
 public:
  EncoderOnly(const ModelConfig& config, const ModelPart& part);

  const ModelConfig& config() const override { return config_; }
  nn::ParameterList& parameters() override { return list_; }

  int num_blocks() const override { return stack_.size(); }
  HiddenStates stem(nn::ForwardContext& pass, const ModelBatch& batch) override;
  HiddenStates blocks(int first, int last, nn::ForwardContext& pass, const HiddenStates& state,
                      const ModelBatch& batch) override;
  autograd::Loss loss(nn::ForwardContext& pass, const HiddenStates& state, const ModelBatch& batch,
                      double scale) override;
  tensor::Tensor logits(nn::ForwardContext& pass, const HiddenStates& state) override;

 private:
  void make_head(nn::Init init);
  // Input of the output projection: [B, T, dim] for tokens, [B, dim] for classes.
  autograd::Variable features(nn::ForwardContext& pass, const HiddenStates& state) const;

  ModelConfig config_;
  nn::ParameterList list_;
  std::optional<nn::Embedding> tokens_, positions_, segments_;
  std::optional<nn::Norm> embedding_norm_;
  BlockStack stack_;
  std::optional<nn::Norm> norm_;  // final norm; empty in post-norm models
  std::optional<nn::Linear> transform_, pooler_;
  std::optional<nn::Norm> transform_norm_;
  std::optional<nn::Head> head_;
};

}  // namespace esp::model
