// LLaMA in a Hugging Face folder: linear weights are stored [out, in], with separate q, k, v, gate and up.
#include "esp/model/hf_format.h"
#include "esp/model/llama/llama.h"

namespace esp::model {
namespace {

using kernel::RopeScaling;
using kernel::RotaryAngles;

using enum HfUse;

constexpr HfField kFields[] = {
    {"num_hidden_layers", read},
    {"num_attention_heads", read},
    {"num_key_value_heads", read, "null"},
    {"head_dim", read, "null"},
    {"hidden_size", read},
    {"intermediate_size", read},
    {"max_position_embeddings", read},
    {"vocab_size", read},
    {"attention_dropout", read, "null"},
    {"hidden_act", read},
    {"rms_norm_eps", read},
    {"initializer_range", read},
    {"rope_theta", read},
    {"rope_scaling", read, "null"},
    {"rope_parameters", read, "null"},
    {"attention_bias", read},
    {"mlp_bias", read},
    {"tie_word_embeddings", read},
    {"partial_rotary_factor", fixed, "[1.0]"},
    {"is_causal", fixed, "[true]"},
    {"is_decoder", kept},
    {"pretraining_tp", kept},  // splits matmuls; the result is the same
};
constexpr std::string_view kArchitectures[] = {"LlamaForCausalLM", "LlamaModel"};

std::vector<std::string_view> roots() {
  return {"embed_tokens.", "layers.", "norm."};
}

std::vector<HfTensor> names(const ModelConfig& c) {
  const int64_t kv = c.kv_heads_or_all() * c.head_dim(), ffn = c.ffn_or_default();
  std::vector<HfTensor> list;
  add_pair(list, "embedding", "model.embed_tokens", false, false);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string ours = fmt::format("blocks.{}.", i), theirs = fmt::format("model.layers.{}.", i);
    add_pair(list, ours + "norm1", theirs + "input_layernorm", false, false);
    add_packed(list, ours + "attention.qkv",
               {theirs + "self_attn.q_proj", theirs + "self_attn.k_proj", theirs + "self_attn.v_proj"}, {c.dim, kv, kv},
               c.bias);
    add_pair(list, ours + "attention.out", theirs + "self_attn.o_proj", c.bias, true);
    add_pair(list, ours + "norm2", theirs + "post_attention_layernorm", false, false);
    add_packed(list, ours + "mlp.gate_up", {theirs + "mlp.gate_proj", theirs + "mlp.up_proj"}, {ffn, ffn}, c.bias);
    add_pair(list, ours + "mlp.down", theirs + "mlp.down_proj", c.bias, true);
  }
  add_pair(list, "norm", "model.norm", false, false);
  if (!c.tie_embeddings) add_pair(list, "head", "lm_head", false, false);
  return list;
}

std::vector<HfAlias> aliases(const ModelConfig& c) {
  if (!c.tie_embeddings) return {};
  return {{"lm_head.weight", "model.embed_tokens.weight"}};
}

bool is_ignored(const ModelConfig&, std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

constexpr std::pair<std::string_view, RopeScaling> kRopeTypes[] = {{"default", RopeScaling::none},
                                                                   {"linear", RopeScaling::linear},
                                                                   {"yarn", RopeScaling::yarn},
                                                                   {"llama3", RopeScaling::llama3}};

// The numbers in config.json that each kind of RoPE scaling reads.
struct RopeNumber {
  const char* key;
  double RotaryAngles::*member;
  RopeScaling kind;
  bool needed;
};
constexpr RopeNumber kRopeNumbers[] = {
    {"factor", &RotaryAngles::factor, RopeScaling::linear, true},
    {"factor", &RotaryAngles::factor, RopeScaling::yarn, false},
    {"beta_fast", &RotaryAngles::beta_fast, RopeScaling::yarn, false},
    {"beta_slow", &RotaryAngles::beta_slow, RopeScaling::yarn, false},
    {"attention_factor", &RotaryAngles::attention_factor, RopeScaling::yarn, false},
    {"factor", &RotaryAngles::factor, RopeScaling::llama3, true},
    {"low_freq_factor", &RotaryAngles::low_freq_factor, RopeScaling::llama3, true},
    {"high_freq_factor", &RotaryAngles::high_freq_factor, RopeScaling::llama3, true}};
constexpr const char* kOriginal = "original_max_position_embeddings";

bool has_original(RopeScaling kind) {
  return kind == RopeScaling::yarn || kind == RopeScaling::llama3;
}

std::string_view rope_name(RopeScaling kind) {
  for (const auto& [name, value] : kRopeTypes)
    if (value == kind) return name;
  ESP_CHECK(false, "rotary scaling without a name");
}

Json rope_json(const RotaryAngles& rope) {
  Json json{{"rope_type", rope_name(rope.scaling)}, {"rope_theta", rope.theta}};
  for (const RopeNumber& n : kRopeNumbers)
    if (n.kind == rope.scaling && (n.member != &RotaryAngles::attention_factor || rope.attention_factor > 0))
      json[n.key] = rope.*n.member;
  if (has_original(rope.scaling)) json[kOriginal] = rope.original_seq_len;
  return json;
}

RopeScaling rope_kind(const Json& given, std::string_view where) {
  // Older files use the key "type". If both keys are missing, the scaling is "default"; a "factor" without either key
  // is an error.
  const std::string otherwise = given.contains("factor") ? "" : "default";
  const auto type = hf_value<std::string>(given, "rope_type", hf_value<std::string>(given, "type", otherwise));
  std::string known;
  for (const auto& [name, kind] : kRopeTypes) {
    if (name == type) return kind;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", name);
  }
  throw IoError(fmt::format("config.json: {}.rope_type = \"{}\": expected one of {}", where, type, known));
}

// Rejects unknown keys, because they would change the computation.
void reject_unknown_keys(const Json& given, RopeScaling kind, std::string_view where) {
  for (const auto& [key, value] : given.items()) {
    bool known = value.is_null() || key == "rope_type" || key == "type" || key == "rope_theta" || key == kOriginal ||
                 key == "finetuned" || (key == "truncate" && value == true) ||
                 (key == "partial_rotary_factor" && value == 1.0);
    for (const RopeNumber& n : kRopeNumbers) known = known || (n.kind == kind && key == n.key);
    if (!known) throw IoError(fmt::format("config.json: {}.{} = {} is not supported", where, key, value.dump()));
  }
}

// Older folders have rope_theta and rope_scaling; newer ones have rope_parameters instead of both. If a file has
// rope_scaling and rope_parameters, `transformers` uses only rope_scaling.
RotaryAngles rope_from(const Json& json, int64_t positions) {
  RotaryAngles rope;
  rope.theta = hf_value(json, "rope_theta", rope.theta);
  std::string_view where;
  for (std::string_view name : {"rope_parameters", "rope_scaling"}) {
    const auto at = json.find(name);
    if (at == json.end() || at->is_null()) continue;
    if (!at->is_object()) throw IoError(fmt::format("config.json: {} = {} is not an object", name, at->dump()));
    if (!at->empty()) where = name;
  }
  if (where.empty()) return rope;
  const Json& given = *json.find(where);
  rope.theta = hf_value(given, "rope_theta", rope.theta);
  rope.scaling = rope_kind(given, where);
  reject_unknown_keys(given, rope.scaling, where);
  const bool yarn = rope.scaling == RopeScaling::yarn;
  if (has_original(rope.scaling))
    rope.original_seq_len = yarn ? hf_value(given, kOriginal, positions) : hf_size(given, kOriginal);
  if (yarn && rope.original_seq_len > 0)
    rope.factor = static_cast<double>(positions) / static_cast<double>(rope.original_seq_len);
  for (const RopeNumber& n : kRopeNumbers) {
    if (n.kind != rope.scaling) continue;
    if (n.needed && given.value(n.key, Json()).is_null())
      throw IoError(
          fmt::format("config.json: {}.{}: missing; rope_type \"{}\" needs it", where, n.key, rope_name(n.kind)));
    rope.*n.member = hf_value(given, n.key, rope.*n.member);
  }
  return rope;
}

Json to_json(const ModelConfig& c) {
  if (c.norm != kernel::NormKind::rms || c.positions != Positions::rotary || !c.gated || c.experts > 0)
    throw UsageError(
        "Hugging Face LLaMA cannot store this model: it supports only RMSNorm, rotary positions, a gated MLP and no "
        "experts. Use --layout espalier");
  return Json{{"architectures", {"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"attention_bias", c.bias},
              {"attention_dropout", c.dropout},
              {"bos_token_id", nullptr},
              {"eos_token_id", nullptr},
              {"head_dim", c.head_dim()},
              {"hidden_act", hf_activation(c.activation)},
              {"hidden_size", c.dim},
              {"initializer_range", c.init_std},
              {"intermediate_size", c.ffn_or_default()},
              {"max_position_embeddings", c.seq_len},
              {"mlp_bias", c.bias},
              {"num_attention_heads", c.heads},
              {"num_hidden_layers", c.layers},
              {"num_key_value_heads", c.kv_heads_or_all()},
              {"pad_token_id", nullptr},
              {"pretraining_tp", 1},
              {"rms_norm_eps", c.norm_eps},
              {"rope_scaling", c.rope.scaling == RopeScaling::none ? Json(nullptr) : rope_json(c.rope)},
              {"rope_theta", c.rope.theta},
              {"rope_parameters", rope_json(c.rope)},
              {"tie_word_embeddings", c.tie_embeddings},
              {"use_cache", true},
              {"vocab_size", c.vocab}};
}

ModelConfig from_json(const Json& json) {
  ModelConfig c = llama_defaults();
  c.layers = hf_size(json, "num_hidden_layers");
  c.heads = hf_size(json, "num_attention_heads");
  c.kv_heads = hf_value<int64_t>(json, "num_key_value_heads", 0);
  if (c.kv_heads == c.heads) c.kv_heads = 0;
  c.dim = hf_size(json, "hidden_size");
  c.ffn = hf_size(json, "intermediate_size");
  c.vocab = hf_size(json, "vocab_size");
  c.seq_len = hf_size(json, "max_position_embeddings");
  c.dropout = hf_value(json, "attention_dropout", 0.0);
  c.activation = hf_activation_at(json, "hidden_act", "silu");
  if (c.activation != kernel::Activation::silu)
    throw IoError(fmt::format("config.json: hidden_act = {}: expected \"silu\"", json.at("hidden_act").dump()));
  c.norm_eps = hf_value(json, "rms_norm_eps", 1e-6);
  c.rope = rope_from(json, c.seq_len);
  c.bias = hf_value(json, "attention_bias", false);
  c.tie_embeddings = hf_value(json, "tie_word_embeddings", false);
  c.init_std = hf_value(json, "initializer_range", 0.02);
  if (hf_value(json, "mlp_bias", false) != c.bias)
    throw IoError(fmt::format("config.json: mlp_bias = {}: expected {}, the value of attention_bias", !c.bias, c.bias));
  if (const int64_t head = hf_value<int64_t>(json, "head_dim", 0); head != 0 && head * c.heads != c.dim)
    throw IoError(fmt::format("config.json: head_dim = {}: expected hidden_size / num_attention_heads = {} / {}", head,
                              c.dim, c.heads));
  return c;
}

}  // namespace

const HfFormat kLlamaHf = {"llama", "model.", roots,      kFields, kArchitectures,
                           names,   aliases,  is_ignored, to_json, from_json};

}  // namespace esp::model
