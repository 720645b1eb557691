// A model: a stem, a row of equal blocks, a head. Written as if for one device.
//
// Building makes parameters (shapes only) in the list; materialising and initialising them is the caller's. A pass
// records on the tape of `nn::Pass`. The parts can be run apart, so a pipeline stage may hold some blocks only.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/model/config.h"
#include "esp/nn/parameter.h"
#include "esp/nn/pass.h"

namespace esp::model {

// One micro-batch as tensors of i32; what an objective does not use stays undefined. They outlive the pass.
struct Batch {
  tensor::Tensor inputs;          // [B, T]
  tensor::Tensor targets;         // [B, T] (classification: [B]); negative: not counted
  tensor::Tensor lengths;         // [B] tokens that are not padding
  tensor::Tensor decoder_inputs;  // [B, Td] for encoder–decoder
};

// Keys and values of earlier tokens, for generation: per layer [B, capacity, 2·kv_heads·head_dim].
struct KvCache {
  std::vector<tensor::Tensor> layers;
  int64_t length = 0;  // tokens held
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual nn::ParameterList& parameters() = 0;

  virtual int num_blocks() const = 0;
  virtual autograd::Variable stem(nn::Pass& pass, const Batch& batch) = 0;
  virtual autograd::Variable block(int index, nn::Pass& pass, const autograd::Variable& x, const Batch& batch) = 0;
  // The objective's loss over counted targets; gradients come out multiplied by `scale`.
  virtual autograd::Loss loss(nn::Pass& pass, const autograd::Variable& x, const Batch& batch, double scale) = 0;
  virtual tensor::Tensor logits(nn::Pass& pass, const autograd::Variable& x) = 0;  // [B, T, V] (or [B, classes])

  // Next-token logits of the last position [B, V] while filling the cache; decoder models only.
  virtual bool can_generate() const { return false; }
  virtual KvCache make_cache(const tensor::Context& context, int64_t batch, int64_t capacity) const;
  virtual tensor::Tensor extend(nn::Pass& pass, const tensor::Tensor& ids, KvCache& cache);

  // Model FLOPs of one training step over `tokens` tokens in sequences of length T (forward and backward, no
  // recomputation), counting attention below the diagonal in full as the literature does.
  virtual double flops_per_token(int64_t seq_len) const = 0;

  // stem, all blocks (recomputed as the pass says), loss.
  autograd::Loss forward(nn::Pass& pass, const Batch& batch, double scale);
  autograd::Variable hidden(nn::Pass& pass, const Batch& batch);  // stem and blocks
};

struct ModelRow {
  std::string_view name, help;
  std::unique_ptr<Model> (*make)(const ModelConfig&);
};
std::span<const ModelRow> models();
std::unique_ptr<Model> make_model(const ModelConfig& config);  // UsageError lists the known archs

struct Preset {
  std::string_view name, help;
  ModelConfig config;
  // What the paper trained it with, where it says: tokens per batch and learning rate.
  double batch_tokens = 0, lr = 0;
};
std::span<const Preset> presets();
const Preset& preset(std::string_view name);  // UsageError lists them

// Exact, from the formulas of the architecture; equals parameters().count() of the built model.
int64_t parameter_count(const ModelConfig& config);

}  // namespace esp::model
