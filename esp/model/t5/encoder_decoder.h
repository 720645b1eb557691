// The computation of t5.h. What the encoder leaves becomes State::memory where the decoder begins, at block L; from
// there on the stream is the target's.
#pragma once

#include <optional>

#include "esp/model/blocks/stack.h"
#include "esp/model/model.h"
#include "esp/nn/layers/embedding.h"
#include "esp/nn/layers/head.h"

namespace esp::model {

class EncoderDecoder final : public Model {
 public:
  EncoderDecoder(const ModelConfig& config, const Part& part);

  const ModelConfig& config() const override { return config_; }
  nn::ParameterList& parameters() override { return list_; }

  int num_blocks() const override { return stack_.size(); }
  State stem(nn::Pass& pass, const Batch& batch) override;
  State blocks(int first, int last, nn::Pass& pass, const State& state, const Batch& batch) override;
  autograd::Loss loss(nn::Pass& pass, const State& state, const Batch& batch, double scale) override;
  tensor::Tensor logits(nn::Pass& pass, const State& state) override;

  bool can_generate() const override { return true; }
  bool has_encoder() const override { return true; }
  void read(nn::Pass& pass, const Batch& source, KvCache& cache) override;
  tensor::Tensor extend(nn::Pass& pass, const tensor::Tensor& ids, KvCache& cache) override;

 private:
  autograd::Variable memory_of(nn::Pass& pass, const autograd::Variable& encoded) const;
  autograd::Variable embed_target(nn::Pass& pass, const tensor::Tensor& ids, int64_t first_position) const;
  State cross_over(nn::Pass& pass, const State& encoded, const Batch& batch) const;
  autograd::Variable last_norm(nn::Pass& pass, const autograd::Variable& x) const;

  ModelConfig config_;
  nn::ParameterList list_;
  std::optional<nn::Embedding> tokens_, positions_, decoder_positions_;
  Stack stack_;
  std::optional<nn::Norm> encoder_norm_, norm_;  // pre-norm only
  std::optional<nn::Head> head_;
};

}  // namespace esp::model
