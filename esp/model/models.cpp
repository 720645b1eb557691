#include <array>

#include "esp/base/table.h"
#include "esp/model/bert/bert.h"
#include "esp/model/gpt/gpt.h"
#include "esp/model/hf_format.h"
#include "esp/model/llama/llama.h"
#include "esp/model/model.h"
#include "esp/model/t5/t5.h"

namespace esp::model {
namespace {

constexpr std::array kModels = {
    ArchitectureRow{"gpt", "decoder: learned positions, LayerNorm, gelu, tied head", gpt_defaults, make_gpt, &kGptHf},
    ArchitectureRow{"llama", "decoder: rotary positions, RMSNorm, SwiGLU, grouped-query attention, untied head",
                    llama_defaults, make_llama, &kLlamaHf},
    ArchitectureRow{"bert", "encoder: post-norm, masked-token head or a classifier on the first token", bert_defaults,
                    make_bert, &kBertHf},
    ArchitectureRow{"t5", "encoder–decoder with cross-attention, one shared token table", t5_defaults, make_t5,
                    nullptr},
};

}  // namespace

std::span<const ArchitectureRow> models() {
  return kModels;
}

ModelConfig default_config(std::string_view arch) {
  return find_row("model architecture", kModels, arch).defaults();
}

std::unique_ptr<Model> make_model(const ModelConfig& config, const ModelPart& part) {
  const ArchitectureRow& row = find_row("model architecture", kModels, config.arch);
  config.check();
  return row.make(config, part);
}

}  // namespace esp::model
