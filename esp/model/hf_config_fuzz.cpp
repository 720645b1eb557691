// Fuzz target: parses arbitrary bytes as a config.json. The parser throws an error or returns a valid config. That
// config must stay equal after it is written and read again.
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/model/hf_config.h"

namespace {

using esp::model::ModelConfig;

std::optional<ModelConfig> read(const esp::Json& json) {
  try {
    return esp::model::config_from_hf(json);
  } catch (const esp::IoError&) {
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  esp::Json json, written;
  try {
    json = esp::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const esp::IoError&) {
    return 0;
  }
  const std::optional<ModelConfig> config = read(json);
  // config.json lists every class by name, which takes long if there are many
  if (!config || config->num_classes > 1000) return 0;
  config->check();
  try {
    written = esp::model::hf_config(*config);
  } catch (const esp::UsageError&) {  // expected: `transformers` cannot represent every valid config
    return 0;
  }
  const std::optional<ModelConfig> again = read(written);
  if (!again || again->layers != config->layers || again->dim != config->dim || again->vocab != config->vocab ||
      again->activation != config->activation || again->tie_embeddings != config->tie_embeddings ||
      again->kv_heads_or_all() != config->kv_heads_or_all())
    __builtin_trap();
  return 0;
}
