// A model: a stem, a row of blocks, a head. Written as if for one device.
//
// Building makes parameters (shapes only) in the list, in the units stem, one per block, head; materialising and
// initialising them is the caller's. A pass records on the tape of `nn::Pass`. The parts can be run apart, so a
// pipeline stage may hold some blocks only; whole or in parts, the bits are the same.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/model/config.h"
#include "esp/model/counts.h"
#include "esp/model/part.h"
#include "esp/nn/parameter.h"
#include "esp/nn/pass.h"

namespace esp::model {

// One micro-batch as tensors of i32; what an objective does not use stays undefined. Their memory outlives backward.
struct Batch {
  tensor::Tensor inputs;          // [B, T]
  tensor::Tensor targets;         // [B, T] (t5: [B, Td], classification: [B]); negative: not counted
  tensor::Tensor lengths;         // [B] tokens of inputs that are not padding; undefined: all
  tensor::Tensor decoder_inputs;  // [B, Td] for encoder–decoder
  tensor::Tensor segments;        // [B, T] for BERT; undefined: all in segment 0
};

// What flows from part to part, and from a pipeline stage to the next: the residual stream and, behind an encoder, what
// the decoder looks at.
struct State {
  autograd::Variable x;       // [B, T, dim]
  autograd::Variable memory;  // [B, Te, dim]; empty before the decoder and in models without one
};

// Keys and values of earlier tokens, for generation: per layer [B, capacity, 2·kv_heads·head_dim]. Behind an encoder
// also those of what it read, [B, Te, 2·kv_heads·head_dim] per layer of the decoder.
struct KvCache {
  std::vector<tensor::Tensor> layers, memory;
  tensor::Tensor memory_lengths;  // i32 [B]; undefined: no padding
  int64_t length = 0;             // tokens held
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual nn::ParameterList& parameters() = 0;  // of the part that is here
  // Experts that holders divide, in units named as the blocks they are of. Null where there are none or every holder
  // has them all: they are then among `parameters`.
  virtual nn::ParameterList* experts() { return nullptr; }

  virtual int num_blocks() const = 0;  // of the whole model
  virtual State stem(nn::Pass& pass, const Batch& batch) = 0;
  // Blocks [first, last), recomputed as the pass says.
  virtual State blocks(int first, int last, nn::Pass& pass, const State& state, const Batch& batch) = 0;
  // The objective's loss over counted targets; gradients come out multiplied by `scale`.
  virtual autograd::Loss loss(nn::Pass& pass, const State& state, const Batch& batch, double scale) = 0;
  virtual tensor::Tensor logits(nn::Pass& pass, const State& state) = 0;  // [B, T, V] (or [B, classes]); not recorded

  // Next-token logits of the last position [B, V] of `ids` [B, n], which follow the tokens the cache holds; the cache
  // then holds them too. For models that can_generate.
  virtual bool can_generate() const { return false; }
  virtual KvCache make_cache(const tensor::Context& context, int64_t batch, int64_t capacity);
  virtual tensor::Tensor extend(nn::Pass& pass, const tensor::Tensor& ids, KvCache& cache);
  // An encoder–decoder reads a source (inputs, lengths) once before it says the first token of its answer.
  virtual bool has_encoder() const { return false; }
  virtual void read(nn::Pass& pass, const Batch& source, KvCache& cache);

  // Model FLOPs of a training step per token, in sequences of length T: forward and backward, no recomputation. See
  // counts.h for what is counted.
  double flops_per_token(int64_t seq_len) const;

  // Whole, after a look at the batch: UsageError names an id beyond the vocabulary, where kernels would read astray.
  State hidden(nn::Pass& pass, const Batch& batch);                          // stem and all blocks
  autograd::Loss forward(nn::Pass& pass, const Batch& batch, double scale);  // and the loss
  tensor::Tensor logits_of(nn::Pass& pass, const Batch& batch);              // or the logits
};

// Host ids i32 within [least, below), or a UsageError that says which is not.
void check_ids(const tensor::Tensor& ids, int32_t least, int64_t below, std::string_view what);

// The same for all ids of a batch that are looked up, and for its targets: for whoever runs the parts himself.
void check_inputs(const ModelConfig& config, const Batch& batch);
void check_targets(const ModelConfig& config, const Batch& batch);

struct HfFormat;  // hf_format.h

struct ModelRow {
  std::string_view name, help;
  ModelConfig (*defaults)();  // what the architecture usually has: norm, positions, activation, biases; no sizes
  std::unique_ptr<Model> (*make)(const ModelConfig&, const Part&);
  const HfFormat* hf;  // null: transformers has no such model
};
std::span<const ModelRow> models();
ModelConfig default_config(std::string_view arch);  // UsageError lists the known archs
// UsageError: unknown arch, or what check() finds. Of a part, only those pieces may be run that are here; a tied table
// that head and stem share stands with both when they are apart.
std::unique_ptr<Model> make_model(const ModelConfig& config, const Part& part = {});

struct Preset {
  std::string_view name, help;
  ModelConfig config;
  // What the paper trained it with, where it says: tokens per batch and learning rate.
  double batch_tokens = 0, lr = 0;
};
std::span<const Preset> presets();
const Preset& preset(std::string_view name);  // UsageError lists them

}  // namespace esp::model
