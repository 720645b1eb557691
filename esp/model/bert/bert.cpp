#include "esp/model/bert/bert.h"

#include "esp/model/bert/encoder_only.h"

namespace esp::model {
namespace {

ModelConfig shape(int64_t layers, int64_t heads, int64_t dim, int64_t vocab, int64_t seq_len) {
  ModelConfig config = bert_defaults();
  config.layers = layers;
  config.heads = heads;
  config.dim = dim;
  config.vocab = vocab;
  config.seq_len = seq_len;
  return config;
}

ModelConfig published(int64_t layers, int64_t heads, int64_t dim) {
  ModelConfig config = shape(layers, heads, dim, 30522, 512);
  config.dropout = 0.1;
  return config;
}

ModelConfig tiny(int64_t num_classes) {
  ModelConfig config = shape(2, 2, 32, 256, 32);
  config.num_classes = num_classes;
  config.pooler = num_classes > 0;
  return config;
}

// A minimal encoder for teaching: no segments, no norm after the embeddings, ReLU, and a classifier that reads position
// 0 without a pooler.
ModelConfig lecture() {
  ModelConfig config = shape(2, 4, 256, 30522, 128);
  config.ffn = 2048;
  config.dropout = 0.1;
  config.activation = kernel::Activation::relu;
  config.norm_eps = 1e-5;
  config.type_vocab = 0;
  config.embedding_norm = false;
  config.zero_positions = true;
  config.num_classes = 2;
  return config;
}

}  // namespace

ModelConfig bert_defaults() {
  ModelConfig config;
  config.arch = "bert";
  config.activation = kernel::Activation::gelu_erf;
  config.post_norm = true;
  config.norm_eps = 1e-12;
  config.type_vocab = 2;
  return config;
}

std::unique_ptr<Model> make_bert(const ModelConfig& config, const ModelPart& part) {
  return std::make_unique<EncoderOnly>(config, part);
}

std::vector<Preset> bert_presets() {
  return {
      {"bert-tiny", "2 layers, dim 32, byte vocabulary, masked-token objective; for tests", tiny(0), 0, 0},
      {"bert-tiny-classifier", "bert-tiny with a pooler and a classifier of 3 classes", tiny(3), 0, 0},
      {"bert-lecture", "2 layers, dim 256, classifier: the data-parallel example", lecture(), 0, 1e-4},
      {"bert-base", "BERT base", published(12, 12, 768), 256 * 512, 1e-4},
      {"bert-large", "BERT large", published(24, 16, 1024), 256 * 512, 1e-4},
  };
}

}  // namespace esp::model
