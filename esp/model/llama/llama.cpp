#include "esp/model/llama/llama.h"

#include "esp/model/blocks/decoder_only.h"

namespace esp::model {
namespace {

ModelConfig shape(int64_t layers, int64_t heads, int64_t kv_heads, int64_t dim, int64_t ffn, int64_t vocab,
                  int64_t seq_len) {
  ModelConfig config = llama_defaults();
  config.layers = layers;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.dim = dim;
  config.ffn = ffn;
  config.vocab = vocab;
  config.seq_len = seq_len;
  return config;
}

// Mixtral (Jiang et al. 2024): every block has 8 experts; each token is routed to 2.
ModelConfig mixtral_8x7b() {
  ModelConfig config = shape(32, 32, 8, 4096, 14336, 32000, 32768);
  config.norm_eps = 1e-5;
  config.rope.theta = 1e6;
  config.experts = 8;
  config.expert_aux = 0.02;
  return config;
}

}  // namespace

ModelConfig llama_defaults() {
  ModelConfig config;
  config.arch = "llama";
  config.activation = kernel::Activation::silu;
  config.gated = true;
  config.norm = kernel::NormKind::rms;
  config.norm_eps = 1e-6;
  config.positions = Positions::rotary;
  config.bias = false;
  config.tie_embeddings = false;
  return config;
}

std::unique_ptr<Model> make_llama(const ModelConfig& config, const ModelPart& part) {
  return std::make_unique<DecoderOnly>(config, part);
}

std::vector<Preset> llama_presets() {
  return {
      {"llama-tiny", "2 layers, dim 32, grouped-query attention, byte vocabulary; for tests",
       shape(2, 4, 2, 32, 88, 256, 32), 0, 0},
      {"llama-1.1b", "16 layers, dim 2048, 8 KV heads, 4096 tokens", shape(16, 32, 8, 2048, 8192, 32000, 4096), 0, 0},
      {"llama-7b", "LLaMA 7B", shape(32, 32, 0, 4096, 11008, 32000, 2048), 4e6, 3.0e-4},
      {"llama-13b", "LLaMA 13B", shape(40, 40, 0, 5120, 13824, 32000, 2048), 4e6, 3.0e-4},
      {"llama-33b", "LLaMA 33B", shape(60, 52, 0, 6656, 17920, 32000, 2048), 4e6, 1.5e-4},
      {"llama-65b", "LLaMA 65B", shape(80, 64, 0, 8192, 22016, 32000, 2048), 4e6, 1.5e-4},
      {"mixtral-8x7b", "Mixtral 8x7B", mixtral_8x7b(), 0, 0},
  };
}

}  // namespace esp::model
