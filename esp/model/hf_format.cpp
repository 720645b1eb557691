#include "esp/model/hf_format.h"

#include <algorithm>
#include <array>

#include "esp/base/table.h"
#include "esp/model/hf_config.h"
#include "esp/model/model.h"

namespace esp::model {
namespace {

using kernel::Activation;

struct ActivationName {
  std::string_view name;
  Activation activation;
};
// An activation may have several names; export writes the first.
constexpr std::array kActivations = {
    ActivationName{"gelu_new", Activation::gelu}, ActivationName{"gelu_pytorch_tanh", Activation::gelu},
    ActivationName{"gelu", Activation::gelu_erf}, ActivationName{"relu", Activation::relu},
    ActivationName{"silu", Activation::silu},     ActivationName{"swish", Activation::silu},
    ActivationName{"tanh", Activation::tanh},
};

const HfFormat& format_of(const ModelConfig& config) {
  for (const ArchitectureRow& row : models())
    if (row.name == config.arch && row.hf) return *row.hf;
  throw UsageError(fmt::format("arch = \"{}\" has no Hugging Face format; expected gpt, llama or bert", config.arch));
}

// The fields of a ModelConfig that must survive the round trip through config.json, by their keys in the run file. Not
// listed: zero_positions, because it affects only the initial weights; and all keys of [model.moe] except the number of
// experts, because no Hugging Face format here has experts.
struct ShapeKey {
  std::string_view key;
  bool (*same)(const ModelConfig& a, const ModelConfig& b);
};
template <auto kMember>
bool same_member(const ModelConfig& a, const ModelConfig& b) {
  return a.*kMember == b.*kMember;
}
using kernel::RopeScaling;
using kernel::RotaryAngles;
// Equality of a member that matters only for the kinds of rotary scaling in kKinds; true for other kinds.
template <auto kMember, RopeScaling... kKinds>
bool same_angle(const ModelConfig& a, const ModelConfig& b) {
  return ((a.rope.scaling != kKinds) && ...) || a.rope.*kMember == b.rope.*kMember;
}
constexpr ShapeKey kShapeKeys[] = {
    {"layers", same_member<&ModelConfig::layers>},
    {"heads", same_member<&ModelConfig::heads>},
    {"kv_heads", [](auto& a, auto& b) { return a.kv_heads_or_all() == b.kv_heads_or_all(); }},
    {"dim", same_member<&ModelConfig::dim>},
    {"ffn", [](auto& a, auto& b) { return a.ffn_or_default() == b.ffn_or_default(); }},
    {"vocab", same_member<&ModelConfig::vocab>},
    {"seq_len", same_member<&ModelConfig::seq_len>},
    {"dropout", same_member<&ModelConfig::dropout>},
    {"activation", same_member<&ModelConfig::activation>},
    {"gated", same_member<&ModelConfig::gated>},
    {"norm", same_member<&ModelConfig::norm>},
    {"post_norm", same_member<&ModelConfig::post_norm>},
    {"norm_eps", same_member<&ModelConfig::norm_eps>},
    {"positions", same_member<&ModelConfig::positions>},
    {"rope_theta", [](auto& a, auto& b) { return a.positions != Positions::rotary || a.rope.theta == b.rope.theta; }},
    {"rope_scaling",
     [](auto& a, auto& b) { return a.positions != Positions::rotary || a.rope.scaling == b.rope.scaling; }},
    {"rope_factor", same_angle<&RotaryAngles::factor, RopeScaling::linear, RopeScaling::yarn, RopeScaling::llama3>},
    {"rope_original_seq_len", same_angle<&RotaryAngles::original_seq_len, RopeScaling::yarn, RopeScaling::llama3>},
    {"rope_low_freq_factor", same_angle<&RotaryAngles::low_freq_factor, RopeScaling::llama3>},
    {"rope_high_freq_factor", same_angle<&RotaryAngles::high_freq_factor, RopeScaling::llama3>},
    {"rope_beta_fast", same_angle<&RotaryAngles::beta_fast, RopeScaling::yarn>},
    {"rope_beta_slow", same_angle<&RotaryAngles::beta_slow, RopeScaling::yarn>},
    {"rope_attention_factor", same_angle<&RotaryAngles::attention_factor, RopeScaling::yarn>},
    {"bias", same_member<&ModelConfig::bias>},
    {"tie_embeddings", same_member<&ModelConfig::tie_embeddings>},
    {"type_vocab", same_member<&ModelConfig::type_vocab>},
    {"classes", same_member<&ModelConfig::num_classes>},
    {"pooler", same_member<&ModelConfig::pooler>},
    {"embedding_norm", same_member<&ModelConfig::embedding_norm>},
    {"headless", same_member<&ModelConfig::headless>},
    {"init_std", same_member<&ModelConfig::init_std>},
    {"moe.experts", same_member<&ModelConfig::experts>},
};

// Reads the exported config.json back and compares. UsageError names the fields of the config that were lost.
void check_read_back(const HfFormat& format, const ModelConfig& config, const Json& json) {
  std::vector<std::string> lost;
  try {
    const ModelConfig back = format.from_json(json);
    for (const ShapeKey& key : kShapeKeys)
      if (!key.same(config, back)) lost.push_back(fmt::format("model.{}", key.key));
  } catch (const IoError& error) {
    lost.emplace_back(error.what());
  }
  if (!lost.empty())
    throw UsageError(
        fmt::format("{}: cannot be stored in a Hugging Face folder of model_type \"{}\". Train without it if the model "
                    "must be exported",
                    fmt::join(lost, ", "), format.model_type));
}

}  // namespace

std::string_view hf_activation(Activation activation) {
  for (const ActivationName& row : kActivations)
    if (row.activation == activation) return row.name;
  throw UsageError(
      fmt::format("activation \"{}\" has no Hugging Face name. Use --layout espalier", kernel::name_of(activation)));
}

Activation hf_activation_at(const Json& config, const char* key, const char* otherwise) {
  const auto name = hf_value<std::string>(config, key, otherwise);
  for (const ActivationName& row : kActivations)
    if (row.name == name) return row.activation;
  throw IoError(
      fmt::format("config.json: {} = \"{}\": expected one of {}", key, name, fmt::join(names_of(kActivations), ", ")));
}

int64_t hf_size(const Json& config, const char* key) {
  const int64_t value = hf_value<int64_t>(config, key, 0);
  if (value <= 0) throw IoError(fmt::format("config.json: {}: missing or <= 0; expected a positive integer", key));
  return value;
}

std::string hf_architecture(const Json& config) {
  const auto list = config.find("architectures");
  if (list == config.end() || list->is_null() || (list->is_array() && list->empty())) return "";
  if (!list->is_array() || !list->front().is_string())
    throw IoError(fmt::format("config.json: architectures = {}: expected a list of class names", list->dump()));
  return list->front().get<std::string>();
}

void add_pair(std::vector<HfTensor>& list, const std::string& ours, const std::string& theirs, bool bias,
              bool transposed) {
  list.push_back({ours + ".weight", {{theirs + ".weight", transposed}}});
  if (bias) list.push_back({ours + ".bias", {{theirs + ".bias"}}});
}

void add_packed(std::vector<HfTensor>& list, const std::string& ours, const std::vector<std::string>& theirs,
                const std::vector<int64_t>& widths, bool bias) {
  HfTensor weight{ours + ".weight", {}}, biases{ours + ".bias", {}};
  int64_t column = 0;
  for (size_t i = 0; i < theirs.size(); ++i) {
    weight.parts.push_back({theirs[i] + ".weight", true, column, widths[i]});
    biases.parts.push_back({theirs[i] + ".bias", false, column, widths[i]});
    column += widths[i];
  }
  list.push_back(std::move(weight));
  if (bias) list.push_back(std::move(biases));
}

std::vector<HfTensor> hf_names(const ModelConfig& config) {
  return format_of(config).names(config);
}

std::vector<HfAlias> hf_aliases(const ModelConfig& config) {
  return format_of(config).aliases(config);
}

bool hf_is_ignored(const ModelConfig& config, std::string_view name) {
  return format_of(config).is_ignored(config, name);
}

std::string hf_canonical_name(const ModelConfig& config, std::string_view name) {
  const HfFormat& format = format_of(config);
  std::string canonical(name);
  for (const auto& [old, now] : {std::pair{".gamma", ".weight"}, std::pair{".beta", ".bias"}})
    if (canonical.ends_with(old))
      canonical.replace(canonical.size() - std::string_view(old).size(), std::string::npos, now);
  if (config.headless) {
    if (canonical.starts_with(format.prefix)) canonical.erase(0, format.prefix.size());
    return canonical;
  }
  for (const std::string_view root : format.roots())
    if (canonical.starts_with(root)) return std::string(format.prefix) + canonical;
  return canonical;
}

Json hf_config(const ModelConfig& config) {
  config.check();
  const HfFormat& format = format_of(config);
  Json json = format.to_json(config);
  check_read_back(format, config, json);
  return json;
}

ModelConfig config_from_hf(const Json& json) {
  if (!json.is_object()) throw IoError("config.json: the text is not a JSON object");
  const auto type = hf_value<std::string>(json, "model_type", "");
  check_hf_fields(json, type);
  const ArchitectureRow& row = *std::find_if(
      models().begin(), models().end(), [&](const ArchitectureRow& r) { return r.hf && r.hf->model_type == type; });
  const auto& classes = row.hf->architectures;
  if (const std::string name = hf_architecture(json);
      !name.empty() && std::find(classes.begin(), classes.end(), name) == classes.end())
    throw IoError(
        fmt::format("config.json: architectures = [\"{}\"]: expected one of {}", name, fmt::join(classes, ", ")));
  ModelConfig config = row.hf->from_json(json);
  try {
    config.check();
  } catch (const UsageError& error) {
    throw IoError(fmt::format("config.json: {}", error.what()));
  }
  return config;
}

}  // namespace esp::model
