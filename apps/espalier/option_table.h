// The option table of all commands, read from the parser. Manual pages and completion scripts are generated from it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/espalier/arguments.h"

namespace esp::app {

struct CommandText {
  std::vector<std::string> path;  // words of the command: "plan", "search"; empty: the program itself
  std::string help, footer;
  std::vector<OptionText> options;                        // without hidden options
  std::vector<std::pair<std::string, std::string>> subs;  // name and help of each subcommand, without hidden ones
  std::string joined(const char* between) const;  // all words, beginning with the program's: "espalier plan search"
};

// The program itself first, then each command followed by its subcommands.
std::vector<CommandText> command_texts(const Arguments& root);

}  // namespace esp::app
