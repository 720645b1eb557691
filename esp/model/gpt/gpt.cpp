#include "esp/model/gpt/gpt.h"

#include "esp/model/blocks/decoder_only.h"

namespace esp::model {
namespace {

ModelConfig shape(int64_t layers, int64_t heads, int64_t dim, int64_t vocab, int64_t seq_len) {
  ModelConfig config = gpt_defaults();
  config.layers = layers;
  config.heads = heads;
  config.dim = dim;
  config.vocab = vocab;
  config.seq_len = seq_len;
  return config;
}

ModelConfig gpt2(int64_t layers, int64_t heads, int64_t dim) {
  return shape(layers, heads, dim, 50257, 1024);
}

ModelConfig gpt3(int64_t layers, int64_t heads, int64_t dim) {
  return shape(layers, heads, dim, 50257, 2048);
}

ModelConfig with_experts(ModelConfig config, int64_t experts, int64_t every) {
  config.experts = experts;
  config.expert_every = every;
  return config;
}

}  // namespace

ModelConfig gpt_defaults() {
  return {};  // the defaults of ModelConfig are those of GPT-2
}

std::unique_ptr<Model> make_gpt(const ModelConfig& config, const ModelPart& part) {
  return std::make_unique<DecoderOnly>(config, part);
}

// The GPT-3 rows follow table 2.1 of the paper, corrected so that heads · head dimension = dim: XL has 16 heads with
// head dimension 128, and 13B has dim 5120.
std::vector<Preset> gpt_presets() {
  return {
      {"gpt-tiny", "2 layers, dim 32, byte vocabulary; for tests", shape(2, 2, 32, 256, 32), 0, 0},
      {"gpt-moe-tiny", "gpt-tiny with 4 experts in the second layer", with_experts(shape(2, 2, 32, 256, 32), 4, 2), 0,
       0},
      {"gpt-6x384", "6 layers, dim 384, byte vocabulary, 256 tokens", shape(6, 6, 384, 256, 256), 0, 0},
      {"shakespeare-char", "4 layers, dim 128, characters, 64 tokens: for the CPU of a laptop",
       shape(4, 4, 128, 65, 64), 768, 1e-3},
      {"gpt2-124m", "GPT-2 small", gpt2(12, 12, 768), 0.5e6, 6e-4},
      {"gpt2-355m", "GPT-2 medium", gpt2(24, 16, 1024), 0.5e6, 3e-4},
      {"gpt2-774m", "GPT-2 large", gpt2(36, 20, 1280), 0.5e6, 2.5e-4},
      {"gpt2-1558m", "GPT-2 XL", gpt2(48, 25, 1600), 0.5e6, 2e-4},
      {"gpt3-125m", "GPT-3 Small", gpt3(12, 12, 768), 0.5e6, 6.0e-4},
      {"gpt3-350m", "GPT-3 Medium", gpt3(24, 16, 1024), 0.5e6, 3.0e-4},
      {"gpt3-760m", "GPT-3 Large", gpt3(24, 16, 1536), 0.5e6, 2.5e-4},
      {"gpt3-1.3b", "GPT-3 XL", gpt3(24, 16, 2048), 1e6, 2.0e-4},
      {"gpt3-2.7b", "GPT-3 2.7B", gpt3(32, 32, 2560), 1e6, 1.6e-4},
      {"gpt3-6.7b", "GPT-3 6.7B", gpt3(32, 32, 4096), 2e6, 1.2e-4},
      {"gpt3-13b", "GPT-3 13B", gpt3(40, 40, 5120), 2e6, 1.0e-4},
      {"gpt3-175b", "GPT-3 175B", gpt3(96, 96, 12288), 3.2e6, 0.6e-4},
  };
}

}  // namespace esp::model
