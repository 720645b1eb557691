#include "esp/plan/hf_shape.h"

#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/model/hf_config.h"
#include "esp/model/hf_fields.h"
#include "esp/plan/hf_families.h"

namespace esp::plan {
namespace {

constexpr int64_t kUsualSequence = 4096, kMaxLayers = 10'000;

void read_experts(const HfConfigReader& config, const HfFamily& family, ModelShape& s) {
  s.experts = config.needed({"n_routed_experts", "num_local_experts", "num_experts"});
  s.topk = std::min(config.needed({"num_experts_per_tok"}), s.experts);
  s.expert_ffn = family.name == "mixtral" ? s.ffn : config.needed({"moe_intermediate_size"});
  s.shared_experts = config.size({"n_shared_experts"}, 0);
  if (const int64_t width = config.size({"shared_expert_intermediate_size"}, 0); width > 0) {
    s.shared_experts = 1;
    s.shared_ffn = width;
  }
  s.expert_every = std::max<int64_t>(1, config.size({"decoder_sparse_step", "moe_layer_freq"}, 1));
}

void read_latent(const HfConfigReader& config, ModelShape& s) {
  s.kv_lora = config.needed({"kv_lora_rank"});
  s.q_lora = config.size({"q_lora_rank"}, 0);
  s.rope_dim = config.needed({"qk_rope_head_dim"});
  s.head_dim = config.needed({"qk_nope_head_dim"});
  s.v_dim = config.needed({"v_head_dim"});
  s.dense_layers = config.size({"first_k_dense_replace"}, -1);
  if (s.dense_layers < 0) throw UsageError("config.json: first_k_dense_replace: missing; expected an integer >= 0");
  s.dense_layers = std::min(s.dense_layers, s.layers);
}

void read_sizes(const HfConfigReader& config, const HfFamily& family, ModelShape& s) {
  s.layers = config.needed({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, kMaxLayers);
  s.hidden = config.needed({"hidden_size", "n_embd", "d_model", "dim"});
  s.heads = config.needed({"num_attention_heads", "n_head", "n_heads", "num_heads"});
  s.vocab = config.needed({"vocab_size"});
  const auto ffn = {"intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "hidden_dim"};
  s.ffn = family.traits & kFourfold ? config.size(ffn, 4 * s.hidden) : config.needed(ffn);
  s.kv_heads =
      family.traits & kGrouped ? config.needed({"num_key_value_heads"}) : config.size({"num_key_value_heads"}, s.heads);
  const int64_t usual = family.head_dim > 0 ? family.head_dim : std::max<int64_t>(1, s.hidden / s.heads);
  s.head_dim = config.size({"head_dim", "d_kv"}, usual);
  s.tied = config.flag("tie_word_embeddings", family.tied);
}

ModelShape shape_of_family(const HfConfigReader& config, const HfFamily& family) {
  if (const std::string architecture = config.architecture();
      !architecture.empty() && architecture != family.architecture)
    throw UsageError(
        fmt::format("config.json: architectures = [\"{}\"]: parameters of a {} model can only be counted as {}",
                    architecture, family.name, family.architecture));
  ModelShape s;
  s.arch = family.arch;
  s.causal = s.arch != "bert";
  s.gated = family.gated;
  s.rms = family.rms;
  s.bias = family.bias;
  s.learned_positions = family.learned_positions;
  read_sizes(config, family, s);
  s.positions = config.size({"max_position_embeddings", "n_positions", "max_seq_len"}, 0);
  s.seq = s.positions;
  if (family.traits & kExperts) read_experts(config, family, s);
  if (family.traits & kLatent) read_latent(config, s);
  for (const HfConstant& constant : hf_constants())
    if (constant.family == family.name) config.expect(constant.field, constant.value);
  if (family.adjust) family.adjust(config, s);
  if (!s.learned_positions) s.positions = 0;
  return s;
}

// Shape of a model_type that the trainer supports. The trainer's own reader of config.json is used.
ModelShape shape_of_trained(const Json& config) {
  ModelShape s = shape_of(model::config_from_hf(config), "");
  s.positions = s.seq;
  return s;
}

ModelShape shape_of_type(const HfConfigReader& config) {
  const std::string type = config.text("model_type");
  if (type == "gpt2" || type == "bert") return shape_of_trained(config.json());
  // The trainer supports only some llama models: checks the fields that it reads.
  if (type == "llama") model::check_hf_fields(config.json(), type);
  for (const HfFamily& family : hf_families())
    if (family.name == type) return shape_of_family(config, family);
  throw UsageError(
      fmt::format("config.json: model_type = \"{}\": expected one of {}. For another model, write its sizes "
                  "to a TOML file with a [model] table",
                  type, fmt::join(known_hf_types(), ", ")));
}

}  // namespace

std::vector<std::string_view> known_hf_types() {
  std::vector<std::string_view> names = {"gpt2", "bert"};
  for (const HfFamily& family : hf_families()) names.push_back(family.name);
  return names;
}

ModelShape shape_from_hf(const Json& given, const std::string& name, std::vector<std::string>& assumed) {
  if (!given.is_object()) throw UsageError(fmt::format("config.json: got {}, not an object", given.type_name()));
  // Multimodal models store the sizes of the language model in text_config.
  const bool nested = given.contains("text_config") && given.at("text_config").is_object();
  const HfConfigReader config(nested ? given.at("text_config") : given);
  if (nested) assumed.push_back("only the language model is counted (text_config)");
  ModelShape s;
  try {
    s = shape_of_type(config);
  } catch (const IoError& error) {
    throw UsageError(error.what());
  }
  s.name = name;
  const int64_t positions = s.seq;
  s.seq = positions > 0 ? std::min(positions, kUsualSequence) : kUsualSequence;
  if (s.seq != positions) assumed.push_back(fmt::format("sequences of {} tokens", s.seq));
  return s;
}

}  // namespace esp::plan
