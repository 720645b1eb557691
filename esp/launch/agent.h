// Agent: one host's launcher of a job that may span several. The agents of all hosts meet at one endpoint and agree,
// round by round, where the ranks meet, how the round ended and whether there is another.
//
// A round is one start of all ranks. It has a hub of its own, kept by the first host's agent, so that ranks of an
// earlier round find no way into a later one. When a rank fails anywhere, every host ends its ranks, the likeliest
// cause of all hosts is told by all of them, and the next round begins if a restart makes sense and the count allows.
// An agent that is lost ends the job: its host's ranks died with it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "esp/base/log.h"
#include "esp/launch/local.h"
#include "esp/net/world.h"

namespace esp::launch {

struct AgentOptions {
  int num_nodes = 1, node_rank = 0, per_node = 1;
  std::string endpoint;  // host:port where the first host's agent listens; may be empty on a single host
  std::string job;       // name all hosts give; empty: random, on a single host
  net::Secret secret;    // shared by all hosts; empty: random, on a single host
  net::NetOptions net;
  int max_restarts = 0;
  std::vector<std::string> command;
  Environment environment;                       // on top of what is inherited
  Duration meeting = std::chrono::seconds(300);  // for all hosts to come
  // Ranks hear of a lost peer by themselves; those that have not ended this long after a failure on another host are
  // ended.
  Duration patience = std::chrono::seconds(5);
  Log log;
  std::function<int()> signal;  // the signal this process was asked to stop with, 0 so far
};

struct RoundEnd {
  int node = 0;
  int exit_code = 0;  // 0: all ranks of the host ended well; 75: some stopped in good order before their work was done
  Failure failure;    // otherwise
};

// Whether starting again can help: not after what would fail the same way (usage, files, no such program).
bool worth_restarting(int exit_code);
// The end that explains the round: the likelier origin of a failure first, then the first host.
const RoundEnd& cause_of(const std::vector<RoundEnd>& ends);

// Runs the job on this host to its end. The exit code of the job, the same on every host. Throws UsageError, CommError.
int run_agent(const AgentOptions& options);

}  // namespace esp::launch
