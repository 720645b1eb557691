#include "apps/espalier/option_table.h"

namespace esp::app {
namespace {

OptionText text_of(const CLI::Option& option) {
  OptionText text;
  text.positional = option.get_positional() && !option.nonpositional();
  text.required = option.get_required();
  text.help = option.get_description();
  if (text.positional) {
    text.names.push_back(option.get_name(true));
  } else {
    for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  }
  if (option.get_items_expected_max() > 0) text.value = option.get_type_name();
  // A check adds what it accepts behind the name; the name says it already.
  text.value = text.value.substr(0, text.value.find(":{"));
  return text;
}

void collect(const CLI::App& app, const std::vector<std::string>& path, std::vector<CommandText>& all) {
  CommandText text{path, app.get_description(), app.get_footer(), {}, {}};
  for (const CLI::Option* option : app.get_options())
    if (!option->get_group().empty()) text.options.push_back(text_of(*option));
  const auto subs = app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
  for (const CLI::App* sub : subs) text.subs.emplace_back(sub->get_name(), sub->get_description());
  all.push_back(std::move(text));
  for (const CLI::App* sub : subs) {
    std::vector<std::string> deeper = path;
    deeper.push_back(sub->get_name());
    collect(*sub, deeper, all);
  }
}

}  // namespace

std::string CommandText::joined(const char* between) const {
  std::string text = "espalier";
  for (const std::string& word : path) text += between + word;
  return text;
}

std::vector<CommandText> command_texts(const CLI::App& root) {
  std::vector<CommandText> all;
  collect(root, {}, all);
  return all;
}

}  // namespace esp::app
