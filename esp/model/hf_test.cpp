#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "esp/base/error.h"
#include "esp/model/hf_config.h"
#include "esp/model/hf_fields.h"
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

TEST(HfNames, MapEveryParameterExactlyOnce) {
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

TEST(HfNames, MatchParameterNamesInTransformers) {
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

TEST(HfNames, AcceptUnprefixedAndOldNames) {
  const ModelConfig gpt = preset("gpt-tiny").config, bert = preset("bert-tiny").config;
  ModelConfig bare = bert;
  bare.headless = true;
  EXPECT_EQ(hf_canonical_name(gpt, "h.0.ln_1.weight"), "transformer.h.0.ln_1.weight");
  EXPECT_EQ(hf_canonical_name(gpt, "transformer.h.0.ln_1.weight"), "transformer.h.0.ln_1.weight");
  EXPECT_EQ(hf_canonical_name(bert, "bert.embeddings.LayerNorm.gamma"), "bert.embeddings.LayerNorm.weight");
  EXPECT_EQ(hf_canonical_name(bert, "cls.predictions.bias"), "cls.predictions.bias");
  EXPECT_EQ(hf_canonical_name(bare, "bert.encoder.layer.0.output.dense.weight"), "encoder.layer.0.output.dense.weight");
  EXPECT_TRUE(hf_is_ignored(gpt, "transformer.h.0.attn.bias"));
  EXPECT_FALSE(hf_is_ignored(gpt, "transformer.h.0.attn.c_attn.bias"));
  EXPECT_TRUE(hf_is_ignored(bert, "bert.pooler.dense.weight"));
  EXPECT_FALSE(hf_is_ignored(bert, "cls.predictions.bias"));
}

TEST(HfNames, TiedTensorsAreAliasesAndUntiedBertUsesDecoderBias) {
  const auto aliases = [](const char* name, bool tied) {
    ModelConfig config = preset(name).config;
    config.tie_embeddings = tied;
    std::vector<std::string> texts;
    for (const HfAlias& copy : hf_aliases(config))
      texts.push_back(copy.name + (copy.tied ? " is " : " stands for ") + copy.of);
    return texts;
  };
  using testing::ElementsAre, testing::IsEmpty;
  EXPECT_THAT(aliases("gpt-tiny", true), ElementsAre("lm_head.weight is transformer.wte.weight"));
  EXPECT_THAT(aliases("llama-tiny", true), ElementsAre("lm_head.weight is model.embed_tokens.weight"));
  EXPECT_THAT(aliases("gpt-tiny", false), IsEmpty());
  EXPECT_THAT(aliases("bert-tiny", true),
              ElementsAre("cls.predictions.decoder.weight is bert.embeddings.word_embeddings.weight",
                          "cls.predictions.decoder.bias is cls.predictions.bias"));
  EXPECT_THAT(aliases("bert-tiny", false), ElementsAre("cls.predictions.bias stands for cls.predictions.decoder.bias"));
}

TEST(HfConfig, RoundTrips) {
  for (const ModelConfig& config : expressible()) {
    const Json json = hf_config(config);
    ModelConfig back = config_from_hf(json);
    // BERT's config.json always has the feed-forward width, so the default (0) comes back as 4 · dim
    if (config.ffn == 0 && back.ffn == 4 * config.dim) back.ffn = 0;
    EXPECT_EQ(back, config) << json.dump(1);
  }
}

TEST(HfConfig, ReadsPublishedGpt2Config) {
  const ModelConfig c = config_from_hf(Json::parse(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
      "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "initializer_range": 0.02,
      "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
      "resid_pdrop": 0.1, "summary_type": "cls_index", "vocab_size": 50257})"));
  ModelConfig expected = preset("gpt2-124m").config;
  expected.dropout = 0.1;
  EXPECT_EQ(c, expected);
}

// The config.json of a LLaMA model, with `more` lines added.
Json llama_json(const std::string& more) {
  return Json::parse(R"({"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8,
      "intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 131072)" +
                     (more.empty() ? "" : ", " + more) + "}");
}

TEST(HfConfig, ReadsRopeScalingInEveryFormat) {
  using kernel::RopeScaling, kernel::RotaryAngles;
  const RotaryAngles llama31{.theta = 500000, .scaling = RopeScaling::llama3, .factor = 8, .original_seq_len = 8192};
  // The form in which Llama 3.1 was published, and the form that later releases of `transformers` write.
  EXPECT_EQ(config_from_hf(llama_json(R"("rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"})"))
                .rope,
            llama31);
  EXPECT_EQ(config_from_hf(llama_json(R"("rope_parameters": {"factor": 8, "low_freq_factor": 1, "rope_theta": 5e5,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"})"))
                .rope,
            llama31);
  const RotaryAngles linear{.scaling = RopeScaling::linear, .factor = 2};
  EXPECT_EQ(config_from_hf(llama_json(R"("rope_scaling": {"type": "linear", "factor": 2.0},
      "rope_parameters": {"rope_type": "default", "rope_theta": 5e5})"))
                .rope,
            linear);
  EXPECT_EQ(config_from_hf(llama_json(R"("rope_scaling": {"type": "linear", "factor": 2.0})")).rope, linear);
  // yarn: if "factor" is missing, it is max_position_embeddings divided by the original length. If the original length
  // is missing, it is max_position_embeddings.
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

TEST(HfConfig, WritesRopeScalingLikeTransformers) {
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

// Returns a different value of the same type.
Json changed(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number_integer()) return 2 * value.get<int64_t>() + 2;
  if (value.is_number()) return value.get<double>() / 2 + 0.25;
  if (value.is_string()) return "relu";
  if (value.is_object()) return Json{{"rope_type", "linear"}, {"factor", 2.0}};
  return 8;
}

// Changes the value of every field in the tables. As the table says, the change must alter the config, have no effect,
// or be rejected with an error that names the field.
TEST(HfFields, ChangedFieldIsReadRejectedOrHasNoEffect) {
  for (const char* name : {"gpt-tiny", "llama-tiny", "bert-tiny", "bert-tiny-classifier"}) {
    const Json json = hf_config(preset(name).config);
    const ModelConfig config = config_from_hf(json);
    const auto type = json.at("model_type").get<std::string>();
    for (const HfField& field : hf_fields(type)) {
      if (field.name == "model_type" || field.name == "architectures") continue;
      const std::string key(field.name);
      Json other = json;
      other[key] = changed(json.value(key, Json(field.values == "null" ? 0 : false)));
      if (field.use == HfUse::fixed) {
        other[key] = changed(Json::parse(field.values).front());
        EXPECT_THAT(problem(other.dump()), HasSubstr(key)) << other.dump();
        continue;
      }
      std::string error;
      ModelConfig read = config;
      try {
        read = config_from_hf(other);
      } catch (const IoError& e) {
        error = e.what();
      }
      const bool of_classes = key == "id2label" || key == "num_labels";  // fields that only a classifier has
      if (field.use == HfUse::read) {
        EXPECT_TRUE(read != config || !error.empty() || key == "n_ctx" || key == "rope_theta") << type << " " << key;
      } else if (!of_classes) {
        EXPECT_TRUE(read == config && error.empty()) << type << " " << key << " " << error;
      }
    }
  }
}

TEST(HfFields, UnknownFieldsAreRejectedUnlessTheyAreNull) {
  EXPECT_THAT(problem(llama_json(R"("attention_biass": true)").dump()),
              testing::AllOf(HasSubstr("attention_biass = true: unknown field for model_type llama"),
                             HasSubstr("attention_bias)")));
  EXPECT_THAT(problem(llama_json(R"("layer_types": ["sliding_attention"])").dump()), HasSubstr("layer_types"));
  EXPECT_EQ(problem(llama_json(R"("layer_types": null)").dump()), "nothing was wrong");
  EXPECT_THAT(problem(llama_json(R"("tie_word_embeddings": null)").dump()), HasSubstr("tie_word_embeddings = null"));
  EXPECT_THAT(problem(llama_json(R"("architectures": ["LlamaForSequenceClassification"])").dump()),
              HasSubstr(R"(architectures = ["LlamaForSequenceClassification"]: expected one of LlamaForCausalLM)"));
  EXPECT_THAT(
      problem(llama_json(R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5})").dump()),
      HasSubstr("partial_rotary_factor = 0.5"));
}

TEST(HfFields, ExportKeepsFieldsOfSourceConfig) {
  const ModelConfig config = preset("llama-tiny").config;
  Json source = hf_config(config);
  source.update(
      Json{{"eos_token_id", {3, 5}}, {"bos_token_id", 1}, {"max_position_embeddings", 4096}, {"use_cache", false}});
  const auto exported = [&](const ModelConfig& shape) {
    Json json = hf_config(shape);
    keep_hf_fields(json, source, shape);
    return json;
  };
  for (const auto& [key, value] : source.items()) EXPECT_EQ(exported(config).at(key), value) << key;
  ModelConfig wider = config, small = config;
  wider.layers = 5;  // another model with the same vocabulary
  EXPECT_EQ(exported(wider).at("eos_token_id"), source.at("eos_token_id"));
  EXPECT_EQ(exported(wider).at("use_cache"), true);
  EXPECT_EQ(exported(wider).at("max_position_embeddings"), config.seq_len);
  small.vocab = 4;  // ids outside the vocabulary are not copied
  EXPECT_TRUE(exported(small).at("eos_token_id").is_null());
}

TEST(HfFields, LabelsArePreservedForSameClassCount) {
  ModelConfig config = preset("bert-tiny-classifier").config;
  Json source = hf_config(config);
  source["id2label"] = {{"0", "no"}, {"1", "yes"}};
  source["problem_type"] = "multi_label_classification";
  config = config_from_hf(source);
  Json same = hf_config(config);
  keep_hf_fields(same, source, config);
  EXPECT_EQ(same.at("id2label"), source.at("id2label"));
  EXPECT_EQ(same.at("problem_type"), "multi_label_classification");
  config.num_classes = 3;
  Json other = hf_config(config);
  keep_hf_fields(other, source, config);
  EXPECT_EQ(other.at("id2label").size(), 3u);
  EXPECT_EQ(other.at("problem_type"), "single_label_classification");
}

TEST(HfConfig, ErrorNamesUnsupportedField) {
  EXPECT_THAT(problem(R"([1])"), HasSubstr("not a JSON object"));
  EXPECT_THAT(problem(R"({"model_type": "mamba"})"), HasSubstr("expected one of gpt2, llama, bert"));
  EXPECT_THAT(problem(R"({"model_type": "gpt2", "n_layer": "x"})"), HasSubstr("n_layer"));
  EXPECT_THAT(problem(R"({"model_type": "gpt2", "n_layer": 2})"), HasSubstr("n_head"));
  const char* llama = R"({"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 3, "hidden_size": 8,
      "intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 8})";
  EXPECT_THAT(problem(llama), HasSubstr("multiple of heads"));
  const auto scaled = [](const std::string& rope) { return problem(llama_json("\"rope_scaling\": " + rope).dump()); };
  EXPECT_THAT(scaled(R"({"type": "dynamic", "factor": 2.0})"),
              HasSubstr(R"(rope_type = "dynamic": expected one of "default", "linear", "yarn", "llama3")"));
  EXPECT_THAT(scaled(R"({"type": "linear"})"),
              HasSubstr(R"(rope_scaling.factor: missing; rope_type "linear" needs it)"));
  EXPECT_THAT(scaled(R"({"type": "linear", "factor": null})"), HasSubstr("rope_scaling.factor: missing"));
  EXPECT_THAT(scaled(R"({"factor": 2.0})"), HasSubstr(R"(rope_type = "": expected one of)"));
  EXPECT_THAT(scaled(R"({"type": "linear", "factor": 0.5})"), HasSubstr("must be >= 1"));
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
