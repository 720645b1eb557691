// A model: a stem, a stack of blocks, a head. Written as if for one device.
//
// Construction adds parameters (shapes only) to the list, in the units stem, one per block, head; the caller
// materialises and initialises them. A pass records on the tape of nn::ForwardContext. The parts can be run separately,
// so a pipeline stage may hold some blocks only; the bits are the same.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/model/config.h"
#include "esp/model/counts.h"
#include "esp/model/model_part.h"
#include "esp/nn/forward_context.h"
#include "esp/nn/parameter.h"

namespace esp::model {

// One micro-batch as i32 tensors; those an objective does not use stay undefined. Their memory outlives backward.
struct ModelBatch {
  tensor::Tensor inputs;          // [B, T]
  tensor::Tensor targets;         // [B, T] (t5: [B, Td], classification: [B]); negative: not counted
  tensor::Tensor lengths;         // [B] tokens of inputs that are not padding; undefined: all
  tensor::Tensor decoder_inputs;  // [B, Td] for encoder–decoder
  tensor::Tensor segments;        // [B, T] for BERT; undefined: all in segment 0
};

// Hidden states passed between parts and between pipeline stages: the residual stream and, behind an encoder, its
// output.
struct HiddenStates {
  autograd::Variable x;       // [B, T, dim]
  autograd::Variable memory;  // [B, Te, dim]; empty before the decoder and in models without one
};

// KV cache of earlier tokens, for generation: per layer [B, capacity, 2·kv_heads·head_dim]. With an encoder also the
// keys and values of its output, [B, Te, 2·kv_heads·head_dim] per decoder layer.
struct KvCache {
  std::vector<tensor::Tensor> layers, memory;
  tensor::Tensor memory_lengths;  // i32 [B]; undefined: no padding
  int64_t length = 0;             // tokens held
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual nn::ParameterList& parameters() = 0;  // of this rank's part
  // Expert-parallel parameters, in units named after their blocks. Null if there are none or every rank has all of
  // them; they are then among `parameters`.
  virtual nn::ParameterList* experts() { return nullptr; }

  virtual int num_blocks() const = 0;  // of the whole model
  virtual HiddenStates stem(nn::ForwardContext& pass, const ModelBatch& batch) = 0;
  // Blocks [first, last), recomputed as the pass says.
  virtual HiddenStates blocks(int first, int last, nn::ForwardContext& pass, const HiddenStates& state,
                              const ModelBatch& batch) = 0;
  // The objective's loss over counted targets; gradients are multiplied by `scale`.
  virtual autograd::Loss loss(nn::ForwardContext& pass, const HiddenStates& state, const ModelBatch& batch,
                              double scale) = 0;
  virtual tensor::Tensor logits(nn::ForwardContext& pass,
                                const HiddenStates& state) = 0;  // [B, T, V] (or [B, classes]); not recorded

  // Next-token logits of the last position [B, V] of `ids` [B, n], which follow the cached tokens and are appended to
  // the cache. For models that can_generate.
  virtual bool can_generate() const { return false; }
  virtual KvCache make_cache(const tensor::Context& context, int64_t batch, int64_t capacity);
  virtual tensor::Tensor extend(nn::ForwardContext& pass, const tensor::Tensor& ids, KvCache& cache);
  // An encoder–decoder encodes a source (inputs, lengths) once before generating.
  virtual bool has_encoder() const { return false; }
  virtual void read(nn::ForwardContext& pass, const ModelBatch& source, KvCache& cache);

  // Model FLOPs of a training step per token, in sequences of length T: forward and backward, no recomputation. See
  // counts.h for what is counted.
  double flops_per_token(int64_t seq_len) const;

  // The whole model, after checking the batch: UsageError for an id outside the vocabulary.
  HiddenStates hidden(nn::ForwardContext& pass, const ModelBatch& batch);                   // stem and all blocks
  autograd::Loss forward(nn::ForwardContext& pass, const ModelBatch& batch, double scale);  // and the loss
  tensor::Tensor logits_of(nn::ForwardContext& pass, const ModelBatch& batch);              // or the logits
};

// Checks that host ids i32 are within [least, below); UsageError names the first that is not.
void check_ids(const tensor::Tensor& ids, int32_t least, int64_t below, std::string_view what);

// The same for all looked-up ids of a batch, and for its targets; for callers that run the parts separately.
void check_inputs(const ModelConfig& config, const ModelBatch& batch);
void check_targets(const ModelConfig& config, const ModelBatch& batch);

struct HfFormat;  // hf_format.h

struct ArchitectureRow {
  std::string_view name, help;
  ModelConfig (*defaults)();  // architecture defaults: norm, positions, activation, biases; no sizes
  std::unique_ptr<Model> (*make)(const ModelConfig&, const ModelPart&);
  const HfFormat* hf;  // null: transformers has no such model
};
std::span<const ArchitectureRow> models();
ModelConfig default_config(std::string_view arch);  // UsageError lists the known archs
// UsageError: unknown arch, or a violation found by check(). Only the pieces of `part` may be run. If head and stem are
// on different stages, each has its own replica of a tied table.
std::unique_ptr<Model> make_model(const ModelConfig& config, const ModelPart& part = {});

struct Preset {
  std::string_view name, help;
  ModelConfig config;
  // Training settings of the paper, if given: tokens per batch and learning rate.
  double batch_tokens = 0, lr = 0;
};
std::span<const Preset> presets();
const Preset& preset(std::string_view name);  // UsageError lists them

}  // namespace esp::model
