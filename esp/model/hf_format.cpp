#include "esp/model/hf_format.h"

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
// The first name of an activation is the one written.
constexpr std::array kActivations = {
    ActivationName{"gelu_new", Activation::gelu}, ActivationName{"gelu_pytorch_tanh", Activation::gelu},
    ActivationName{"gelu", Activation::gelu_erf}, ActivationName{"relu", Activation::relu},
    ActivationName{"silu", Activation::silu},     ActivationName{"swish", Activation::silu},
    ActivationName{"tanh", Activation::tanh},
};

const HfFormat& format_of(const ModelConfig& config) {
  for (const ModelRow& row : models())
    if (row.name == config.arch && row.hf) return *row.hf;
  throw UsageError(fmt::format("arch \"{}\" has no Hugging Face form; gpt, llama and bert have", config.arch));
}

}  // namespace

std::string_view hf_activation(Activation activation) {
  for (const ActivationName& row : kActivations)
    if (row.activation == activation) return row.name;
  throw UsageError(fmt::format("activation \"{}\" has no Hugging Face name", kernel::name_of(activation)));
}

Activation activation_from_hf(const std::string& name) {
  for (const ActivationName& row : kActivations)
    if (row.name == name) return row.activation;
  throw IoError(fmt::format("config.json: activation \"{}\" is not known; known: {}", name,
                            fmt::join(names_of(kActivations), ", ")));
}

int64_t hf_size(const Json& config, const char* key) {
  const int64_t value = hf_value<int64_t>(config, key, 0);
  if (value <= 0) throw IoError(fmt::format("config.json: {} must be a positive number", key));
  return value;
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
  return format_of(config).to_json(config);
}

ModelConfig config_from_hf(const Json& json) {
  if (!json.is_object()) throw IoError("config.json is not an object");
  const auto type = hf_value<std::string>(json, "model_type", "");
  std::vector<std::string_view> known;
  for (const ModelRow& row : models()) {
    if (!row.hf) continue;
    known.push_back(row.hf->model_type);
    if (type != row.hf->model_type) continue;
    ModelConfig config = row.hf->from_json(json);
    try {
      config.check();
    } catch (const UsageError& error) {
      throw IoError(fmt::format("config.json: {}", error.what()));
    }
    return config;
  }
  throw IoError(fmt::format("config.json: model_type \"{}\" is not read; known: {}", type, fmt::join(known, ", ")));
}

}  // namespace esp::model
