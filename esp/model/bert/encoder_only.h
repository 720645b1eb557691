// The computation of BERT; see bert.h.
#pragma once

#include <optional>

#include "esp/model/blocks/stack.h"
#include "esp/model/model.h"
#include "esp/nn/layers/embedding.h"
#include "esp/nn/layers/head.h"

namespace esp::model {

class EncoderOnly final : public Model {
 public:
  EncoderOnly(const ModelConfig& config, const Part& part);

  const ModelConfig& config() const override { return config_; }
  nn::ParameterList& parameters() override { return list_; }

  int num_blocks() const override { return stack_.size(); }
  State stem(nn::Pass& pass, const Batch& batch) override;
  State blocks(int first, int last, nn::Pass& pass, const State& state, const Batch& batch) override;
  autograd::Loss loss(nn::Pass& pass, const State& state, const Batch& batch, double scale) override;
  tensor::Tensor logits(nn::Pass& pass, const State& state) override;

 private:
  void make_head(nn::Init init);
  // What the last projection reads: [B, T, dim] for tokens, [B, dim] for classes.
  autograd::Variable features(nn::Pass& pass, const State& state) const;

  ModelConfig config_;
  nn::ParameterList list_;
  std::optional<nn::Embedding> tokens_, positions_, segments_;
  std::optional<nn::Norm> embedding_norm_;
  Stack stack_;
  std::optional<nn::Norm> norm_;  // pre-norm only
  std::optional<nn::Linear> transform_, pooler_;
  std::optional<nn::Norm> transform_norm_;
  std::optional<nn::Head> head_;
};

}  // namespace esp::model
