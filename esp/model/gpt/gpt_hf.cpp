// GPT-2 in a Hugging Face folder. Both formats store linear weights as [in, out], so nothing is transposed.
#include "esp/model/gpt/gpt.h"
#include "esp/model/hf_format.h"

namespace esp::model {
namespace {

using enum HfUse;

constexpr HfField kFields[] = {
    {"n_layer", read},
    {"n_head", read},
    {"n_embd", read},
    {"n_inner", read, "null"},
    {"n_positions", read},
    {"n_ctx", read, "null"},
    {"vocab_size", read},
    {"resid_pdrop", read},
    {"activation_function", read},
    {"layer_norm_epsilon", read},
    {"initializer_range", read},
    {"tie_word_embeddings", read},
    {"scale_attn_weights", fixed, "[true]"},
    {"scale_attn_by_inverse_layer_idx", fixed, "[false]"},
    {"is_causal", fixed, "[true]"},
    {"is_decoder", kept},
    {"reorder_and_upcast_attn", kept},  // affects only the precision of an intermediate value
    {"attn_pdrop", kept},
    {"embd_pdrop", kept},
    // Fields for the second head of GPT2DoubleHeadsModel. Espalier has no such head.
    {"summary_activation", kept},
    {"summary_first_dropout", kept},
    {"summary_proj_to_labels", kept},
    {"summary_type", kept},
    {"summary_use_proj", kept},
};
constexpr std::string_view kArchitectures[] = {"GPT2LMHeadModel", "GPT2Model"};

std::vector<std::string_view> roots() {
  return {"wte.", "wpe.", "h.", "ln_f."};
}

struct Layer {
  const char *ours, *theirs;
};
constexpr Layer kLayers[] = {{"norm1", "ln_1"}, {"attention.qkv", "attn.c_attn"}, {"attention.out", "attn.c_proj"},
                             {"norm2", "ln_2"}, {"mlp.up", "mlp.c_fc"},           {"mlp.down", "mlp.c_proj"}};

std::vector<HfTensor> names(const ModelConfig& c) {
  std::vector<HfTensor> list;
  add_pair(list, "embedding", "transformer.wte", false, false);
  add_pair(list, "positions", "transformer.wpe", false, false);
  for (int64_t i = 0; i < c.layers; ++i)
    for (const Layer& layer : kLayers)
      add_pair(list, fmt::format("blocks.{}.{}", i, layer.ours), fmt::format("transformer.h.{}.{}", i, layer.theirs),
               true, false);
  add_pair(list, "norm", "transformer.ln_f", true, false);
  if (!c.tie_embeddings) add_pair(list, "head", "lm_head", false, false);
  return list;
}

std::vector<HfAlias> aliases(const ModelConfig& c) {
  if (!c.tie_embeddings) return {};
  return {{"lm_head.weight", "transformer.wte.weight"}};
}

bool is_ignored(const ModelConfig&, std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

Json to_json(const ModelConfig& c) {
  if (!c.bias || c.norm != kernel::NormKind::layer || c.positions != Positions::learned || c.gated ||
      c.kv_heads_or_all() != c.heads || c.experts > 0)
    throw UsageError(
        "Hugging Face GPT-2 cannot store this model: it supports only biases, LayerNorm, learned positions, an MLP "
        "without gate, one KV head per query head and no experts. Use --layout espalier");
  const Json end = c.vocab == 50257 ? Json(50256) : Json(nullptr);
  return Json{{"architectures", {"GPT2LMHeadModel"}},
              {"model_type", "gpt2"},
              {"activation_function", hf_activation(c.activation)},
              {"attn_pdrop", c.dropout},
              {"bos_token_id", end},
              {"embd_pdrop", c.dropout},
              {"eos_token_id", end},
              {"initializer_range", c.init_std},
              {"layer_norm_epsilon", c.norm_eps},
              {"n_ctx", c.seq_len},
              {"n_embd", c.dim},
              {"n_head", c.heads},
              {"n_inner", c.ffn ? Json(c.ffn) : Json(nullptr)},
              {"n_layer", c.layers},
              {"n_positions", c.seq_len},
              {"reorder_and_upcast_attn", false},
              {"resid_pdrop", c.dropout},
              {"scale_attn_by_inverse_layer_idx", false},
              {"scale_attn_weights", true},
              {"summary_activation", nullptr},
              {"summary_first_dropout", c.dropout},
              {"summary_proj_to_labels", true},
              {"summary_type", "cls_index"},
              {"summary_use_proj", true},
              {"tie_word_embeddings", c.tie_embeddings},
              {"use_cache", true},
              {"vocab_size", c.vocab}};
}

ModelConfig from_json(const Json& json) {
  ModelConfig c = gpt_defaults();
  c.layers = hf_size(json, "n_layer");
  c.heads = hf_size(json, "n_head");
  c.dim = hf_size(json, "n_embd");
  c.ffn = hf_value<int64_t>(json, "n_inner", 0);
  c.vocab = hf_size(json, "vocab_size");
  c.seq_len = hf_size(json, json.contains("n_positions") ? "n_positions" : "n_ctx");
  c.dropout = hf_value(json, "resid_pdrop", 0.1);
  c.activation = hf_activation_at(json, "activation_function", "gelu_new");
  c.norm_eps = hf_value(json, "layer_norm_epsilon", 1e-5);
  c.init_std = hf_value(json, "initializer_range", 0.02);
  c.tie_embeddings = hf_value(json, "tie_word_embeddings", true);
  return c;
}

}  // namespace

const HfFormat kGptHf = {"gpt2", "transformer.", roots,      kFields, kArchitectures,
                         names,  aliases,        is_ignored, to_json, from_json};

}  // namespace esp::model
