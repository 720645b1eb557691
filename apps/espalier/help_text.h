// Help that fits a screen: where a command has very many options, short ones stand two in a row.
#pragma once

#include <CLI/CLI.hpp>

namespace esp::app {

class HelpText : public CLI::Formatter {
 public:
  std::string make_group(std::string group, bool is_positional, std::vector<const CLI::Option*> options) const override;
};

}  // namespace esp::app
