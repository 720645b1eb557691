#include "esp/model/counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/model/model.h"

namespace esp::model {
namespace {

int64_t count(const char* name) {
  return parameter_count(preset(name).config);
}

TEST(Counts, MatchBuiltModelForEveryPreset) {
  for (const Preset& p : presets()) {  // make_model only computes shapes: it allocates no parameters
    const auto model = make_model(p.config);
    EXPECT_EQ(parameter_count(p.config), model->parameters().count()) << p.name;
    EXPECT_EQ(model->parameters().units().size(), static_cast<size_t>(model->num_blocks() + 2)) << p.name;
  }
}

TEST(Counts, MatchBuiltModelForUnusualShapes) {
  for (const char* arch : {"gpt", "llama", "bert", "t5"})
    for (int variant = 0; variant < 32; ++variant) {
      ModelConfig c = default_config(arch);
      c.layers = 3;
      c.heads = 4;
      c.dim = 24;
      c.ffn = variant & 1 ? 40 : 0;
      c.vocab = 50;
      c.seq_len = 17;
      c.bias = variant & 2;
      c.kv_heads = variant & 4 ? 2 : 0;
      c.tie_embeddings = c.arch == "t5" || (variant & 8) != 0;
      c.norm = variant & 16 ? kernel::NormKind::rms : kernel::NormKind::layer;
      if (c.arch == "bert" || c.arch == "t5") c.post_norm = variant & 8;
      if (c.arch == "bert") {
        c.embedding_norm = variant & 1;
        c.num_classes = variant & 2 ? 5 : 0;
        c.pooler = c.num_classes > 0 && (variant & 4);
        c.type_vocab = variant & 16 ? 0 : 2;
      }
      EXPECT_EQ(parameter_count(c), make_model(c)->parameters().count()) << arch << variant;
    }
}

TEST(Counts, MatchPublishedParameterCounts) {
  EXPECT_EQ(count("gpt2-124m"), 124'439'808);
  EXPECT_EQ(count("gpt2-355m"), 354'823'168);
  EXPECT_EQ(count("gpt2-774m"), 774'030'080);
  EXPECT_EQ(count("gpt2-1558m"), 1'557'611'200);
  EXPECT_EQ(count("gpt3-175b"), 174'604'259'328);
  EXPECT_EQ(count("llama-7b"), 6'738'415'616);
  EXPECT_EQ(count("llama-13b"), 13'015'864'320);
  EXPECT_EQ(count("llama-33b"), 32'528'943'616);
  EXPECT_EQ(count("llama-65b"), 65'285'660'672);
  EXPECT_EQ(count("mixtral-8x7b"), 46'702'792'704);
  EXPECT_EQ(parameters_per_token(preset("mixtral-8x7b").config), 12'879'925'248);
  EXPECT_EQ(count("bert-base"), 109'514'298);
  EXPECT_EQ(count("bert-large"), 335'174'458);
  EXPECT_EQ(count("bert-lecture"), 10'477'058);
}

TEST(Counts, MatchPaperForGpt3Family) {
  const std::pair<const char*, double> rows[] = {{"gpt3-125m", 0.125}, {"gpt3-350m", 0.356}, {"gpt3-760m", 0.760},
                                                 {"gpt3-1.3b", 1.316}, {"gpt3-2.7b", 2.652}, {"gpt3-6.7b", 6.658},
                                                 {"gpt3-13b", 12.85},  {"gpt3-175b", 174.60}};
  for (const auto& [name, billions] : rows)
    EXPECT_NEAR(static_cast<double>(count(name)) / 1e9 / billions, 1, 5e-3 / billions + 1e-6) << name;
}

// Exact count: L(12h² + 13h) + Vh + sh + 2h. The second formula leaves out positions and all biases and norms. The
// third adds the two MLP biases (5h per layer) to the second.
TEST(Counts, MatchCommonFormulasForGpt3) {
  const int64_t h = 12288, L = 96, V = 50257, s = 2048;
  EXPECT_EQ(count("gpt3-175b"), V * h + s * h + L * (12 * h * h + 13 * h) + 2 * h);
  EXPECT_EQ(V * h + L * 12 * h * h, 174'563'733'504);
  EXPECT_EQ(V * h + L * (12 * h * h + 5 * h), 174'569'631'744);
}

TEST(Counts, RecomputedFlopsMatchFormula) {
  const ModelConfig gpt2 = preset("gpt2-124m").config;
  const double attention = 6.0 * 12 * 768 * 1024, blocks = 124'439'808 - 50257.0 * 768;
  EXPECT_EQ(recomputed_flops_per_token(gpt2, 1024, nn::RecomputeMode::none), 0);
  EXPECT_DOUBLE_EQ(recomputed_flops_per_token(gpt2, 1024, nn::RecomputeMode::selective), attention / 3);
  EXPECT_DOUBLE_EQ(recomputed_flops_per_token(gpt2, 1024, nn::RecomputeMode::full), 2 * blocks + attention / 3);
  // If the embedding tables are small, full recomputation adds a third: 8 · tokens · parameters instead of 6.
  const ModelConfig large = preset("gpt3-175b").config;
  EXPECT_NEAR(recomputed_flops_per_token(large, 2048, nn::RecomputeMode::full) / flops_per_token(large, 2048), 1.0 / 3,
              2e-3);
}

TEST(Counts, FlopsPerTokenMatchFormula) {
  const ModelConfig gpt2 = preset("gpt2-124m").config;
  EXPECT_DOUBLE_EQ(flops_per_token(gpt2, 1024), 6.0 * 124'439'808 + 6.0 * 12 * 768 * 1024);
  EXPECT_DOUBLE_EQ(make_model(gpt2)->flops_per_token(512), flops_per_token(gpt2, 512));
  // The formula of the paper counts the whole attention matrix, flops_per_token only the causal half. With the other
  // half added, both differ only by biases, norms and positions.
  const double causal_half = 6.0 * 12 * 768 * 1024;
  EXPECT_NEAR(megatron_flops_per_token(gpt2, 1024) / (flops_per_token(gpt2, 1024) + causal_half), 1, 0.01);
  const ModelConfig bert = preset("bert-base").config;
  EXPECT_DOUBLE_EQ(flops_per_token(bert, 512), 6.0 * 109'514'298 + 12.0 * 12 * 768 * 512);
}

TEST(ModelConfig, ErrorNamesInvalidValue) {
  const auto message = [](auto change) {
    ModelConfig c = preset("gpt-tiny").config;
    change(c);
    try {
      make_model(c);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was wrong");
  };
  EXPECT_THAT(message([](auto& c) { c.heads = 5; }), testing::HasSubstr("dim = 32: must be a positive multiple"));
  EXPECT_THAT(message([](auto& c) { c.arch = "gtp"; }), testing::HasSubstr("did you mean \"gpt\""));
  EXPECT_THAT(message([](auto& c) { c.kv_heads = 3; }), testing::HasSubstr("kv_heads = 3"));
  EXPECT_THAT(message([](auto& c) { c.num_classes = 2; }), testing::HasSubstr("need arch = \"bert\""));
  EXPECT_THAT(message([](auto& c) { c.dropout = 1; }), testing::HasSubstr("dropout"));
  EXPECT_THAT(message([](auto& c) { c.vocab = 0; }), testing::HasSubstr("vocab = 0"));
  EXPECT_THROW(preset("gpt2-125m"), UsageError);
}

}  // namespace
}  // namespace esp::model
