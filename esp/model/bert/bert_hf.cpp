// BERT in a Hugging Face folder: BertForMaskedLM, BertForSequenceClassification, or BertModel, whose tensor names have
// no prefix.
#include "esp/model/bert/bert.h"
#include "esp/model/hf_format.h"

namespace esp::model {
namespace {

using enum HfUse;

constexpr HfField kFields[] = {
    {"num_hidden_layers", read},
    {"num_attention_heads", read},
    {"hidden_size", read},
    {"intermediate_size", read},
    {"max_position_embeddings", read},
    {"type_vocab_size", read},
    {"vocab_size", read},
    {"hidden_dropout_prob", read},
    {"hidden_act", read},
    {"layer_norm_eps", read},
    {"initializer_range", read},
    {"tie_word_embeddings", read},
    {"position_embedding_type", fixed, R"(["absolute"])"},
    {"is_decoder", fixed, "[false]"},
    {"is_causal", fixed, "[false]"},
    {"attention_probs_dropout_prob", kept},
    {"classifier_dropout", kept},
    // Fields that only the first release of BERT wrote. No release of `transformers` reads them.
    {"directionality", kept},
    {"pooler_fc_size", kept},
    {"pooler_num_attention_heads", kept},
    {"pooler_num_fc_layers", kept},
    {"pooler_size_per_head", kept},
    {"pooler_type", kept},
};
constexpr std::string_view kArchitectures[] = {"BertModel", "BertForMaskedLM", "BertForPreTraining",
                                               "BertForSequenceClassification"};

std::vector<std::string_view> roots() {
  return {"embeddings.", "encoder.", "pooler."};
}

void add_layer(std::vector<HfTensor>& list, const std::string& ours, const std::string& theirs, int64_t dim) {
  const std::string self = theirs + "attention.self.";
  add_packed(list, ours + "attention.qkv", {self + "query", self + "key", self + "value"}, {dim, dim, dim}, true);
  add_pair(list, ours + "attention.out", theirs + "attention.output.dense", true, true);
  add_pair(list, ours + "norm1", theirs + "attention.output.LayerNorm", true, false);
  add_pair(list, ours + "mlp.up", theirs + "intermediate.dense", true, true);
  add_pair(list, ours + "mlp.down", theirs + "output.dense", true, true);
  add_pair(list, ours + "norm2", theirs + "output.LayerNorm", true, false);
}

void add_head(std::vector<HfTensor>& list, const ModelConfig& c) {
  if (c.num_classes > 0) {
    // no transpose: both formats store this weight as [classes, in]
    add_pair(list, "classifier", "classifier", true, false);
    return;
  }
  add_pair(list, "transform", "cls.predictions.transform.dense", true, true);
  add_pair(list, "transform_norm", "cls.predictions.transform.LayerNorm", true, false);
  list.push_back({"head.bias", {{c.tie_embeddings ? "cls.predictions.bias" : "cls.predictions.decoder.bias"}}});
  if (!c.tie_embeddings) list.push_back({"head.weight", {{"cls.predictions.decoder.weight"}}});
}

std::vector<HfTensor> names(const ModelConfig& c) {
  const std::string base = c.headless ? "" : "bert.";
  std::vector<HfTensor> list;
  add_pair(list, "embedding", base + "embeddings.word_embeddings", false, false);
  add_pair(list, "positions", base + "embeddings.position_embeddings", false, false);
  add_pair(list, "segments", base + "embeddings.token_type_embeddings", false, false);
  add_pair(list, "embedding_norm", base + "embeddings.LayerNorm", true, false);
  for (int64_t i = 0; i < c.layers; ++i)
    add_layer(list, fmt::format("blocks.{}.", i), fmt::format("{}encoder.layer.{}.", base, i), c.dim);
  if (c.pooler) add_pair(list, "pooler", base + "pooler.dense", true, true);
  if (!c.headless) add_head(list, c);
  return list;
}

// If the head is not tied, `transformers` computes with cls.predictions.decoder.bias. Its releases before 5 store that
// bias under the name cls.predictions.bias.
std::vector<HfAlias> aliases(const ModelConfig& c) {
  if (c.headless || c.num_classes > 0) return {};
  if (!c.tie_embeddings) return {{"cls.predictions.bias", "cls.predictions.decoder.bias", false}};
  return {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
          {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
}

bool is_ignored(const ModelConfig& c, std::string_view name) {
  const bool masked = !c.headless && c.num_classes == 0;
  if (name.ends_with("embeddings.position_ids") || name.starts_with("cls.seq_relationship.")) return true;
  if (!c.pooler && name.find("pooler.dense.") != std::string_view::npos) return true;
  if (!masked && name.starts_with("cls.")) return true;
  return c.num_classes == 0 && name.starts_with("classifier.");
}

Json to_json(const ModelConfig& c) {
  const bool classifier = c.num_classes > 0;
  if (!c.bias || c.norm != kernel::NormKind::layer || c.positions != Positions::learned || c.gated || !c.post_norm ||
      !c.embedding_norm || c.type_vocab == 0 || c.kv_heads_or_all() != c.heads)
    throw UsageError(
        "Hugging Face BERT cannot store this model: it supports only biases, LayerNorm, post-norm, segment embeddings, "
        "an embedding norm, learned positions, an MLP without gate and one KV head per query head. Use --layout "
        "espalier");
  if (classifier && !c.pooler)
    throw UsageError("model.pooler: got false; a Hugging Face BERT classifier needs true. Use --layout espalier");
  Json json{{"architectures",
             {c.headless   ? "BertModel"
              : classifier ? "BertForSequenceClassification"
                           : "BertForMaskedLM"}},
            {"model_type", "bert"},
            {"attention_probs_dropout_prob", c.dropout},
            {"classifier_dropout", nullptr},
            {"gradient_checkpointing", false},
            {"hidden_act", hf_activation(c.activation)},
            {"hidden_dropout_prob", c.dropout},
            {"hidden_size", c.dim},
            {"initializer_range", c.init_std},
            {"intermediate_size", c.ffn_or_default()},
            {"layer_norm_eps", c.norm_eps},
            {"max_position_embeddings", c.seq_len},
            {"num_attention_heads", c.heads},
            {"num_hidden_layers", c.layers},
            {"pad_token_id", 0},
            {"position_embedding_type", "absolute"},
            {"tie_word_embeddings", c.tie_embeddings},
            {"type_vocab_size", c.type_vocab},
            {"use_cache", true},
            {"vocab_size", c.vocab}};
  if (classifier) {
    for (int64_t i = 0; i < c.num_classes; ++i) {
      json["id2label"][std::to_string(i)] = fmt::format("LABEL_{}", i);
      json["label2id"][fmt::format("LABEL_{}", i)] = i;
    }
    json["problem_type"] = c.num_classes > 1 ? Json("single_label_classification") : Json(nullptr);
  }
  return json;
}

void set_head(ModelConfig& c, const Json& json) {
  const std::string name = hf_architecture(json);
  if (name.empty() || name == "BertModel") {
    c.headless = c.pooler = true;
  } else if (name == "BertForSequenceClassification") {
    const auto labels = json.find("id2label");
    const bool listed = labels != json.end() && labels->is_object();
    c.num_classes = listed ? static_cast<int64_t>(labels->size()) : hf_value<int64_t>(json, "num_labels", 2);
    c.pooler = true;
  }
}

ModelConfig from_json(const Json& json) {
  ModelConfig c = bert_defaults();
  c.layers = hf_size(json, "num_hidden_layers");
  c.heads = hf_size(json, "num_attention_heads");
  c.dim = hf_size(json, "hidden_size");
  c.ffn = hf_size(json, "intermediate_size");
  c.vocab = hf_size(json, "vocab_size");
  c.seq_len = hf_size(json, "max_position_embeddings");
  c.type_vocab = hf_value<int64_t>(json, "type_vocab_size", 2);
  c.dropout = hf_value(json, "hidden_dropout_prob", 0.1);
  c.activation = hf_activation_at(json, "hidden_act", "gelu");
  c.norm_eps = hf_value(json, "layer_norm_eps", 1e-12);
  c.init_std = hf_value(json, "initializer_range", 0.02);
  c.tie_embeddings = hf_value(json, "tie_word_embeddings", true);
  set_head(c, json);
  return c;
}

}  // namespace

const HfFormat kBertHf = {"bert", "bert.", roots,      kFields, kArchitectures,
                          names,  aliases, is_ignored, to_json, from_json};

}  // namespace esp::model
