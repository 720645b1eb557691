// GPT and LLaMA: tokens (and learned positions) → causal pre-norm blocks → norm → head.
#pragma once

#include <optional>

#include "esp/model/blocks/stack.h"
#include "esp/model/model.h"
#include "esp/nn/layers/embedding.h"
#include "esp/nn/layers/head.h"

namespace esp::model {

class DecoderOnly final : public Model {
 public:
  DecoderOnly(const ModelConfig& config, const ModelPart& part);

  const ModelConfig& config() const override { return config_; }
  nn::ParameterList& parameters() override { return list_; }
  nn::ParameterList* experts() override { return experts_.all().empty() ? nullptr : &experts_; }

  int num_blocks() const override { return stack_.size(); }
  HiddenStates stem(nn::ForwardContext& pass, const ModelBatch& batch) override;
  HiddenStates blocks(int first, int last, nn::ForwardContext& pass, const HiddenStates& state,
                      const ModelBatch& batch) override;
  autograd::Loss loss(nn::ForwardContext& pass, const HiddenStates& state, const ModelBatch& batch,
                      double scale) override;
  tensor::Tensor logits(nn::ForwardContext& pass, const HiddenStates& state) override;

  bool can_generate() const override { return true; }
  tensor::Tensor extend(nn::ForwardContext& pass, const tensor::Tensor& ids, KvCache& cache) override;

 private:
  autograd::Variable embed(nn::ForwardContext& pass, const tensor::Tensor& ids, int64_t first_position) const;

  ModelConfig config_;
  nn::ParameterList list_, experts_;
  std::optional<nn::Embedding> tokens_, positions_;
  BlockStack stack_;
  std::optional<nn::Norm> norm_;
  std::optional<nn::Head> head_;
};

}  // namespace esp::model
