#include "esp/model/hf_fields.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/model/hf_config.h"
#include "esp/model/hf_format.h"
#include "esp/model/model.h"

namespace esp::model {
namespace {

using enum HfUse;

// Fields that PreTrainedConfig of `transformers` 3 to 5 writes for every model.
constexpr HfField kCommonFields[] = {
    {"model_type", read},
    {"architectures", read, "null"},
    {"torch_dtype", written},
    {"dtype", written},
    {"transformers_version", written},
    // Fields that would change the weights or the computation.
    {"is_encoder_decoder", fixed, "[false]"},
    {"add_cross_attention", fixed, "[false]"},
    {"cross_attention_hidden_size", fixed, "[null]"},
    {"tie_encoder_decoder", fixed, "[false]"},
    {"pruned_heads", fixed, "[{}]"},
    {"quantization_config", fixed, "[null]"},
    {"compression_config", fixed, "[null]"},
    {"sliding_window", fixed, "[null]"},
    {"use_sliding_window", fixed, "[false]"},
    {"auto_map", fixed, "[null]"},
    // Ids of the special tokens.
    {"bos_token_id", kept},
    {"eos_token_id", kept},
    {"pad_token_id", kept},
    {"sep_token_id", kept},
    {"cls_token_id", kept},
    {"mask_token_id", kept},
    {"unk_token_id", kept},
    {"decoder_start_token_id", kept},
    {"forced_bos_token_id", kept},
    {"forced_eos_token_id", kept},
    // Origin of the model and labels.
    {"_name_or_path", kept},
    {"_commit_hash", kept},
    {"finetuning_task", kept},
    {"id2label", kept},
    {"label2id", kept},
    {"num_labels", kept},
    {"_num_labels", kept},
    {"problem_type", kept},
    {"tokenizer_class", kept},
    {"prefix", kept},
    {"task_specific_params", kept},
    {"transformers.js_config", kept},
    {"unsloth_fixed", kept},
    {"unsloth_version", kept},
    // Fields that select what a call returns, or how the same result is computed.
    {"attn_implementation", kept},
    {"_attn_implementation", kept},
    {"_attn_implementation_autoset", kept},
    {"_flash_attn_2_enabled", kept},
    {"experts_implementation", kept},
    {"chunk_size_feed_forward", kept},
    {"gradient_checkpointing", kept},
    {"output_attentions", kept},
    {"output_hidden_states", kept},
    {"output_past", kept},
    {"output_scores", kept},
    {"return_dict", kept},
    {"return_dict_in_generate", kept},
    {"tf_legacy_loss", kept},
    {"torchscript", kept},
    {"use_bfloat16", kept},
    {"use_cache", kept},
    // Settings of generate(); older releases of `transformers` stored them in config.json.
    {"bad_words_ids", kept},
    {"begin_suppress_tokens", kept},
    {"diversity_penalty", kept},
    {"do_sample", kept},
    {"early_stopping", kept},
    {"encoder_no_repeat_ngram_size", kept},
    {"exponential_decay_length_penalty", kept},
    {"length_penalty", kept},
    {"max_length", kept},
    {"max_new_tokens", kept},
    {"min_length", kept},
    {"no_repeat_ngram_size", kept},
    {"num_beam_groups", kept},
    {"num_beams", kept},
    {"num_return_sequences", kept},
    {"remove_invalid_values", kept},
    {"repetition_penalty", kept},
    {"suppress_tokens", kept},
    {"temperature", kept},
    {"top_k", kept},
    {"top_p", kept},
    {"typical_p", kept},
};

const HfFormat& format_named(std::string_view model_type) {
  std::vector<std::string_view> known;
  for (const ArchitectureRow& row : models()) {
    if (!row.hf) continue;
    if (row.hf->model_type == model_type) return *row.hf;
    known.push_back(row.hf->model_type);
  }
  throw IoError(
      fmt::format("config.json: model_type = \"{}\": expected one of {}", model_type, fmt::join(known, ", ")));
}

bool is_token_id(std::string_view name) {
  return name.ends_with("_token_id");
}

// True for null, for a token id within the vocabulary, and for a list of such ids.
bool are_token_ids(const Json& value, int64_t vocab) {
  const auto is_id = [&](const Json& id) {
    return id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < vocab;
  };
  return value.is_null() || is_id(value) || (value.is_array() && std::all_of(value.begin(), value.end(), is_id));
}

std::optional<ModelConfig> shape_in(const Json& source) {
  try {
    return config_from_hf(source);
  } catch (const IoError&) {
    return std::nullopt;
  }
}

bool same_blocks(const ModelConfig& a, const ModelConfig& b) {
  return a.arch == b.arch && a.layers == b.layers && a.dim == b.dim && a.heads == b.heads &&
         a.kv_heads_or_all() == b.kv_heads_or_all() && a.ffn_or_default() == b.ffn_or_default();
}

bool is_of_classes(std::string_view name) {
  constexpr std::string_view kNames[] = {"id2label", "label2id", "num_labels", "_num_labels", "problem_type"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

std::vector<HfField> hf_fields(std::string_view model_type) {
  const HfFormat& format = format_named(model_type);
  std::vector<HfField> rows(format.fields.begin(), format.fields.end());
  for (const HfField& row : kCommonFields)  // rows of the model_type take precedence
    if (std::none_of(format.fields.begin(), format.fields.end(), [&](const HfField& f) { return f.name == row.name; }))
      rows.push_back(row);
  return rows;
}

void check_hf_fields(const Json& config, std::string_view model_type) {
  const std::vector<HfField> rows = hf_fields(model_type);
  for (const auto& [name, value] : config.items()) {
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&, &name = name](const HfField& f) { return f.name == name; });
    if (row == rows.end()) {
      if (value.is_null()) continue;
      const std::string_view near = nearest_name(name, names_of(rows));
      throw IoError(fmt::format(
          "config.json: {} = {}: unknown field for model_type {}{}. Remove it if it does not change the computation",
          name, value.dump(), model_type, near.empty() ? "" : fmt::format(" (nearest known field: {})", near)));
    }
    if (row->use == read && value.is_null() && row->values != "null")
      throw IoError(fmt::format("config.json: {} = null: expected a value", name));
    if (row->use != fixed) continue;
    const Json accepted = Json::parse(row->values);
    if (std::find(accepted.begin(), accepted.end(), value) == accepted.end())
      throw IoError(fmt::format("config.json: {} = {} is not supported; expected {}", name, value.dump(),
                                accepted.front().dump()));
  }
}

void keep_hf_fields(Json& exported, const Json& source, const ModelConfig& config) {
  const std::optional<ModelConfig> shape = shape_in(source);
  if (!shape) return;
  const bool same = same_blocks(*shape, config), same_classes = same && shape->num_classes == config.num_classes;
  for (const HfField& row : hf_fields(source.at("model_type").get<std::string>())) {
    const auto at = source.find(row.name);
    if (at == source.end()) {  // if the source has no problem_type, the one that the export wrote is cleared
      if (same_classes && row.name == "problem_type" && exported.contains(row.name)) exported["problem_type"] = nullptr;
      continue;
    }
    if (is_token_id(row.name) ? are_token_ids(*at, config.vocab)
                              : row.use == kept && (is_of_classes(row.name) ? same_classes : same))
      exported[std::string(row.name)] = *at;
  }
  // Rotary positions have no table, so a model trained on shorter sequences still works up to its original maximum
  // length. The export keeps that length.
  if (same && config.positions == Positions::rotary && shape->rope == config.rope && shape->seq_len > config.seq_len)
    exported["max_position_embeddings"] = shape->seq_len;
}

}  // namespace esp::model
