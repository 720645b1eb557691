// Programs that labs run beside themselves: started together, their output kept, ended at a deadline.
#pragma once

#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/launch/environment.h"

namespace esp::app {

struct Order {
  std::vector<std::string> command;  // [0] is a path, or looked up in PATH
  launch::Environment environment;   // on top of ours
};

struct Ended {
  int code = -1;  // 128+n for signal n; 124: killed at the deadline
  std::string out, err;
};

// All at once; returns when all have ended. Whatever outlives the limit is killed.
std::vector<Ended> run_together(const std::vector<Order>& orders, Duration limit);
// One; IoError with its last words when it fails.
std::string run_or_throw(const std::vector<std::string>& command, Duration limit);

}  // namespace esp::app
