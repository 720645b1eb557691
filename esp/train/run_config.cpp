#include "esp/train/run_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/base/toml.h"
#include "esp/base/toml_text.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/model/model.h"
#include "esp/obs/file.h"
#include "esp/sync/strategy_names.h"
#include "esp/train/data_pipeline.h"
#include "esp/train/hf_settings.h"
#include "esp/train/run_keys.h"
#include "esp/train/trained_model.h"

namespace esp::train {
namespace {

std::string_view type_of(const Field& field) {
  constexpr std::string_view kNames[] = {"true or false",
                                         "an integer",
                                         "a finite number",
                                         "a string",
                                         "a string or a list of strings",
                                         "auto or a number of steps >= 0"};
  return kNames[field.value.index()];
}

// True if the whole text is a number, possibly in a form that TOML does not have, such as .5.
bool is_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

// What to change in the value of a key that takes a number; empty if the text is no number.
std::string number_fix(const Field& field, std::string_view text) {
  const bool real = std::holds_alternative<double*>(field.value);
  if (!real && !std::holds_alternative<int64_t*>(field.value) && !std::holds_alternative<StepInterval*>(field.value))
    return {};
  if (!is_number(text)) return {};
  int64_t whole = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (!real && error == std::errc::result_out_of_range)
    return fmt::format(". The number is too {}: the {} is {}", text.front() == '-' ? "small" : "large",
                       text.front() == '-' ? "smallest" : "largest",
                       text.front() == '-' ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max());
  if (real || (error == std::errc() && end == text.data() + text.size()))
    return fmt::format(". Write the number without quotes, and with a digit before the point: {}{}",
                       text.starts_with("-.")  ? "-0"
                       : text.starts_with(".") ? "0"
                                               : "",
                       text.substr(text.starts_with("-.") ? 1 : 0));
  return {};
}

[[noreturn]] void refuse(const Field& field, const std::string& where, const toml::node& node) {
  std::ostringstream given;
  node.visit([&](const auto& value) { given << value; });
  const auto text = node.value_exact<std::string>();
  throw UsageError(fmt::format("{}: {}: got {}; expected {}{}", where, field.name(), given.str(), type_of(field),
                               text ? number_fix(field, *text) : ""));
}

void assign(const Field& field, const toml::node& node, const std::string& where) {
  std::visit(
      [&](auto* to) {
        using T = std::remove_pointer_t<decltype(to)>;
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          to->clear();
          if (auto one = node.value_exact<std::string>()) {
            to->push_back(*one);
          } else if (const toml::array* list = node.as_array()) {
            for (const toml::node& element : *list) {
              auto text = element.value_exact<std::string>();
              if (!text) refuse(field, where, node);
              to->push_back(*text);
            }
          } else {
            refuse(field, where, node);
          }
        } else if constexpr (std::is_same_v<T, StepInterval>) {
          const auto steps = node.value_exact<int64_t>();
          if (node.value_exact<std::string>() != "auto" && steps.value_or(-1) < 0) refuse(field, where, node);
          to->steps = steps;
        } else if constexpr (std::is_same_v<T, double>) {
          auto value = node.value<double>();
          if (!value || node.is_boolean() || !std::isfinite(*value)) refuse(field, where, node);
          *to = *value;
        } else {
          auto value = node.value_exact<T>();
          if (!value) refuse(field, where, node);
          *to = *value;
        }
      },
      field.value);
}

std::string where_of(std::string_view name, const toml::node& node) {
  return fmt::format("{}:{}:{}", name, node.source().begin.line, node.source().begin.column);
}

// Parses the value of an override as TOML. If that fails, the value is a string: name=abc needs no quotes.
toml::table parse_override(std::string_view value) {
  try {
    check_toml_text(value, "value");
    return toml::parse(fmt::format("value = {}", value));
  } catch (const std::exception&) {  // the value is not TOML, for any reason
    toml::table table;
    table.insert("value", std::string(value));
    return table;
  }
}

// A key that was renamed. Run files and checkpoints with the old name are still accepted.
struct RenamedKey {
  std::string_view section, key, section_now, key_now;
};
constexpr RenamedKey kRenamedKeys[] = {
    {"model", "experts", "model.moe", "experts"},      {"model", "experts_per_token", "model.moe", "top_k"},
    {"model", "expert_every", "model.moe", "every"},   {"model", "expert_capacity", "model.moe", "capacity_factor"},
    {"model", "expert_aux", "model.moe", "aux_loss"},  {"model", "expert_z", "model.moe", "z_loss"},
    {"model", "shared_expert", "model.moe", "shared"},
};

class Reader {
 public:
  Reader(RunConfig& config, UnknownKeys unknown)
      : fields_(fields(config)), skip_unknown_(unknown == UnknownKeys::skip), given_at_(fields_.size()) {}

  void read(const toml::table& file, std::string_view name, bool preset_only) {
    for (const auto& [section, node] : file) {
      const toml::table* table = node.as_table();
      if (!known_section(section.str()) && skip_unknown_) continue;
      if (!known_section(section.str()))
        unknown_name(fmt::format("section in {}", where_of(name, node)), section.str(), sections());
      if (!table) refuse_section(section.str(), where_of(name, node));
      read_section(section.str(), *table, name, preset_only);
    }
  }

  void override_one(const std::string& text, bool preset_only) {
    const size_t equals = text.find('='), dot = text.rfind('.', equals);
    if (equals == std::string::npos || dot == std::string::npos)
      throw UsageError(fmt::format("--set {}: expected section.key=value, for example train.lr=1e-3", text));
    const std::string where = fmt::format("--set {}", text);
    const Field& field = find(text.substr(0, dot), text.substr(dot + 1, equals - dot - 1), where);
    if (is_preset(field) != preset_only) return;
    given_at_[static_cast<size_t>(&field - fields_.data())] = where;
    const toml::table value = parse_override(std::string_view(text).substr(equals + 1));
    if (value.size() != 1)
      throw UsageError(
          fmt::format("{}: got several lines that set several keys; expected one value. Use one --set "
                      "for each key",
                      where));
    const toml::node* node = value.get("value");
    // A number given for a string key (run.name=7) becomes a string.
    if (std::holds_alternative<std::string*>(field.value) && !node->is_string()) {
      *std::get<std::string*>(field.value) = text.substr(equals + 1);
    } else {
      assign(field, *node, where);
    }
  }

  // True if the run file or --set sets the key.
  bool is_set(std::string_view section, std::string_view key) const {
    for (size_t i = 0; i < fields_.size(); ++i)
      if (fields_[i].section == section && fields_[i].key == key) return !given_at_[i].empty();
    return false;
  }

  // Throws if a key that this run does not read has a value other than its default.
  void refuse_unread(RunConfig defaults, RunConfig now) const {
    const std::vector<Field> before = fields(defaults), all = fields(now);
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (given_at_[i].empty() || fields_[i].value_text() == before[i].value_text()) continue;
      if (const std::string why = unread_reason(all, all[i]); !why.empty())
        throw UsageError(fmt::format("{}: {}", given_at_[i], why));
    }
  }

 private:
  void read_section(std::string_view section, const toml::table& table, std::string_view name, bool preset_only) {
    for (const auto& [key, value] : table) {
      const std::string within = fmt::format("{}.{}", section, key.str());
      if (known_section(within)) {
        if (!value.is_table()) refuse_section(within, where_of(name, value));
        read_section(within, *value.as_table(), name, preset_only);
        continue;
      }
      if (skip_unknown_ && !is_known(section, key.str())) continue;
      const Field& field = find(section, key.str(), where_of(name, value));
      if (is_preset(field) != preset_only) continue;
      assign(field, value, where_of(name, value));
      given_at_[static_cast<size_t>(&field - fields_.data())] = where_of(name, value);
    }
  }

  [[noreturn]] static void refuse_section(std::string_view section, const std::string& where) {
    throw UsageError(fmt::format("{}: {}: got a value; expected a section: [{}] once, and its keys below it", where,
                                 section, section));
  }

  // True for keys that determine the defaults of other [model] keys. They are read first.
  static bool is_preset(const Field& field) {
    return field.section == "model" && (field.key == "preset" || field.key == "init" || field.key == "arch");
  }

  std::vector<std::string_view> sections() const {
    std::vector<std::string_view> names;
    for (const Field& field : fields_)
      if (names.empty() || names.back() != field.section) names.push_back(field.section);
    return names;
  }
  bool known_section(std::string_view name) const {
    return std::any_of(fields_.begin(), fields_.end(), [&](const Field& f) { return f.section == name; });
  }

  bool is_known(std::string_view section, std::string_view key) const {
    const auto is_it = [&](const auto& row) { return row.section == section && row.key == key; };
    return std::any_of(fields_.begin(), fields_.end(), is_it) ||
           std::any_of(std::begin(kRenamedKeys), std::end(kRenamedKeys), is_it);
  }

  const Field& find(std::string_view section, std::string_view key, const std::string& where) const {
    if (!known_section(section)) unknown_name(fmt::format("section in {}", where), section, sections());
    for (const RenamedKey& former : kRenamedKeys)
      if (former.section == section && former.key == key) return find(former.section_now, former.key_now, where);
    std::vector<std::string_view> keys;
    for (const Field& field : fields_) {
      if (field.section != section) continue;
      if (field.key == key) return field;
      keys.push_back(field.key);
    }
    for (const Field& field : fields_)
      if (field.key == key && nearest_name(key, keys).empty())
        throw UsageError(fmt::format("{}: [{}] has no key \"{}\". Did you mean {}.{} ({})?", where, section, key,
                                     field.section, field.key, field.help));
    unknown_name(fmt::format("key of [{}] in {}", section, where), key, keys);
  }

  std::vector<Field> fields_;
  const bool skip_unknown_;
  std::vector<std::string> given_at_;  // for each field, the place where its value was set; empty: not set
};

// Defaults of [model]: the shape of the preset, or a small model of the given architecture.
ModelSection default_model(const ModelSection& given) {
  ModelSection section;
  if (!given.preset.empty()) {
    section = model_section(model::preset(given.preset).config);
    if (!given.arch.empty() && given.arch != section.arch)
      throw UsageError(fmt::format("model.arch = {}: model.preset = {} is a {}; remove one of them", given.arch,
                                   given.preset, section.arch));
  } else {
    const ModelSection sizes;
    section = model_section(model::default_config(given.arch.empty() ? sizes.arch : given.arch));
    section.layers = sizes.layers;
    section.heads = sizes.heads;
    section.dim = sizes.dim;
    section.seq_len = sizes.seq_len;
  }
  section.preset = given.preset;
  section.init = given.init;
  return section;
}

// Sets the model's shape and the tokenizer from model.init. A training run always has a head, even if model.init has
// none.
void apply_pretrained_config(RunConfig& config, const ModelSection& given) {
  const RunConfig source = resolve_run_config(given.init);
  if (!given.arch.empty() && given.arch != source.model.arch)
    throw UsageError(fmt::format("model.arch = {}: model.init = {} is a {}; remove model.arch", given.arch, given.init,
                                 source.model.arch));
  config.data.tokenizer = source.data.tokenizer;
  if (!given.preset.empty()) return;
  config.model = source.model;
  config.model.preset.clear();
  config.model.init = given.init;
  config.model.headless = false;
}

// Throws if model.init is a classifier that was trained with a loss other than cross-entropy over classes.
void check_problem_type(const std::string& init) {
  const Json source = hf_source_config(ckpt::is_hf_folder(init) ? init : resolve_checkpoint(init));
  const int64_t classes = resolve_run_config(init).model.classes;
  if (classes == 0) return;
  const auto at = source.find("problem_type");
  const std::string type = at != source.end() && at->is_string() ? at->get<std::string>()
                           : classes == 1                        ? "regression"
                                                                 : "single_label_classification";
  if (type != "single_label_classification")
    throw UsageError(
        fmt::format("model.init = {}: got a classifier with problem_type = \"{}\"; expected "
                    "\"single_label_classification\". Start from the encoder without a classifier (BertModel)",
                    init, type));
}

// Throws if the config.json of model.init has several dropout rates. The trainer has one rate for all layers.
void check_dropout_rates(const std::string& init) {
  if (!ckpt::is_hf_folder(init)) return;
  const Json source = hf_source_config(init);
  std::vector<std::string> rates;
  std::set<double> values;
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout_prob",
                          "attention_probs_dropout_prob", "attention_dropout"})
    if (const auto at = source.find(key); at != source.end() && at->is_number()) {
      values.insert(at->get<double>());
      rates.push_back(fmt::format("{} = {}", key, at->dump()));
    }
  // LLaMA drops attention probabilities only; the rate of all other layers is 0.
  if (source.contains("attention_dropout")) values.insert(0);
  if (values.size() > 1)
    throw UsageError(fmt::format(
        "model.init = {}: got {} in config.json; expected one dropout rate, because training uses model.dropout in "
        "every layer. Set model.dropout",
        init, fmt::join(rates, ", ")));
}

enum class Source { run_file, run_file_and_init, resolved, resolved_by_any_version };

RunConfig parse(std::string_view text, std::string_view name, const std::vector<std::string>& overrides,
                Source source) {
  const bool open_init = source == Source::run_file_and_init;
  const bool any_version = source == Source::resolved_by_any_version;
  toml::table file;
  check_toml_text(text, name);
  try {
    file = toml::parse(text, name);
  } catch (const TomlAssumption&) {
    throw UsageError(fmt::format("{}: got a table or key whose name begins with an invalid character", name));
  } catch (const toml::parse_error& error) {
    throw UsageError(
        fmt::format("{}:{}:{}: {}", name, error.source().begin.line, error.source().begin.column, error.description()));
  }
  RunConfig config;
  config.model.arch.clear();  // empty, to detect whether the file sets model.arch
  Reader reader(config, any_version ? UnknownKeys::skip : UnknownKeys::refuse);
  reader.read(file, name, true);
  for (const std::string& one : overrides) reader.override_one(one, true);
  const ModelSection given = config.model;
  config.model = default_model(given);
  if (open_init && !given.init.empty()) apply_pretrained_config(config, given);
  const RunConfig defaults = config;
  reader.read(file, name, false);
  for (const std::string& one : overrides) reader.override_one(one, false);
  // Only a classifier uses the pooler of a pretrained encoder.
  if (open_init && !given.init.empty()) {
    if (objective_name(config) == "classification")
      check_problem_type(given.init);
    else
      config.model.pooler = false;
    if (!reader.is_set("model", "dropout")) check_dropout_rates(given.init);
  }
  config.sync.method = sync::strategy_name(config.sync.method);
  if (any_version) return config;
  config.check();
  if (source != Source::resolved) reader.refuse_unread(defaults, normalised(config));
  return config;
}

}  // namespace

RunConfig parse_run_config(std::string_view text, std::string_view name, const std::vector<std::string>& overrides) {
  return parse(text, name, overrides, Source::run_file);
}

RunConfig parse_resolved_config(std::string_view text, std::string_view name, UnknownKeys unknown) {
  return parse(text, name, {}, unknown == UnknownKeys::skip ? Source::resolved_by_any_version : Source::resolved);
}

RunConfig read_run_config(const std::string& path, const std::vector<std::string>& overrides,
                          const std::optional<std::string>& copy) {
  RunConfig config =
      parse(copy ? *copy : obs::read_whole_file(path, kMaxRunFileBytes), path, overrides, Source::run_file_and_init);
  config.run.file = path;
  if (config.run.name.empty()) config.run.name = std::filesystem::path(path).stem().string();
  // The name is checked here and not in check(), because older checkpoints may contain other names.
  const std::string& name = config.run.name;
  if (name.find('/') != std::string::npos || name == "." || name == "..")
    throw UsageError(
        fmt::format("run.name = {}: must not be \".\" or \"..\" or contain \"/\", because the run folder is "
                    "runs/<name>. Set run.dir or --run-dir for a folder elsewhere",
                    name));
  return config;
}

namespace {

// Writes a TOML value. Strings are written in one line, because toml++ would end a multi-line string at the first '''
// in it.
void write(std::ostringstream& to, const toml::node& value) {
  constexpr auto kFlags = toml::toml_formatter::default_flags & ~toml::format_flags::allow_multi_line_strings;
  to << toml::toml_formatter(value, kFlags);
}

// The shortest text that TOML reads back as the same floating-point number.
std::string shortest(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

}  // namespace

std::string Field::name() const {
  return fmt::format("{}.{}", section, key);
}

std::string Field::value_text() const {
  std::ostringstream text;
  std::visit(
      [&](auto* from) {
        using T = std::remove_pointer_t<decltype(from)>;
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          toml::array list;
          for (const std::string& one : *from) list.push_back(one);
          write(text, list);
        } else if constexpr (std::is_same_v<T, StepInterval>) {
          if (from->automatic()) {
            write(text, toml::value<std::string>("auto"));
          } else {
            text << *from->steps;
          }
        } else if constexpr (std::is_same_v<T, double>) {
          text << shortest(*from);
        } else {
          write(text, toml::value<T>(*from));
        }
      },
      value);
  return text.str();
}

std::string to_toml(const RunConfig& config) {
  RunConfig copy = config;
  std::string text;
  std::string_view section;
  for (const Field& field : fields(copy)) {
    if (field.section != section) {
      section = field.section;
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("{} = {}\n", field.key, field.value_text());
  }
  return text;
}

bool is_resolved_text(const std::string& text) {
  try {
    return to_toml(parse_resolved_config(text, "run.toml", UnknownKeys::skip)) == text;
  } catch (const Error&) {
    return false;
  }
}

std::string describe_keys() {
  RunConfig defaults;
  std::string text =
      "# Which keys does a run file have?\n\nA run file is TOML. `--set section.key=value` overrides a key. An unknown "
      "key is an error that names the nearest key.\n`model.preset` and `model.arch` set the defaults of `[model]`. The "
      "run "
      "folder holds the resolved file, `run.toml`.\n`espalier train --keys` prints this page.\n\n"
      "*Read with*: the settings that use the key; with others, a value other than the default is an error.\n"
      "*Result*: the key changes the result; a resumed run\n[rejects another "
      "value](training.md#a-run-folder-knows-its-run-file).\n";
  std::string_view section;
  for (const Field& field : fields(defaults)) {
    if (field.section != section) {
      section = field.section;
      text += fmt::format("\n## [{}]\n\n| key | default | what it is | read with | result |\n|---|---|---|---|---|\n",
                          section);
    }
    text += fmt::format("| `{}` | `{}` | {} | {} | {} |\n", field.key, field.value_text(), field.help,
                        field.read_by.empty() ? "" : fmt::format("`{}`", field.read_by),
                        field.effect == Effect::result ? "yes" : "");
  }
  return text;
}

std::string run_folder_of(const RunConfig& config) {
  return config.run.dir.empty() ? "runs/" + config.run.name : config.run.dir;
}

std::string checkpoint_folder_of(const RunConfig& config) {
  return config.checkpoint.dir.empty() ? run_folder_of(config) + "/checkpoints" : config.checkpoint.dir;
}

}  // namespace esp::train
