// LLaMA in a Hugging Face folder: linear maps are stored [out, in], and q, k, v, gate and up apart.
#include "esp/model/hf_format.h"
#include "esp/model/llama/llama.h"

namespace esp::model {
namespace {

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

bool is_ignored(const ModelConfig& c, std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || (c.tie_embeddings && name == "lm_head.weight");
}

Json to_json(const ModelConfig& c) {
  if (c.norm != kernel::NormKind::rms || c.positions != Positions::rotary || !c.gated || c.experts > 0)
    throw UsageError(
        "a llama without RMSNorm, rotary positions or gate, or with experts, is none that transformers knows");
  return Json{{"architectures", {"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"attention_bias", c.bias},
              {"attention_dropout", c.dropout},
              {"bos_token_id", c.vocab > 1 ? Json(1) : Json(nullptr)},
              {"eos_token_id", c.vocab > 2 ? Json(2) : Json(nullptr)},
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
              {"rope_scaling", nullptr},
              {"rope_theta", c.rope_theta},
              {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", c.rope_theta}}},
              {"tie_word_embeddings", c.tie_embeddings},
              {"use_cache", true},
              {"vocab_size", c.vocab}};
}

// Older folders have rope_theta and rope_scaling, newer ones both in rope_parameters.
double rope_theta(const Json& json) {
  const auto scaling = json.find("rope_scaling");
  if (scaling != json.end() && !scaling->is_null())
    throw IoError("config.json: rope_scaling is not supported; only plain rotary positions are: " + scaling->dump());
  const auto parameters = json.find("rope_parameters");
  if (parameters == json.end() || !parameters->is_object()) return hf_value(json, "rope_theta", 10000.0);
  if (const auto type = hf_value<std::string>(*parameters, "rope_type", "default"); type != "default")
    throw IoError(fmt::format("config.json: rope_type \"{}\" is not supported; only \"default\" is", type));
  return hf_value(*parameters, "rope_theta", hf_value(json, "rope_theta", 10000.0));
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
  c.activation = activation_from_hf(hf_value<std::string>(json, "hidden_act", "silu"));
  c.norm_eps = hf_value(json, "rms_norm_eps", 1e-6);
  c.rope_theta = rope_theta(json);
  c.bias = hf_value(json, "attention_bias", false);
  c.tie_embeddings = hf_value(json, "tie_word_embeddings", false);
  c.init_std = hf_value(json, "initializer_range", 0.02);
  if (hf_value(json, "mlp_bias", false) != c.bias)
    throw IoError("config.json: attention_bias and mlp_bias must be equal");
  if (const int64_t head = hf_value<int64_t>(json, "head_dim", 0); head != 0 && head * c.heads != c.dim)
    throw IoError(fmt::format("config.json: head_dim {} times {} heads is not hidden_size {}", head, c.heads, c.dim));
  return c;
}

}  // namespace

const HfFormat kLlamaHf = {"llama", "model.", roots, names, is_ignored, to_json, from_json};

}  // namespace esp::model
