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

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/log.h"
#include "esp/launch/local.h"
#include "esp/net/world.h"

namespace esp::launch {

class Reform;  // reform.h

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
  Environment environment;  // on top of what is inherited
  // Ranks hear of a lost peer by themselves; those that have not ended this long after a failure on another host are
  // ended.
  Duration patience = std::chrono::seconds(5);
  bool plain_stdout = false;  // the first rank's stdout is forwarded without prefix
  bool in_place = false;      // the command's ranks can go on in their processes without one that failed
  Duration reform_patience = std::chrono::seconds(10);  // for all of them to notice, and again to meet
  Duration grace = std::chrono::seconds(2);             // between SIGTERM and SIGKILL of ranks to be started again
  // The highest step that the ranks have reached; null where it is not known. After kMaxRestartsWithoutStep restarts
  // in a row that made no higher one the job ends with the cause.
  std::function<int64_t()> highest_step;
  std::function<void()> restarting;  // called before ranks are started again; may be null
  Log log;
  std::function<int()> signal;  // the signal this process was asked to stop with, 0 so far
};

struct RoundEnd {
  int node = 0;
  int exit_code = 0;  // 0: all ranks of the host ended well; 75: some stopped in good order before their work was done
  Failure failure;    // otherwise
  // As the host that knows the ranks' steps says: restarting has not helped any more. The step it ended at.
  std::optional<int64_t> stuck_at_step = {};
};

// Whether starting again can help: not after what would fail the same way (usage, files, training, no such program).
bool worth_restarting(int exit_code);
// How a host's part of a round ended, from what its ranks left behind. `failure`: the first of them that explains the
// others; `reform`: how they fared in place.
RoundEnd end_of_round(int node, bool wants_requeue, std::optional<Failure> failure, const Reform& reform);
inline constexpr int kMaxRestartsWithoutStep = 3;
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
