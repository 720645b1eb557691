#include "esp/train/run_keys.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/sync/strategy_names.h"
#include "esp/train/data_pipeline.h"

namespace esp::train {
namespace {

std::vector<std::string_view> split(std::string_view text, std::string_view at) {
  std::vector<std::string_view> parts;
  for (size_t end = 0; end != text.npos;) {
    end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end != text.npos) text.remove_prefix(end + at.size());
  }
  return parts;
}

struct Condition {
  std::string_view key;
  bool equal;  // true: the key's value must be one of `values`; false: it must be none of them
  std::vector<std::string_view> values;
};

Condition parse_condition(std::string_view text) {
  const bool equal = text.find(" != ") == text.npos;
  const auto sides = split(text, equal ? " = " : " != ");
  ESP_CHECK(sides.size() == 2, "Field::read_by: got condition \"{}\"; expected one = or !=", text);
  return {sides[0], equal, split(sides[1], ", ")};
}

const Field& find(const std::vector<Field>& all, std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Field& field) { return field.name() == name; });
  ESP_CHECK(found != all.end(), "Field::read_by: got unknown key {}", name);
  return *found;
}

bool holds(const std::vector<Field>& all, const Condition& condition) {
  const Field& field = find(all, condition.key);
  const std::string value = plain_text(field);
  bool named = false;
  for (const std::string_view word : split(value, ","))
    named = named || std::find(condition.values.begin(), condition.values.end(), word.substr(0, word.find(':'))) !=
                         condition.values.end();
  return named == condition.equal && is_read(all, field);
}

// Returns the first condition that does not hold in the first alternative of read_by.
Condition first_unmet(const std::vector<Field>& all, const Field& field) {
  const std::string_view first = split(field.read_by, " or ").front();
  for (const std::string_view text : split(first, " and "))
    if (const Condition condition = parse_condition(text); !holds(all, condition)) return condition;
  ESP_CHECK(false, "{} has no unmet condition", field.name());
}

}  // namespace

std::string plain_text(const Field& field) {
  const auto* text = std::get_if<std::string*>(&field.value);
  return text && !(*text)->empty() ? **text : field.value_text();
}

RunConfig normalised(RunConfig config) {
  config.data.objective = objective_name(config);
  const model::ModelConfig shape = model_config(config.model);
  ModelSection model = model_section(shape);
  model.preset = config.model.preset;
  model.init = config.model.init;
  model.kv_heads = shape.kv_heads_or_all();
  model.ffn = shape.ffn_or_default();
  config.model = model;
  config.sync.method = sync::strategy_name(config.sync.method);
  return config;
}

bool is_read(const std::vector<Field>& all, const Field& field) {
  if (field.read_by.empty()) return true;
  for (const std::string_view alternative : split(field.read_by, " or ")) {
    const auto conditions = split(alternative, " and ");
    if (std::all_of(conditions.begin(), conditions.end(),
                    [&](std::string_view text) { return holds(all, parse_condition(text)); }))
      return true;
  }
  return false;
}

bool may_differ_by_rank(const Field& field) {
  constexpr std::string_view kKeys[] = {
      "run.name",         "run.file",  // only names; the folder that they lead to is compared as run.dir
      "run.threads",      "run.device_memory_mb",
      "sync.offload_dir", "sync.offload_io",  // these depend on the host
      "data.train",       "data.val",
      "data.tokenizer",   "data.cache",
      "model.init",  // paths, not compared; the content of the files is compared instead
  };
  return std::find(std::begin(kKeys), std::end(kKeys), field.name()) != std::end(kKeys);
}

std::string unread_reason(const std::vector<Field>& all, const Field& field) {
  if (is_read(all, field)) return {};
  std::string needed(field.read_by);
  const Field* broken = &find(all, first_unmet(all, field).key);
  while (!is_read(all, *broken)) {
    needed += fmt::format(", which needs {}", broken->read_by);
    broken = &find(all, first_unmet(all, *broken).key);
  }
  return fmt::format("{} = {}: used only with {}; this run has {} = {}. Change that, or leave {} out.", field.name(),
                     plain_text(field), needed, broken->name(), plain_text(*broken), field.name());
}

}  // namespace esp::train
