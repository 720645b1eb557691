#include "apps/espalier/option_table.h"

#include <algorithm>

namespace esp::app {
namespace {

void collect(const Arguments& command, const std::vector<std::string>& path, std::vector<CommandText>& all) {
  CommandText text{path, command.help(), command.footer(), command.options(), {}};
  std::erase_if(text.options, [](const OptionText& option) { return option.hidden; });
  std::vector<Arguments> subs = command.subcommands();
  std::erase_if(subs, [](const Arguments& sub) { return sub.hidden(); });
  for (const Arguments& sub : subs) text.subs.emplace_back(sub.name(), sub.help());
  all.push_back(std::move(text));
  for (const Arguments& sub : subs) {
    std::vector<std::string> deeper = path;
    deeper.push_back(sub.name());
    collect(sub, deeper, all);
  }
}

}  // namespace

std::string CommandText::joined(const char* between) const {
  std::string text = "espalier";
  for (const std::string& word : path) text += between + word;
  return text;
}

std::vector<CommandText> command_texts(const Arguments& root) {
  std::vector<CommandText> all;
  collect(root, {}, all);
  return all;
}

}  // namespace esp::app
