// The option table as data: what every command takes, read from the very table that parses, for pages that describe it.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/command.h"

namespace esp::app {

struct OptionText {
  std::vector<std::string> names;  // "--nproc", "-b"; of a positional one its name
  std::string value;               // "N", "auto|shm|tcp"; empty: it takes none
  std::string help;
  bool positional = false, required = false;
};

struct CommandText {
  std::vector<std::string> path;  // "plan", "search"; empty: the program itself
  std::string help, footer;
  std::vector<OptionText> options;
  std::vector<std::pair<std::string, std::string>> subs;  // name, help
  std::string joined(const char* between) const;          // "espalier plan search"
};

// The program first, then each command and after it its own.
std::vector<CommandText> command_texts(const CLI::App& root);

}  // namespace esp::app
