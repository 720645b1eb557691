#include "apps/espalier/help_text.h"

#include <algorithm>

#include <fmt/format.h>

namespace esp::app {
namespace {

constexpr size_t kMany = 36;              // options, beyond which rows are shared
constexpr size_t kName = 20, kHelp = 36;  // characters of an entry that can share a row
constexpr size_t kColumn = 2 + kName + kHelp + 1;

size_t shown_width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, size_t width) {
  const size_t shown = shown_width(text);
  return text + std::string(width > shown ? width - shown : 0, ' ');
}

}  // namespace

std::string HelpText::make_group(std::string group, bool is_positional, std::vector<const CLI::Option*> options) const {
  if (options.size() <= kMany) return CLI::Formatter::make_group(group, is_positional, options);
  std::string text = fmt::format("\n{}:\n", group), left;
  for (const CLI::Option* option : options) {
    const std::string name = make_option_name(option, is_positional) + make_option_opts(option);
    const std::string help = make_option_desc(option);
    if (shown_width(name) < kName && shown_width(help) <= kHelp) {
      const std::string entry = fmt::format("  {}{}", padded(name, kName), help);
      text += left.empty() ? "" : padded(left, kColumn) + entry + "\n";
      left = left.empty() ? entry : "";
      continue;
    }
    if (!left.empty()) text += left + "\n";
    left.clear();
    text += CLI::Formatter::make_option(option, is_positional);
  }
  return left.empty() ? text : text + left + "\n";
}

}  // namespace esp::app
