#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "esp/base/error.h"
#include "esp/model/hf_config.h"
#include "esp/model/hf_names.h"
#include "esp/model/model.h"
#include "esp/model/testing.h"

namespace esp::model {
namespace {

using testing::HasSubstr;

std::vector<ModelConfig> expressible() {
  std::vector<ModelConfig> list;
  for (const char* name : {"gpt-tiny", "gpt2-124m", "llama-tiny", "llama-1.1b", "bert-tiny", "bert-tiny-classifier"})
    list.push_back(preset(name).config);
  ModelConfig untied = preset("gpt-tiny").config, biased = preset("llama-tiny").config,
              bare = preset("bert-tiny").config;
  untied.tie_embeddings = false;
  biased.bias = biased.tie_embeddings = true;
  bare.headless = bare.pooler = true;
  list.insert(list.end(), {untied, biased, bare});
  using kernel::RopeScaling;
  for (const RopeScaling kind : {RopeScaling::linear, RopeScaling::yarn, RopeScaling::llama3})
    list.push_back(scaled_llama(kind));
  list.back().rope.low_freq_factor = 1.5;
  ModelConfig grown = scaled_llama(RopeScaling::yarn);
  grown.rope.attention_factor = 1.25;
  list.push_back(grown);
  return list;
}

TEST(HfNames, ComposeEveryParameterOfTheModelExactlyOnce) {
  for (const ModelConfig& config : expressible()) {
    const auto model = make_model(config);
    std::map<std::string, const HfTensor*> rows;
    const auto names = hf_names(config);
    std::set<std::string> theirs;
    for (const HfTensor& row : names) {
      EXPECT_TRUE(rows.emplace(row.name, &row).second) << row.name;
      for (const HfPart& part : row.parts) EXPECT_TRUE(theirs.insert(part.name).second) << part.name;
    }
    EXPECT_EQ(rows.size(), model->parameters().all().size()) << config.arch;
    for (const nn::Parameter& p : model->parameters().all()) {
      ASSERT_TRUE(rows.contains(p.name)) << p.name;
      const auto& parts = rows[p.name]->parts;
      int64_t column = 0;
      for (const HfPart& part : parts) {
        EXPECT_EQ(part.first_column, column) << p.name;
        column += part.num_columns ? part.num_columns : p.shape.dim(-1);
      }
      EXPECT_EQ(column, p.shape.dim(-1)) << p.name;
    }
  }
}

TEST(HfNames, AreThoseOfTransformers) {
  const auto part = [](const char* preset_name, const char* ours, size_t i) {
    for (const HfTensor& row : hf_names(preset(preset_name).config))
      if (row.name == ours) return row.parts.at(i);
    return HfPart{};
  };
  EXPECT_EQ(part("gpt-tiny", "blocks.1.attention.qkv.weight", 0).name, "transformer.h.1.attn.c_attn.weight");
  EXPECT_FALSE(part("gpt-tiny", "blocks.1.attention.qkv.weight", 0).transposed);
  const HfPart k = part("llama-tiny", "blocks.0.attention.qkv.weight", 1);
  EXPECT_EQ(k.name, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_TRUE(k.transposed);
  EXPECT_EQ(k.first_column, 32);
  EXPECT_EQ(k.num_columns, 16);
  EXPECT_EQ(part("bert-tiny", "blocks.0.norm1.bias", 0).name, "bert.encoder.layer.0.attention.output.LayerNorm.bias");
  EXPECT_EQ(part("bert-tiny", "head.bias", 0).name, "cls.predictions.bias");
}

TEST(HfNames, FindOtherSpellings) {
  const ModelConfig gpt = preset("gpt-tiny").config, bert = preset("bert-tiny").config;
  ModelConfig bare = bert;
  bare.headless = true;
  EXPECT_EQ(hf_canonical_name(gpt, "h.0.ln_1.weight"), "transformer.h.0.ln_1.weight");
  EXPECT_EQ(hf_canonical_name(gpt, "transformer.h.0.ln_1.weight"), "transformer.h.0.ln_1.weight");
  EXPECT_EQ(hf_canonical_name(bert, "bert.embeddings.LayerNorm.gamma"), "bert.embeddings.LayerNorm.weight");
  EXPECT_EQ(hf_canonical_name(bert, "cls.predictions.bias"), "cls.predictions.bias");
  EXPECT_EQ(hf_canonical_name(bare, "bert.encoder.layer.0.output.dense.weight"), "encoder.layer.0.output.dense.weight");
  EXPECT_TRUE(hf_is_ignored(gpt, "transformer.h.0.attn.bias"));
  EXPECT_TRUE(hf_is_ignored(gpt, "lm_head.weight"));
  EXPECT_FALSE(hf_is_ignored(gpt, "transformer.h.0.attn.c_attn.bias"));
  EXPECT_TRUE(hf_is_ignored(bert, "bert.pooler.dense.weight"));
  EXPECT_TRUE(hf_is_ignored(bert, "cls.predictions.decoder.weight"));
  EXPECT_FALSE(hf_is_ignored(bert, "cls.predictions.bias"));
}

TEST(HfConfig, ComesBackAsItWent) {
  for (const ModelConfig& config : expressible()) {
    const Json json = hf_config(config);
    ModelConfig back = config_from_hf(json);
    if (config.ffn == 0 && back.ffn == 4 * config.dim) back.ffn = 0;  // BERT's key has no "as usual"
    EXPECT_EQ(back, config) << json.dump(1);
  }
}

TEST(HfConfig, ReadsAPublishedFile) {
  const ModelConfig c = config_from_hf(Json::parse(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
      "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "initializer_range": 0.02,
      "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
      "resid_pdrop": 0.1, "summary_type": "cls_index", "vocab_size": 50257})"));
  ModelConfig expected = preset("gpt2-124m").config;
  expected.dropout = 0.1;
  EXPECT_EQ(c, expected);
}

// A llama's config.json with these lines more.
Json llama_json(const std::string& more) {
  return Json::parse(R"({"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8,
      "intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 131072)" +
                     (more.empty() ? "" : ", " + more) + "}");
}

TEST(HfConfig, ReadsScaledRotaryAnglesInEverySpelling) {
  using kernel::RopeScaling, kernel::RotaryAngles;
  const RotaryAngles llama31{.theta = 500000, .scaling = RopeScaling::llama3, .factor = 8, .original_seq_len = 8192};
  // As Llama 3.1 was published, and as later releases of transformers write it.
  EXPECT_EQ(config_from_hf(llama_json(R"("rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"})"))
                .rope,
            llama31);
  EXPECT_EQ(config_from_hf(llama_json(R"("rope_parameters": {"factor": 8, "low_freq_factor": 1, "rope_theta": 5e5,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"})"))
                .rope,
            llama31);
  const RotaryAngles linear{.scaling = RopeScaling::linear, .factor = 2};
  EXPECT_EQ(config_from_hf(llama_json(R"("rope_scaling": {"type": "linear", "factor": 2.0})")).rope, linear);
  // yarn: without a factor it is how much longer texts became; without an original length that is the whole.
  const RotaryAngles yarn{.scaling = RopeScaling::yarn, .factor = 16, .original_seq_len = 8192};
  EXPECT_EQ(config_from_hf(llama_json(R"("rope_scaling": {"type": "yarn", "factor": 16.0, "finetuned": true,
      "original_max_position_embeddings": 8192})"))
                .rope,
            yarn);
  EXPECT_EQ(config_from_hf(llama_json(R"("rope_scaling": {"rope_type": "yarn", "truncate": true,
      "original_max_position_embeddings": 8192})"))
                .rope,
            yarn);
  EXPECT_EQ(config_from_hf(llama_json(R"("rope_scaling": {"rope_type": "yarn", "factor": 2})")).rope.original_seq_len,
            131072);
  EXPECT_EQ(config_from_hf(llama_json(R"("rope_scaling": {"rope_type": "default"})")).rope, RotaryAngles{});
  EXPECT_EQ(config_from_hf(llama_json("")).rope, RotaryAngles{});
}

TEST(HfConfig, WritesScaledRotaryAnglesAsTransformersDoes) {
  ModelConfig config = scaled_llama(kernel::RopeScaling::llama3);
  config.rope.theta = 500000;
  const Json json = hf_config(config),
             scaling = Json::parse(R"({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 4.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64})");
  EXPECT_EQ(json.at("rope_scaling"), scaling);
  EXPECT_EQ(json.at("rope_parameters"), scaling);
  EXPECT_TRUE(hf_config(preset("llama-tiny").config).at("rope_scaling").is_null());
}

std::string problem(const std::string& json) {
  try {
    config_from_hf(Json::parse(json));
  } catch (const IoError& error) {
    return error.what();
  }
  return "nothing was wrong";
}

TEST(HfConfig, SaysWhatItCannotRead) {
  EXPECT_THAT(problem(R"([1])"), HasSubstr("not an object"));
  EXPECT_THAT(problem(R"({"model_type": "mamba"})"), HasSubstr("known: gpt2, llama, bert"));
  EXPECT_THAT(problem(R"({"model_type": "gpt2", "n_layer": "x"})"), HasSubstr("n_layer"));
  EXPECT_THAT(problem(R"({"model_type": "gpt2", "n_layer": 2})"), HasSubstr("n_head"));
  const char* llama = R"({"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 3, "hidden_size": 8,
      "intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 8})";
  EXPECT_THAT(problem(llama), HasSubstr("multiple of heads"));
  const auto scaled = [](const std::string& rope) { return problem(llama_json("\"rope_scaling\": " + rope).dump()); };
  EXPECT_THAT(scaled(R"({"type": "dynamic", "factor": 2.0})"),
              HasSubstr(R"(rope_type "dynamic" is not supported; these are: "default", "linear", "yarn", "llama3")"));
  EXPECT_THAT(scaled(R"({"type": "linear"})"), HasSubstr(R"(rope_scaling of kind "linear" needs a factor)"));
  EXPECT_THAT(scaled(R"({"type": "linear", "factor": null})"), HasSubstr("needs a factor"));
  EXPECT_THAT(scaled(R"({"factor": 2.0})"), HasSubstr(R"(rope_type "" is not supported)"));
  EXPECT_THAT(scaled(R"({"type": "linear", "factor": 0.5})"), HasSubstr("1 or more"));
  EXPECT_THAT(scaled(R"({"rope_type": "llama3", "factor": 8.0})"), HasSubstr("original_max_position_embeddings"));
  EXPECT_THAT(scaled(R"({"rope_type": "yarn", "factor": 8.0, "mscale": 0.7})"),
              HasSubstr("rope_scaling.mscale = 0.7 is not supported"));
  EXPECT_THAT(scaled(R"({"rope_type": "yarn", "factor": 8.0, "truncate": false})"), HasSubstr("truncate"));
  EXPECT_THAT(scaled("8"), HasSubstr("rope_scaling = 8 is not an object"));
  EXPECT_THROW(hf_config(preset("bert-lecture").config), UsageError);
  EXPECT_THROW(hf_config(preset("t5-tiny").config), UsageError);
  EXPECT_THROW(hf_names(preset("t5-tiny").config), UsageError);
}

}  // namespace
}  // namespace esp::model
