#include "esp/train/run_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/base/toml.h"
#include "esp/base/toml_text.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/model/model.h"
#include "esp/obs/file.h"
#include "esp/sync/strategy_names.h"
#include "esp/train/feed.h"
#include "esp/train/hf_settings.h"
#include "esp/train/loaded.h"
#include "esp/train/run_keys.h"

namespace esp::train {
namespace {

std::string_view type_of(const Field& field) {
  constexpr std::string_view kNames[] = {"true or false",
                                         "a whole number",
                                         "a finite number",
                                         "a string",
                                         "a string or a list of strings",
                                         "auto or a number of steps, 0 or more"};
  return kNames[field.value.index()];
}

[[noreturn]] void refuse(const Field& field, const std::string& where, std::string_view given) {
  throw UsageError(fmt::format("{}: {} wants {}, not {}", where, field.name(), type_of(field), given));
}

void assign(const Field& field, const toml::node& node, const std::string& where) {
  std::ostringstream given;
  node.visit([&](const auto& value) { given << value; });
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
              if (!text) refuse(field, where, given.str());
              to->push_back(*text);
            }
          } else {
            refuse(field, where, given.str());
          }
        } else if constexpr (std::is_same_v<T, StepInterval>) {
          const auto steps = node.value_exact<int64_t>();
          if (node.value_exact<std::string>() != "auto" && steps.value_or(-1) < 0) refuse(field, where, given.str());
          to->steps = steps;
        } else if constexpr (std::is_same_v<T, double>) {
          auto value = node.value<double>();
          if (!value || node.is_boolean() || !std::isfinite(*value)) refuse(field, where, given.str());
          *to = *value;
        } else {
          auto value = node.value_exact<T>();
          if (!value) refuse(field, where, given.str());
          *to = *value;
        }
      },
      field.value);
}

std::string where_of(std::string_view name, const toml::node& node) {
  return fmt::format("{}:{}:{}", name, node.source().begin.line, node.source().begin.column);
}

// The value of an override is TOML where it parses as such, and a bare string otherwise: name=abc needs no quotes.
toml::table parse_override(std::string_view value) {
  try {
    check_toml_text(value, "value");
    return toml::parse(fmt::format("value = {}", value));
  } catch (const std::exception&) {  // a syntax error of one kind or another
    toml::table table;
    table.insert("value", std::string(value));
    return table;
  }
}

// Keys under their names of before: run files and checkpoints written with those are read.
struct Former {
  std::string_view section, key, section_now, key_now;
};
constexpr Former kFormer[] = {
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
    const toml::node* node = value.get("value");
    // A number given for a string (run.name=7) is that string.
    if (std::holds_alternative<std::string*>(field.value) && !node->is_string()) {
      *std::get<std::string*>(field.value) = text.substr(equals + 1);
    } else {
      assign(field, *node, where);
    }
  }

  // A key that was given another value than its default, and that nothing in this run reads.
  void refuse_unread(RunConfig defaults, RunConfig now) const {
    const std::vector<Field> before = fields(defaults), all = fields(now);
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (given_at_[i].empty() || fields_[i].value_text() == before[i].value_text()) continue;
      if (const std::string why = why_unread(all, all[i]); !why.empty())
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
    throw UsageError(fmt::format("{}: {} is a section: [{}] once, and its keys below it", where, section, section));
  }

  // What decides the defaults of the rest of [model], and is read first.
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
           std::any_of(std::begin(kFormer), std::end(kFormer), is_it);
  }

  const Field& find(std::string_view section, std::string_view key, const std::string& where) const {
    if (!known_section(section)) unknown_name(fmt::format("section in {}", where), section, sections());
    for (const Former& former : kFormer)
      if (former.section == section && former.key == key) return find(former.section_now, former.key_now, where);
    std::vector<std::string_view> keys;
    for (const Field& field : fields_) {
      if (field.section != section) continue;
      if (field.key == key) return field;
      keys.push_back(field.key);
    }
    for (const Field& field : fields_)
      if (field.key == key && nearest_name(key, keys).empty())
        throw UsageError(fmt::format("unknown key of [{}] in {} \"{}\"; there is {}.{}: {}", section, where, key,
                                     field.section, field.key, field.help));
    unknown_name(fmt::format("key of [{}] in {}", section, where), key, keys);
  }

  std::vector<Field> fields_;
  const bool skip_unknown_;
  std::vector<std::string> given_at_;  // by field: where it was given; empty: it was not
};

// The preset's shape, or a small one of the architecture's habits.
ModelSection default_model(const ModelSection& given) {
  ModelSection section;
  if (!given.preset.empty()) {
    section = model_section(model::preset(given.preset).config);
    if (!given.arch.empty() && given.arch != section.arch)
      throw UsageError(fmt::format("model.arch = {}: model.preset = {} is a {}; leave one of them out", given.arch,
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

// The shape and the tokenizer of what model.init names; a run trains, so there is to be a head.
void begin_with(RunConfig& config, const ModelSection& given) {
  const RunConfig source = config_at(given.init);
  if (!given.arch.empty() && given.arch != source.model.arch)
    throw UsageError(
        fmt::format("model.arch = {}: model.init = {} is a {}", given.arch, given.init, source.model.arch));
  config.data.tokenizer = source.data.tokenizer;
  if (!given.preset.empty()) return;
  config.model = source.model;
  config.model.preset.clear();
  config.model.init = given.init;
  config.model.headless = false;
}

// A head that was trained for another loss than the cross entropy over classes is not trained on with it.
void check_problem_type(const std::string& init) {
  const Json source = hf_source_config(ckpt::is_hf_folder(init) ? init : checkpoint_at(init));
  const int64_t classes = config_at(init).model.classes;
  if (classes == 0) return;
  const auto at = source.find("problem_type");
  const std::string type = at != source.end() && at->is_string() ? at->get<std::string>()
                           : classes == 1                        ? "regression"
                                                                 : "single_label_classification";
  if (type != "single_label_classification")
    throw UsageError(
        fmt::format("model.init = {}: got a classifier with problem_type = \"{}\"; expected "
                    "\"single_label_classification\", whose loss is trained. Begin with the encoder alone (BertModel)",
                    init, type));
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
    throw UsageError(fmt::format("{}: a table or key begins with a character that no key may have", name));
  } catch (const toml::parse_error& error) {
    throw UsageError(
        fmt::format("{}:{}:{}: {}", name, error.source().begin.line, error.source().begin.column, error.description()));
  }
  RunConfig config;
  config.model.arch.clear();  // to tell whether one is named
  Reader reader(config, any_version ? UnknownKeys::skip : UnknownKeys::refuse);
  reader.read(file, name, true);
  for (const std::string& one : overrides) reader.override_one(one, true);
  const ModelSection given = config.model;
  config.model = default_model(given);
  if (open_init && !given.init.empty()) begin_with(config, given);
  const RunConfig defaults = config;
  reader.read(file, name, false);
  for (const std::string& one : overrides) reader.override_one(one, false);
  // The pooler of a pretrained encoder goes with a classifier only.
  if (open_init && !given.init.empty()) {
    if (objective_name(config) == "classification")
      check_problem_type(given.init);
    else
      config.model.pooler = false;
  }
  config.sync.method = sync::strategy_name(config.sync.method);
  if (any_version) return config;
  config.check();
  if (source != Source::resolved) reader.refuse_unread(defaults, settled(config));
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
  // Here and not in check(): checkpoints of runs that had such names are read.
  const std::string& name = config.run.name;
  if (name.find('/') != std::string::npos || name == "." || name == "..")
    throw UsageError(
        fmt::format("run.name = {}: it names the folder runs/<name>: no \"/\", \".\" or \"..\"; run.dir "
                    "or --run-dir names a folder anywhere",
                    name));
  return config;
}

namespace {

// In one line: the library's strings of several lines end at the first ''' within.
void write(std::ostringstream& to, const toml::node& value) {
  constexpr auto kFlags = toml::toml_formatter::default_flags & ~toml::format_flags::allow_multi_line_strings;
  to << toml::toml_formatter(value, kFlags);
}

// The shortest text that reads back as the same number, and as one that is no whole number to TOML.
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

std::string describe_keys() {
  RunConfig defaults;
  std::string text =
      "# The run file\n\nTOML; `--set section.key=value` overrides any key, and an unknown key is an error that names "
      "the "
      "nearest\none. With `model.preset` the defaults of `[model]` are the preset's, with `model.arch` that "
      "architecture's. The\nresolved file is written into the run folder as `run.toml`. This page is what `espalier "
      "train "
      "--keys` prints.\n\n"
      "*Read with*: the choices that read the key. Any other run refuses a value that is not the default.\n"
      "*Result*: the key changes the result. A run that resumes refuses another value, see\n"
      "[a run folder knows its run file](training.md#a-run-folder-knows-its-run-file).\n";
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
