// Agent: one host's launcher of a job that may span several. The agents of all hosts meet at one endpoint and agree,
// round by round, where the ranks meet, how the round ended and whether there is another.
//
// A round is one start of all ranks. It has a hub of its own, kept by the first host's agent, so that ranks of an
// earlier round find no way into a later one. When a rank fails anywhere, every host ends its ranks, the likeliest
// cause of all hosts is told by all of them, and the next round begins if a restart makes sense and the count allows.
// An agent that is lost ends the job: its host's ranks died with it. On a single host, where the ranks know how
// (control.h), a round is opened for those that live and for one in the place of each that died (reform.h), and only
// when that fails are all ended and started again.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/log.h"
#include "esp/launch/local.h"
#include "esp/net/world.h"

namespace esp::launch {

struct AgentOptions {
  int num_nodes = 1, node_rank = 0, per_node = 1;
  // Hosts may come and go between so many and num_nodes (elastic.h); 0: there are num_nodes, or none.
  int least_nodes = 0;
  std::string endpoint;  // host:port where the first host's agent listens; may be empty on a single host
  std::string job;       // name all hosts give; empty: made of the secret, on a single host random
  net::Secret secret;    // shared by all hosts; empty: random, on a single host
  net::NetOptions net;
  int max_restarts = 0;
  std::vector<std::string> command;
  Environment environment;                       // on top of what is inherited
  Duration meeting = std::chrono::seconds(300);  // for all hosts to come
  // Ranks hear of a lost peer by themselves; those that have not ended this long after a failure on another host are
  // ended.
  Duration patience = std::chrono::seconds(5);
  bool in_place = false;  // the command's ranks can go on in their processes without one that failed
  Duration reform_patience = std::chrono::seconds(10);  // for all of them to notice, and again to meet
  Duration grace = std::chrono::seconds(2);             // between SIGTERM and SIGKILL of ranks to be started again
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
// How a host's part of a round ended, from what its ranks left behind. `stuck`: why they could not go on in place.
RoundEnd end_of_round(int node, bool wants_requeue, const std::optional<Failure>& failure,
                      const std::optional<std::string>& stuck);
// What follows a round with this cause: the job has ended (well, or to be queued again), has failed, or begins again.
enum class Then { ended, failed, again };
Then after_round(const RoundEnd& cause, bool stopping, int num_restarts, int max_restarts);
// The end that explains the round: the likelier origin of a failure first, then the first host.
const RoundEnd& cause_of(const std::vector<RoundEnd>& ends);

// One epoch of a job whose hosts may change: until it ends, a host is lost, or `change_is_due` and the ranks have
// stopped in good order.
struct EpochEnd {
  std::optional<int> exit_code;  // of the job, when it has ended
  std::vector<int> lost;         // hosts, as numbered in this epoch
};
EpochEnd run_epoch(const AgentOptions& options, const std::function<bool()>& change_is_due, int& num_restarts);

// Runs the job on this host to its end. The exit code of the job, the same on every host. Throws UsageError, CommError.
int run_agent(const AgentOptions& options);

}  // namespace esp::launch
