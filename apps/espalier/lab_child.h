// Child processes of labs: started together, with captured output, killed at a deadline.
#pragma once

#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/launch/environment.h"

namespace esp::app {

struct Order {
  std::vector<std::string> command;  // [0] is a path, or looked up in PATH
  launch::Environment environment;   // added to this process's environment
};

struct Ended {
  int code = -1;  // 128+n for signal n; 124: killed at the deadline
  std::string out, err;
};

// Runs all at once; returns when all have ended. Kills those that exceed the limit.
std::vector<Ended> run_together(const std::vector<Order>& orders, Duration limit);
// Runs one; IoError with its last output when it fails.
std::string run_or_throw(const std::vector<std::string>& command, Duration limit);

}  // namespace esp::app
