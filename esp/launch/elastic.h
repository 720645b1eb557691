// A job whose hosts may come and go between a least and a most number, epoch by epoch (lobby.h).
#pragma once

#include "esp/launch/agent.h"

namespace esp::launch {

// This host's part of it, to its end. The exit code of the job. CommError when the first host is gone, or too few are
// left.
int run_elastic(const AgentOptions& options);

}  // namespace esp::launch
