// Elastic launch: a job whose number of hosts may change between a minimum and a maximum. The hosts change only between
// epochs (elastic_rendezvous.h).
#pragma once

#include "esp/launch/agent.h"

namespace esp::launch {

// Runs the job on this host until the job ends. Returns the exit code of the job. CommError if host 0 is lost or fewer
// than min_nodes hosts remain.
int run_elastic(const AgentOptions& options);

}  // namespace esp::launch
