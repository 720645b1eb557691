// Another of our own subcommands, in a process of its own.
#pragma once

#include <string>
#include <vector>

#include "esp/base/clock.h"

namespace esp::app {

// Runs it to its end, its stdout dropped. IoError, with what it said on stderr: it failed, or was not
// done in time and was killed.
void run_ourselves(const std::vector<std::string>& arguments, Duration limit);

}  // namespace esp::app
