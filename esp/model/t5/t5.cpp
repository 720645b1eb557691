#include "esp/model/t5/t5.h"

#include "esp/model/t5/encoder_decoder.h"

namespace esp::model {
namespace {

ModelConfig shape(int64_t layers, int64_t heads, int64_t dim, int64_t vocab, int64_t seq_len) {
  ModelConfig config = t5_defaults();
  config.layers = layers;
  config.heads = heads;
  config.dim = dim;
  config.vocab = vocab;
  config.seq_len = seq_len;
  return config;
}

}  // namespace

ModelConfig t5_defaults() {
  ModelConfig config;
  config.arch = "t5";
  config.activation = kernel::Activation::relu;
  return config;
}

std::unique_ptr<Model> make_t5(const ModelConfig& config, const ModelPart& part) {
  return std::make_unique<EncoderDecoder>(config, part);
}

std::vector<Preset> t5_presets() {
  return {
      {"t5-tiny", "2 encoder and 2 decoder layers, dim 32, byte vocabulary; for tests", shape(2, 2, 32, 256, 32), 0, 0},
      {"t5-base", "6 encoder and 6 decoder layers, dim 512: the base size of the Transformer paper",
       shape(6, 8, 512, 37000, 512), 25e3, 0},
      {"t5-big", "6 encoder and 6 decoder layers, dim 1024: the big size of the Transformer paper",
       shape(6, 16, 1024, 37000, 512), 25e3, 0},
  };
}

}  // namespace esp::model
