// The option table as data: what every command takes, read from the very table that parses, for pages that describe it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/espalier/arguments.h"

namespace esp::app {

struct CommandText {
  std::vector<std::string> path;  // "plan", "search"; empty: the program itself
  std::string help, footer;
  std::vector<OptionText> options;                        // without hidden ones
  std::vector<std::pair<std::string, std::string>> subs;  // name, help; without hidden ones
  std::string joined(const char* between) const;          // "espalier plan search"
};

// The program first, then each command and after it its own.
std::vector<CommandText> command_texts(const Arguments& root);

}  // namespace esp::app
