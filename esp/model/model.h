// Model: a stem, a stack of transformer blocks, a head. Its code is the same for one device and for a parallel layout.
//
// Construction adds the parameters (shapes only) to the list, in one unit each for the stem, each block and the head;
// the caller allocates and initialises them. A pass records on the tape of nn::ForwardContext. The parts can be run
// separately, so a pipeline stage may hold only some blocks; the results are bit-identical.
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

// One micro-batch as i32 tensors. Tensors that the objective does not use stay undefined. Their memory must outlive
// backward.
struct ModelBatch {
  tensor::Tensor inputs;          // [B, T]
  tensor::Tensor targets;         // [B, T] (t5: [B, Td], classification: [B]); negative: ignored by the loss
  tensor::Tensor lengths;         // [B] number of input tokens that are not padding; undefined: all
  tensor::Tensor decoder_inputs;  // [B, Td] for encoder–decoder
  tensor::Tensor segments;        // [B, T] for BERT; undefined: all in segment 0
};

// Hidden states passed between parts and between pipeline stages: the residual stream and, after an encoder, its
// output.
struct HiddenStates {
  autograd::Variable x;       // [B, T, dim]
  autograd::Variable memory;  // [B, Te, dim] encoder output; undefined before the decoder and in models without encoder
};

// KV cache of earlier tokens, for generation: per layer [B, capacity, 2·kv_heads·head_dim]. With an encoder also the
// keys and values of its output, [B, Te, 2·kv_heads·head_dim] per decoder layer.
struct KvCache {
  std::vector<tensor::Tensor> layers, memory;
  tensor::Tensor memory_lengths;  // i32 [B]; undefined: no padding
  int64_t length = 0;             // number of cached tokens
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual nn::ParameterList& parameters() = 0;  // parameters of the part that this rank holds
  // Expert-parallel parameters, in units named after their blocks. Null if the model has no experts, or if every rank
  // has all of them; expert parameters are then part of parameters().
  virtual nn::ParameterList* experts() { return nullptr; }

  virtual int num_blocks() const = 0;  // number of blocks of the whole model
  virtual HiddenStates stem(nn::ForwardContext& pass, const ModelBatch& batch) = 0;
  // Runs blocks [first, last), with the recomputation that `pass` selects.
  virtual HiddenStates blocks(int first, int last, nn::ForwardContext& pass, const HiddenStates& state,
                              const ModelBatch& batch) = 0;
  // The loss over all targets that are not ignored; gradients are multiplied by `scale`.
  virtual autograd::Loss loss(nn::ForwardContext& pass, const HiddenStates& state, const ModelBatch& batch,
                              double scale) = 0;
  // Logits [B, T, V] (or [B, classes]); not recorded on the tape.
  virtual tensor::Tensor logits(nn::ForwardContext& pass, const HiddenStates& state) = 0;

  // Generation; only if can_generate(). `extend` appends the tokens `ids` [B, n] to those in the cache and returns the
  // next-token logits of the last position, [B, V].
  virtual bool can_generate() const { return false; }
  virtual KvCache make_cache(const tensor::Context& context, int64_t batch, int64_t capacity);
  virtual tensor::Tensor extend(nn::ForwardContext& pass, const tensor::Tensor& ids, KvCache& cache);
  // Encoder–decoder only: encode_source() encodes a source (inputs, lengths) into the cache. Call it once before
  // generating.
  virtual bool has_encoder() const { return false; }
  virtual void encode_source(nn::ForwardContext& pass, const ModelBatch& source, KvCache& cache);

  // Model FLOPs of a training step per token, in sequences of length T: forward and backward, without recomputation;
  // see counts.h.
  double flops_per_token(int64_t seq_len) const;

  // These functions check the batch and run the whole model. UsageError for an id outside the vocabulary.
  HiddenStates hidden(nn::ForwardContext& pass, const ModelBatch& batch);                   // stem and all blocks
  autograd::Loss forward(nn::ForwardContext& pass, const ModelBatch& batch, double scale);  // hidden(), then the loss
  tensor::Tensor logits_of(nn::ForwardContext& pass, const ModelBatch& batch);              // hidden(), then the logits
};

// Checks that all i32 ids in host memory are >= least and < below. UsageError names the first id that is not.
void check_ids(const tensor::Tensor& ids, int32_t least, int64_t below, std::string_view what);

// check_inputs checks the token and segment ids, check_targets the target ids. Callers that run the parts separately
// call them first.
void check_inputs(const ModelConfig& config, const ModelBatch& batch);
void check_targets(const ModelConfig& config, const ModelBatch& batch);

struct HfFormat;  // hf_format.h

struct ArchitectureRow {
  std::string_view name, help;
  ModelConfig (*defaults)();  // architecture defaults: norm, positions, activation, biases; no sizes
  std::unique_ptr<Model> (*make)(const ModelConfig&, const ModelPart&);
  const HfFormat* hf;  // null: `transformers` has no such model
};
std::span<const ArchitectureRow> models();
ModelConfig default_config(std::string_view arch);  // UsageError lists the known architectures
// Builds the model. Only the parts that `part` selects may be run. If head and stem are on different stages, each has a
// replica of a tied table. UsageError: unknown arch, or an error found by check().
std::unique_ptr<Model> make_model(const ModelConfig& config, const ModelPart& part = {});

struct Preset {
  std::string_view name, help;
  ModelConfig config;
  // Training settings of the paper, if published: tokens per batch and learning rate.
  double batch_tokens = 0, lr = 0;
};
std::span<const Preset> presets();
const Preset& preset(std::string_view name);  // UsageError lists the known presets

}  // namespace esp::model
