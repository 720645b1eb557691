// The counts follow the modeling files of `transformers`. tests/data/hf_counts.json has the exact counts of their
// classes.
#include "esp/plan/hf_families.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"

namespace esp::plan {
namespace {

double product(int64_t a, int64_t b) {
  return static_cast<double>(a) * static_cast<double>(b);
}

void add(ModelShape& s, double parameters) {
  s.other_parameters += parameters;
}
void add_per_layer(ModelShape& s, int64_t parameters) {
  add(s, product(s.layers, parameters));
}

// Corrects the parameter count of a model that does not have two norms per layer and one final norm. `width`:
// parameters of one norm; `beside_layers`: number of norms outside the layers.
void set_norms(ModelShape& s, int64_t per_layer, int64_t width, int64_t beside_layers) {
  add(s, product(per_layer * s.layers + beside_layers, width) -
             static_cast<double>(2 * s.layers + 1) * s.norm_parameters());
}

// Attention and feed-forward of a layer share one LayerNorm.
void share_norm(ModelShape& s) {
  set_norms(s, 1, 2 * s.hidden, 1);
}

void add_query_key_norms(ModelShape& s) {
  add_per_layer(s, 2 * s.head_dim);
}

void set_attention_bias(const HfConfigReader& config, ModelShape& s) {
  if (!config.flag("attention_bias", false)) return;
  s.qkv_bias = true;
  add_per_layer(s, s.hidden);
}

void adjust_llama(const HfConfigReader& config, ModelShape& s) {
  set_attention_bias(config, s);
  if (config.flag("mlp_bias", false)) add_per_layer(s, 2 * s.ffn + s.hidden);
}

void adjust_qwen2(const HfConfigReader&, ModelShape& s) {
  s.qkv_bias = true;
}

void adjust_qwen2_moe(const HfConfigReader& config, ModelShape& s) {
  s.qkv_bias = config.flag("qkv_bias", true);
  add(s, product(s.num_expert_layers(), s.hidden));  // each expert layer also has a gate for its shared expert
}

void adjust_qwen3(const HfConfigReader& config, ModelShape& s) {
  set_attention_bias(config, s);
  add_query_key_norms(s);
}

void adjust_gemma2(const HfConfigReader& config, ModelShape& s) {
  set_attention_bias(config, s);
  set_norms(s, 4, s.hidden, 1);
}

void adjust_gemma3(const HfConfigReader& config, ModelShape& s) {
  adjust_gemma2(config, s);
  add_query_key_norms(s);
}

void adjust_olmo(const HfConfigReader& config, ModelShape& s) {
  set_attention_bias(config, s);
  set_norms(s, 0, 0, 0);  // the model's norms have no parameters
}

void adjust_olmo2(const HfConfigReader& config, ModelShape& s) {
  set_attention_bias(config, s);
  add_per_layer(s, (s.heads + s.kv_heads) * s.head_dim);  // one norm over all query heads and one over all key heads
}

void adjust_cohere(const HfConfigReader& config, ModelShape& s) {
  set_attention_bias(config, s);
  set_norms(s, 1, s.hidden, 1);
}

void adjust_stablelm(const HfConfigReader& config, ModelShape& s) {
  s.qkv_bias = config.flag("use_qkv_bias", false);
  set_norms(s, config.flag("use_parallel_residual", false) ? 1 : 2, 2 * s.hidden, 1);
}

void adjust_phi(const HfConfigReader&, ModelShape& s) {
  share_norm(s);
  add(s, static_cast<double>(s.vocab));  // the head has a bias
}

void adjust_gptj(const HfConfigReader&, ModelShape& s) {
  share_norm(s);
  add_per_layer(s, -4 * s.hidden);  // removes the four attention biases
  add(s, static_cast<double>(s.vocab));
}

void adjust_gpt_neo(const HfConfigReader&, ModelShape& s) {
  add_per_layer(s, -3 * s.hidden);  // removes the biases of queries, keys and values
}

void adjust_gpt_neox(const HfConfigReader& config, ModelShape& s) {
  if (!config.flag("attention_bias", true)) add_per_layer(s, -4 * s.hidden);
}

void adjust_bigcode(const HfConfigReader& config, ModelShape& s) {
  if (config.flag("multi_query", true)) s.kv_heads = 1;
}

void adjust_opt(const HfConfigReader& config, ModelShape& s) {
  s.positions += 2;  // the position table has two extra rows for padding
  const int64_t width = config.size({"word_embed_proj_dim"}, s.hidden);
  if (width != s.hidden)  // the embedding tables are narrower than the layers, with an input and an output projection
    add(s, product(s.vocab, width - s.hidden) * (s.tied ? 1 : 2) + 2 * product(width, s.hidden));
  const bool last = config.flag("do_layer_norm_before", true) && !config.flag("_remove_final_layer_norm", false);
  set_norms(s, 2, 2 * s.hidden, last ? 1 : 0);
}

void adjust_bloom(const HfConfigReader&, ModelShape& s) {
  s.ffn = 4 * s.hidden;
  set_norms(s, 2, 2 * s.hidden, 2);  // one norm after the embeddings, and the final norm
}

void adjust_falcon(const HfConfigReader& config, ModelShape& s) {
  const bool wide = config.flag("new_decoder_architecture", false);
  s.bias = config.flag("bias", false);
  if (wide) {
    s.kv_heads = config.size({"num_kv_heads"}, s.heads);
  } else {
    s.kv_heads = config.flag("multi_query", true) ? 1 : s.heads;
  }
  const int64_t norms = wide ? config.size({"num_ln_in_parallel_attn"}, 2) : config.flag("parallel_attn", true) ? 1 : 2;
  set_norms(s, norms, 2 * s.hidden, 1);
}

void adjust_starcoder2(const HfConfigReader& config, ModelShape& s) {
  s.bias = config.flag("use_bias", true);
  set_norms(s, 2, 2 * s.hidden, 1);
}

// BERT-like models: embeddings with a norm, post-norm blocks, and a masked-token head (dense layer, norm, tied table,
// bias).
void set_masked_head(ModelShape& s, int64_t segments) {
  add(s, product(segments + s.hidden + 3, s.hidden) + static_cast<double>(s.vocab));
  s.tied = true;
}

void adjust_roberta(const HfConfigReader& config, ModelShape& s) {
  set_masked_head(s, config.size({"type_vocab_size"}, 2));
}

void adjust_distilbert(const HfConfigReader&, ModelShape& s) {
  set_masked_head(s, 0);
}

void adjust_modernbert(const HfConfigReader&, ModelShape& s) {
  // One norm of the embeddings and one of the head; the first block has no input norm.
  add(s, product(s.hidden + 1, s.hidden) + static_cast<double>(s.vocab));
}

void adjust_t5(const HfConfigReader& config, ModelShape& s) {
  if (const int64_t decoder = config.size({"num_decoder_layers"}, s.layers); decoder != s.layers)
    throw UsageError(
        fmt::format("config.json: num_decoder_layers = {}: must equal num_layers = {}", decoder, s.layers));
  if (const std::string kind = config.text("feed_forward_proj"); !kind.empty()) s.gated = kind.starts_with("gated");
  s.layers *= 2;
  const int64_t buckets = config.size({"relative_attention_num_buckets"}, 32);
  // The final norm of the encoder, and the relative position biases of encoder and decoder.
  add(s, static_cast<double>(s.hidden) + product(2 * buckets, s.heads));
}

constexpr bool gated = true, rms = true, bias = true, positions = true, tied = true;
constexpr HfFamily kFamilies[] = {
    {"llama", "LlamaForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 0, 0, adjust_llama},
    {"mistral", "MistralForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 0, kGrouped},
    {"mixtral", "MixtralForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 0, kGrouped | kExperts},
    {"qwen2", "Qwen2ForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 0, kGrouped, adjust_qwen2},
    {"qwen2_moe", "Qwen2MoeForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 0, kGrouped | kExperts,
     adjust_qwen2_moe},
    {"qwen3", "Qwen3ForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 128, kGrouped, adjust_qwen3},
    {"qwen3_moe", "Qwen3MoeForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 0, kGrouped | kExperts,
     adjust_qwen3},
    {"deepseek_v2", "DeepseekV2ForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 0, kExperts | kLatent},
    {"deepseek_v3", "DeepseekV3ForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 0, kExperts | kLatent},
    {"gemma", "GemmaForCausalLM", "llama", gated, rms, !bias, !positions, tied, 256, kGrouped, set_attention_bias},
    {"gemma2", "Gemma2ForCausalLM", "llama", gated, rms, !bias, !positions, tied, 256, kGrouped, adjust_gemma2},
    {"gemma3_text", "Gemma3ForCausalLM", "llama", gated, rms, !bias, !positions, tied, 256, kGrouped, adjust_gemma3},
    {"granite", "GraniteForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 0, 0, adjust_llama},
    {"olmo", "OlmoForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 0, 0, adjust_olmo},
    {"olmo2", "Olmo2ForCausalLM", "llama", gated, rms, !bias, !positions, !tied, 0, 0, adjust_olmo2},
    {"cohere", "CohereForCausalLM", "llama", gated, !rms, !bias, !positions, tied, 0, 0, adjust_cohere},
    {"stablelm", "StableLmForCausalLM", "llama", gated, !rms, !bias, !positions, !tied, 0, kGrouped, adjust_stablelm},
    {"phi3", "Phi3ForCausalLM", "llama", gated, rms, !bias, !positions, !tied},
    {"phi", "PhiForCausalLM", "gpt", !gated, !rms, bias, !positions, !tied, 0, 0, adjust_phi},
    {"starcoder2", "Starcoder2ForCausalLM", "gpt", !gated, !rms, bias, !positions, tied, 0, kGrouped,
     adjust_starcoder2},
    {"gpt_neo", "GPTNeoForCausalLM", "gpt", !gated, !rms, bias, positions, tied, 0, kFourfold, adjust_gpt_neo},
    {"gpt_neox", "GPTNeoXForCausalLM", "gpt", !gated, !rms, bias, !positions, !tied, 0, 0, adjust_gpt_neox},
    {"gptj", "GPTJForCausalLM", "gpt", !gated, !rms, bias, !positions, !tied, 0, kFourfold, adjust_gptj},
    {"codegen", "CodeGenForCausalLM", "gpt", !gated, !rms, bias, !positions, !tied, 0, kFourfold, adjust_gptj},
    {"gpt_bigcode", "GPTBigCodeForCausalLM", "gpt", !gated, !rms, bias, positions, tied, 0, kFourfold, adjust_bigcode},
    {"opt", "OPTForCausalLM", "gpt", !gated, !rms, bias, positions, tied, 0, 0, adjust_opt},
    {"bloom", "BloomForCausalLM", "gpt", !gated, !rms, bias, !positions, tied, 0, kFourfold, adjust_bloom},
    {"falcon", "FalconForCausalLM", "gpt", !gated, !rms, !bias, !positions, tied, 0, kFourfold, adjust_falcon},
    {"mpt", "MptForCausalLM", "gpt", !gated, !rms, !bias, !positions, tied, 0, kFourfold},
    {"roberta", "RobertaForMaskedLM", "bert", !gated, !rms, bias, positions, tied, 0, 0, adjust_roberta},
    {"xlm-roberta", "XLMRobertaForMaskedLM", "bert", !gated, !rms, bias, positions, tied, 0, 0, adjust_roberta},
    {"distilbert", "DistilBertForMaskedLM", "bert", !gated, !rms, bias, positions, tied, 0, 0, adjust_distilbert},
    {"modernbert", "ModernBertForMaskedLM", "bert", gated, !rms, !bias, !positions, tied, 0, 0, adjust_modernbert},
    {"t5", "T5ForConditionalGeneration", "t5", !gated, rms, !bias, !positions, tied, 0, 0, adjust_t5},
    {"mt5", "MT5ForConditionalGeneration", "t5", gated, rms, !bias, !positions, !tied, 0, 0, adjust_t5},
};

constexpr HfConstant kConstants[] = {
    {"qwen2_moe", "mlp_only_layers", "[]"},
    {"qwen3_moe", "mlp_only_layers", "[]"},
    {"deepseek_v2", "attention_bias", "false"},
    {"deepseek_v2", "mlp_bias", "false"},
    {"deepseek_v3", "attention_bias", "false"},
    {"cohere", "use_qk_norm", "false"},
    {"stablelm", "qk_layernorm", "false"},
    {"phi", "qk_layernorm", "false"},
    {"opt", "enable_bias", "true"},
    {"opt", "layer_norm_elementwise_affine", "true"},
    {"mpt", "no_bias", "true"},
    {"mpt", "expansion_ratio", "4"},
    {"roberta", "tie_word_embeddings", "true"},
    {"xlm-roberta", "tie_word_embeddings", "true"},
    {"distilbert", "tie_word_embeddings", "true"},
    {"modernbert", "tie_word_embeddings", "true"},
    {"modernbert", "attention_bias", "false"},
    {"modernbert", "mlp_bias", "false"},
    {"modernbert", "norm_bias", "false"},
    {"modernbert", "classifier_bias", "false"},
    {"modernbert", "decoder_bias", "true"},
};

}  // namespace

int64_t HfConfigReader::size(std::initializer_list<const char*> names, int64_t otherwise) const {
  for (const char* name : names) {
    const auto found = config_.find(name);
    if (found == config_.end() || found->is_null()) continue;
    if (!found->is_number_integer() || found->get<int64_t>() < 0 || found->get<int64_t>() > kMaxSize)
      throw UsageError(
          fmt::format("config.json: {} = {}: expected an integer from 0 to {}", name, found->dump(), kMaxSize));
    return found->get<int64_t>();
  }
  return otherwise;
}

int64_t HfConfigReader::needed(std::initializer_list<const char*> names, int64_t most) const {
  const int64_t value = size(names, 0);
  if (value == 0 || value > most)
    throw UsageError(fmt::format("config.json: {}: got {}; expected an integer from 1 to {}", fmt::join(names, " or "),
                                 value == 0 ? "no positive value" : std::to_string(value), most));
  return value;
}

bool HfConfigReader::flag(const char* name, bool otherwise) const {
  const auto found = config_.find(name);
  if (found == config_.end() || found->is_null()) return otherwise;
  if (!found->is_boolean())
    throw UsageError(fmt::format("config.json: {} = {}: expected true or false", name, found->dump()));
  return found->get<bool>();
}

std::string HfConfigReader::text(const char* name) const {
  const auto found = config_.find(name);
  return found != config_.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string HfConfigReader::architecture() const {
  const auto found = config_.find("architectures");
  const bool named = found != config_.end() && found->is_array() && !found->empty() && found->front().is_string();
  return named ? found->front().get<std::string>() : "";
}

void HfConfigReader::expect(const char* name, std::string_view value) const {
  const auto found = config_.find(name);
  if (found == config_.end() || found->is_null() || *found == Json::parse(value)) return;
  throw UsageError(
      fmt::format("config.json: {} = {}: not supported; expected {}, the only value for which parameters are counted",
                  name, found->dump(), value));
}

std::span<const HfFamily> hf_families() {
  return kFamilies;
}

std::span<const HfConstant> hf_constants() {
  return kConstants;
}

}  // namespace esp::plan
