// Runs another espalier subcommand in a child process (self-exec).
#pragma once

#include <string>
#include <vector>

#include "esp/base/clock.h"

namespace esp::app {

// Waits until the child ends and discards its stdout. IoError: the child failed, or was killed at the time limit;
// contains its stderr.
void run_self(const std::vector<std::string>& arguments, Duration limit);

}  // namespace esp::app
