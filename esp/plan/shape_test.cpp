#include "esp/plan/shape.h"

#include <gtest/gtest.h>

#include "esp/model/counts.h"
#include "esp/model/model.h"

namespace esp::plan {
namespace {

TEST(ModelShape, ParameterCountOfEveryPresetMatchesModel) {
  for (const model::Preset& row : model::presets()) {
    const ModelShape shape = shape_of(row.config, std::string(row.name));
    EXPECT_EQ(static_cast<int64_t>(shape.parameters()), model::parameter_count(row.config)) << row.name;
    EXPECT_EQ(static_cast<int64_t>(shape.active_parameters()), model::parameters_per_token(row.config)) << row.name;
    if (row.config.arch == "gpt" || row.config.arch == "llama") {
      EXPECT_EQ(shape.other_parameters, 0) << row.name;
    }
  }
}

TEST(ModelShape, PartsSumToTotalParameterCount) {
  model::ModelConfig config = model::preset("gpt2-124m").config;
  config.experts = 4;
  config.expert_every = 2;
  config.shared_expert = 512;
  const ModelShape shape = shape_of(config, "experts");
  double sum = shape.embedding_parameters() + shape.head_parameters() + shape.norm_parameters();
  for (int64_t i = 0; i < shape.layers; ++i) sum += shape.layer_parameters(i);
  EXPECT_EQ(sum, shape.parameters());
  EXPECT_EQ(shape.num_expert_layers(), 6);
  EXPECT_EQ(shape.other_parameters, 0);
}

TEST(ModelShape, CountsLatentAttentionAndExpertsOfDeepSeekV3) {
  ModelShape s;
  s.arch = "llama";
  s.layers = 61;
  s.hidden = 7168;
  s.ffn = 18432;
  s.heads = s.kv_heads = 128;
  s.head_dim = 128;
  s.vocab = 129280;
  s.seq = 4096;
  s.gated = s.rms = true;
  s.bias = s.tied = s.learned_positions = false;
  s.experts = 256;
  s.topk = 8;
  s.expert_ffn = 2048;
  s.shared_experts = 1;
  s.dense_layers = 3;
  s.q_lora = 1536;
  s.kv_lora = 512;
  s.rope_dim = 64;
  s.v_dim = 128;
  // Published: 671 B parameters, of which a token uses 37 B (without the embedding).
  EXPECT_EQ(static_cast<int64_t>(s.parameters() / 1e9), 671);
  EXPECT_NEAR((s.active_parameters() - s.embedding_parameters()) / 1e9, 36.7, 0.1);
}

TEST(ModelShape, SupportsAModelWithOnlyAParameterCount) {
  ModelShape s;
  s.arch = "any";
  s.given_parameters = 7.5e9;
  EXPECT_EQ(s.parameters(), 7.5e9);
  EXPECT_EQ(s.active_parameters(), 7.5e9);
  EXPECT_EQ(s.layer_parameters(0), 0);
}

}  // namespace
}  // namespace esp::plan
