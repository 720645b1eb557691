#include "esp/plan/hf_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/model/counts.h"
#include "esp/model/hf_config.h"
#include "esp/model/model.h"

namespace esp::plan {
namespace {

ModelShape read(const Json& json) {
  std::vector<std::string> assumed;
  return shape_from_hf(json, "test", assumed);
}

double billions(const char* text) {
  return read(Json::parse(text)).parameters() / 1e9;
}

TEST(HfShape, ParameterCountsOfTrainerConfigsAreExact) {
  for (const char* name : {"gpt2-124m", "llama-7b", "llama-1.1b", "bert-base"}) {
    model::ModelConfig config = model::preset(name).config;
    EXPECT_EQ(static_cast<int64_t>(read(model::hf_config(config)).parameters()), model::parameter_count(config))
        << name;
  }
}

TEST(HfShape, ParameterCountsMatchPublishedCounts) {
  EXPECT_NEAR(
      billions(R"({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192})"),
      70.554, 0.001);
  EXPECT_NEAR(billions(R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    "num_local_experts": 8, "num_experts_per_tok": 2})"),
              46.703, 0.001);
  EXPECT_NEAR(
      billions(R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": false})"),
      7.616, 0.001);
  EXPECT_NEAR(billions(R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1})"),
              30.532, 0.001);
  EXPECT_NEAR(billions(R"({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "vocab_size": 129280, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 163840})"),
              671.026, 0.01);
  EXPECT_NEAR(billions(R"({"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "vocab_size": 102400,
    "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "q_lora_rank": null, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128})"),
              15.706, 0.001);
}

TEST(HfShape, ReportsMissingAndInvalidFields) {
  const auto refusal = [](const char* text) {
    try {
      read(Json::parse(text));
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal("[]"), testing::HasSubstr("not an object"));
  EXPECT_THAT(refusal(R"({"model_type": "llama", "hidden_size": 64})"), testing::HasSubstr("num_hidden_layers"));
  EXPECT_THAT(refusal(R"({"model_type": "llama", "num_hidden_layers": 1000000000})"), testing::HasSubstr("10000"));
  EXPECT_THAT(refusal(R"({"model_type": "llama", "num_hidden_layers": -3})"), testing::HasSubstr("-3"));
  EXPECT_THAT(refusal(R"({"num_hidden_layers": 3})"), testing::HasSubstr("expected one of gpt2, bert, llama"));
}

TEST(HfShape, LimitsLongPositionsToTheTrainingLength) {
  std::vector<std::string> assumed;
  const ModelShape s = shape_from_hf(Json::parse(R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100, "intermediate_size": 128, "max_position_embeddings": 131072})"),
                                     "long", assumed);
  EXPECT_EQ(s.seq, 4096);
  ASSERT_EQ(assumed.size(), 1u);
}

}  // namespace
}  // namespace esp::plan
