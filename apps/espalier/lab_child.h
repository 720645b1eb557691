// Child processes of labs. They are started together, their output is captured, and a deadline kills them.
#pragma once

#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/launch/environment.h"

namespace esp::app {

struct ChildCommand {
  std::vector<std::string> command;  // command[0] is a path, or a name that is looked up in PATH
  launch::Environment environment;   // variables added to this process's environment
};

struct ChildResult {
  int code = -1;  // exit code; 128+n: ended by signal n; 124: killed at the deadline
  std::string out, err;
};

// Runs all commands at once and returns when all have ended. A child that exceeds the limit is killed.
std::vector<ChildResult> run_children(const std::vector<ChildCommand>& orders, Duration limit);
// Runs one command and returns its output. If it fails, throws IoError with its last output.
std::string run_or_throw(const std::vector<std::string>& command, Duration limit);

}  // namespace esp::app
