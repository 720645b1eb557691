#include "esp/plan/hf_shape.h"

#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"

namespace esp::plan {
namespace {

constexpr int64_t kUsualSequence = 4096;

// A whole number under the first of these names that has one; 0: none has.
int64_t size_under(const Json& config, std::initializer_list<const char*> names, int64_t most) {
  for (const char* name : names) {
    const auto found = config.find(name);
    if (found == config.end() || !found->is_number_integer()) continue;
    const auto value = found->get<int64_t>();
    if (value < 0 || value > most)
      throw UsageError(fmt::format("config.json: {} = {}: 0 to {} is wanted", name, value, most));
    if (value > 0) return value;
  }
  return 0;
}

int64_t needed(const Json& config, std::initializer_list<const char*> names, int64_t most) {
  const int64_t value = size_under(config, names, most);
  if (value > 0) return value;
  throw UsageError(fmt::format("config.json: none of {} is there", fmt::join(names, ", ")));
}

bool flag_under(const Json& config, const char* name, bool otherwise) {
  const auto found = config.find(name);
  return found != config.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

std::string text_under(const Json& config, const char* name) {
  const auto found = config.find(name);
  return found != config.end() && found->is_string() ? found->get<std::string>() : "";
}

bool is_one_of(const std::string& type, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), type) != names.end();
}

// Encoders and the first decoders: biases everywhere, layer norms, learned positions, one table for both ends.
void make_classic(Shape& s, const std::string& type) {
  s.arch = is_one_of(type, {"bert", "roberta", "electra", "distilbert", "albert"}) ? "bert" : "gpt";
  s.causal = s.arch != "bert";
  s.learned_positions = !is_one_of(type, {"gpt_neox", "gptj", "falcon", "mpt", "bloom", "codegen"});
  s.tied = !is_one_of(type, {"gpt_neox", "gptj", "codegen"});
  s.bias = !is_one_of(type, {"falcon", "mpt"});
}

void make_modern(Shape& s, const std::string& type) {
  s.arch = "llama";
  s.gated = s.rms = true;
  s.bias = s.learned_positions = false;
  s.tied = is_one_of(type, {"gemma", "gemma2", "gemma3", "gemma3_text"});
  s.qkv_bias = is_one_of(type, {"qwen2", "qwen2_moe", "qwen"});
}

void read_experts(const Json& config, Shape& s) {
  s.experts = size_under(config, {"n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"}, 1 << 16);
  if (s.experts <= 1) {
    s.experts = 0;
    return;
  }
  s.topk = std::min(
      s.experts,
      std::max<int64_t>(
          1,
          size_under(config, {"num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k", "moe_k"}, 1 << 16)));
  s.expert_ffn = size_under(config, {"moe_intermediate_size", "expert_ffn_hidden_size"}, 1 << 24);
  if (s.expert_ffn == 0) s.expert_ffn = s.ffn;
  s.shared_experts = size_under(config, {"n_shared_experts", "num_shared_experts"}, 1 << 10);
  if (const int64_t width = size_under(config, {"shared_expert_intermediate_size"}, 1 << 24); width > 0) {
    s.shared_experts = std::max<int64_t>(1, s.shared_experts);
    s.shared_ffn = width;
  }
  s.dense_layers = std::min(size_under(config, {"first_k_dense_replace"}, 1 << 16), s.layers);
  s.expert_every = std::max<int64_t>(1, size_under(config, {"decoder_sparse_step", "moe_layer_freq"}, 1 << 10));
}

void read_latent(const Json& config, Shape& s) {
  s.kv_lora = size_under(config, {"kv_lora_rank"}, 1 << 16);
  if (s.kv_lora == 0) return;
  s.q_lora = size_under(config, {"q_lora_rank"}, 1 << 16);
  s.rope_dim = size_under(config, {"qk_rope_head_dim"}, 1 << 12);
  s.head_dim = std::max<int64_t>(1, size_under(config, {"qk_nope_head_dim"}, 1 << 12));
  s.v_dim = size_under(config, {"v_head_dim"}, 1 << 12);
}

}  // namespace

Shape shape_from_hf(const Json& given, const std::string& name, std::vector<std::string>& assumed) {
  if (!given.is_object()) throw UsageError("config.json is not an object");
  // Models of several kinds of input keep the language model's sizes in a part of their own.
  const bool nested = given.contains("text_config") && given.at("text_config").is_object();
  const Json& config = nested ? given.at("text_config") : given;
  std::string type = text_under(config, "model_type");
  if (type.empty()) type = text_under(given, "model_type");
  Shape s;
  s.name = name;
  s.layers = needed(config, {"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, 10'000);
  s.hidden = needed(config, {"hidden_size", "n_embd", "d_model", "dim"}, 1 << 20);
  s.heads = needed(config, {"num_attention_heads", "n_head", "n_heads", "num_heads"}, 1 << 16);
  s.vocab = needed(config, {"vocab_size", "padded_vocab_size"}, 1 << 24);
  const bool classic = is_one_of(type, {"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "mpt", "bert",
                                        "roberta", "electra", "codegen", "gpt_bigcode", "distilbert", "albert"});
  if (classic)
    make_classic(s, type);
  else
    make_modern(s, type);
  if (type.empty()) assumed.push_back("blocks like llama's (no model_type)");
  s.tied = flag_under(config, "tie_word_embeddings", s.tied);
  if (s.arch == "llama") s.qkv_bias = flag_under(config, "attention_bias", s.qkv_bias);
  s.kv_heads = size_under(config, {"num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv"}, 1 << 16);
  if (s.kv_heads == 0) s.kv_heads = flag_under(config, "multi_query", false) ? 1 : s.heads;
  s.head_dim = size_under(config, {"head_dim", "kv_channels"}, 1 << 14);
  if (s.head_dim == 0) s.head_dim = std::max<int64_t>(1, s.hidden / s.heads);
  s.ffn = size_under(config, {"intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"}, 1 << 24);
  if (s.ffn == 0) {
    s.ffn = 4 * s.hidden;
    assumed.push_back(fmt::format("feed-forwards of {}", s.ffn));
  }
  const int64_t positions = size_under(
      config, {"max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"}, int64_t{1} << 31);
  s.positions = s.learned_positions ? positions : 0;
  s.seq = positions > 0 ? std::min(positions, kUsualSequence) : kUsualSequence;
  if (s.seq != positions) assumed.push_back(fmt::format("sequences of {} tokens", s.seq));
  read_experts(config, s);
  read_latent(config, s);
  if (s.arch == "bert")  // segments, the norm over them, and the masked-token head's own layer, norm and bias
    s.other_parameters = static_cast<double>(size_under(config, {"type_vocab_size"}, 1 << 16) * s.hidden) +
                         s.norm_parameters() + static_cast<double>((s.hidden + 3) * s.hidden + s.vocab) -
                         s.norm_parameters();  // no norm after the last block: it has one inside
  if (is_one_of(type, {"qwen3", "qwen3_moe"})) s.other_parameters = static_cast<double>(2 * s.head_dim * s.layers);
  return s;
}

}  // namespace esp::plan
