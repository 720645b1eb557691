#include "esp/train/run_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/base/toml.h"
#include "esp/base/toml_text.h"
#include "esp/model/model.h"
#include "esp/obs/file.h"
#include "esp/train/feed.h"
#include "esp/train/loaded.h"

namespace esp::train {
namespace {

constexpr size_t kMaxRunFileBytes = size_t{1} << 20;

std::string qualified(const Field& field) {
  return fmt::format("{}.{}", field.section, field.key);
}

std::string_view type_of(const Field& field) {
  constexpr std::string_view kNames[] = {"true or false", "a whole number", "a finite number", "a string",
                                         "a string or a list of strings"};
  return kNames[field.value.index()];
}

[[noreturn]] void refuse(const Field& field, const std::string& where, std::string_view given) {
  throw UsageError(fmt::format("{}: {} wants {}, not {}", where, qualified(field), type_of(field), given));
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
  explicit Reader(RunConfig& config) : fields_(fields(config)) {}

  void read(const toml::table& file, std::string_view name, bool preset_only) {
    for (const auto& [section, node] : file) {
      const toml::table* table = node.as_table();
      if (!known_section(section.str()))
        unknown_name(fmt::format("section in {}", where_of(name, node)), section.str(), sections());
      if (!table) refuse_section(section.str(), where_of(name, node));
      read_section(section.str(), *table, name, preset_only);
    }
  }

  void override_one(const std::string& text, bool preset_only) {
    const size_t equals = text.find('='), dot = text.rfind('.', equals);
    if (equals == std::string::npos || dot == std::string::npos)
      throw UsageError(fmt::format("--set {}: section.key=value is wanted, for example train.lr=1e-3", text));
    const std::string where = fmt::format("--set {}", text);
    const Field& field = find(text.substr(0, dot), text.substr(dot + 1, equals - dot - 1), where);
    if (is_preset(field) != preset_only) return;
    const toml::table value = parse_override(std::string_view(text).substr(equals + 1));
    const toml::node* node = value.get("value");
    // A number given for a string (run.name=7) is that string.
    if (std::holds_alternative<std::string*>(field.value) && !node->is_string()) {
      *std::get<std::string*>(field.value) = text.substr(equals + 1);
    } else {
      assign(field, *node, where);
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
      const Field& field = find(section, key.str(), where_of(name, value));
      if (is_preset(field) == preset_only) assign(field, value, where_of(name, value));
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

RunConfig parse(std::string_view text, std::string_view name, const std::vector<std::string>& overrides,
                bool open_init) {
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
  Reader reader(config);
  reader.read(file, name, true);
  for (const std::string& one : overrides) reader.override_one(one, true);
  const ModelSection given = config.model;
  config.model = default_model(given);
  if (open_init && !given.init.empty()) begin_with(config, given);
  reader.read(file, name, false);
  for (const std::string& one : overrides) reader.override_one(one, false);
  // The pooler of a pretrained encoder goes with a classifier only.
  if (open_init && !given.init.empty() && objective_name(config) != "classification") config.model.pooler = false;
  config.check();
  return config;
}

}  // namespace

RunConfig parse_run_config(std::string_view text, std::string_view name, const std::vector<std::string>& overrides) {
  return parse(text, name, overrides, false);
}

RunConfig read_run_config(const std::string& path, const std::vector<std::string>& overrides) {
  RunConfig config = parse(obs::read_whole_file(path, kMaxRunFileBytes), path, overrides, true);
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

std::string value_text(const Field& field) {
  std::ostringstream value;
  std::visit(
      [&](auto* from) {
        using T = std::remove_pointer_t<decltype(from)>;
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          toml::array list;
          for (const std::string& one : *from) list.push_back(one);
          write(value, list);
        } else if constexpr (std::is_same_v<T, double>) {
          value << shortest(*from);
        } else {
          write(value, toml::value<T>(*from));
        }
      },
      field.value);
  return value.str();
}

}  // namespace

std::string to_toml(const RunConfig& config) {
  RunConfig copy = config;
  std::string text;
  std::string_view section;
  for (const Field& field : fields(copy)) {
    if (field.section != section) {
      section = field.section;
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("{} = {}\n", field.key, value_text(field));
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
      "--keys` prints.\n";
  std::string_view section;
  for (const Field& field : fields(defaults)) {
    if (field.section != section) {
      section = field.section;
      text += fmt::format("\n## [{}]\n\n| key | default | what it is |\n|---|---|---|\n", section);
    }
    text += fmt::format("| `{}` | `{}` | {} |\n", field.key, value_text(field), field.help);
  }
  return text;
}

std::string run_folder_of(const RunConfig& config) {
  return config.run.dir.empty() ? "runs/" + config.run.name : config.run.dir;
}

}  // namespace esp::train
