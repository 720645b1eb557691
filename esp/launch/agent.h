// Agent: the launcher of one host (as in torchrun). A job may span several hosts. The agents of all hosts connect to
// one endpoint. For each round they share the rendezvous endpoint of the ranks and the result of the round, and decide
// whether another round follows.
//
// A round is one start of all ranks. Host 0's agent creates a new hub for each round, so ranks of an earlier round
// cannot join a later one. When a rank fails on any host, every host ends its ranks and reports the same root cause.
// The next round starts if a restart can help and max_restarts allows it. If an agent is lost, the job ends, because
// the ranks of its host died with it.
//
// On a single host the ranks may support restart in place (control.h). Then only the failed ranks are replaced
// (in_place_restart.h). If the restart in place fails, all ranks are restarted.
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

class InPlaceRestart;  // defined in in_place_restart.h

struct AgentOptions {
  int num_nodes = 1, node_rank = 0, per_node = 1;
  // For an elastic job (elastic.h): the number of hosts may vary from min_nodes to num_nodes. 0: not elastic, always
  // num_nodes.
  int min_nodes = 0;
  std::string endpoint;  // host:port where the agent of host 0 listens; may be empty on a single host
  std::string job;  // job name, equal on all hosts; empty: derived from the secret (several hosts) or random (one host)
  net::Secret secret;  // shared by all hosts; empty (single host only): random
  net::NetOptions net;
  int max_restarts = 0;
  std::vector<std::string> command;
  Environment environment;  // added to the inherited environment
  // After a failure on another host, how long this host's ranks may still run before they are terminated. Usually they
  // detect the lost peer earlier and end by themselves.
  Duration stop_timeout = std::chrono::seconds(5);
  bool plain_stdout = false;  // forwards rank 0's stdout without the prefix "[rank 0]"
  bool in_place = false;      // the command's ranks support restart in place
  // Limit for each of two waits: until all ranks have reported the lost peer, and until all ranks have reconnected.
  Duration in_place_timeout = std::chrono::seconds(10);
  Duration grace = std::chrono::seconds(2);  // when all ranks are restarted: time between SIGTERM and SIGKILL
  // Returns the highest step that the ranks have reached; a null function means that it is unknown. If
  // kMaxRestartsWithoutStep consecutive restarts reach no higher step, the job ends and reports the cause of the
  // failure.
  std::function<int64_t()> highest_step;
  std::function<void()> on_restart;  // called before ranks are restarted; may be null
  Log log;
  std::function<int()> signal;  // returns the stop signal that this process received; 0: none
};

// The result of one round on one host.
struct RoundResult {
  int node = 0;
  // 0: all ranks of the host succeeded; 75: some ranks stopped early with a checkpoint; other values: failure
  int exit_code = 0;
  Failure failure;  // the failure, if exit_code is neither 0 nor 75
  // The highest step reached. Set by host 0 when restarts no longer make progress.
  std::optional<int64_t> stuck_at_step = {};
};

// Whether a restart can help after this exit code. False for failures that would repeat: wrong usage, unusable files,
// diverged training, a program that cannot be run.
bool worth_restarting(int exit_code);
// Makes the result of a round on one host. `failure` is the root cause among the failures of its ranks. `restart` is
// the state of the in-place restart.
RoundResult make_round_result(int node, bool wants_requeue, std::optional<Failure> failure,
                              const InPlaceRestart& restart);
inline constexpr int kMaxRestartsWithoutStep = 3;
// What the agents do after a round: end the job with success or a requeue request (finish), end it with the failure
// (fail), or start the next round (restart).
enum class NextAction { finish, fail, restart };
NextAction next_action(const RoundResult& cause, bool stopping, int num_restarts, int max_restarts);
// Returns the result that is the root cause of the round: the one with the highest failure priority; if several have
// the same priority, that of the lowest host number.
const RoundResult& root_cause(const std::vector<RoundResult>& ends);

// Runs one epoch of an elastic job. An epoch ends when the job ends, when a host is lost, or when `change_requested`
// returns true and the ranks have stopped with a checkpoint.
struct EpochResult {
  std::optional<int> exit_code;  // exit code of the job; empty: another epoch follows
  std::vector<int> lost;         // hosts that were lost, by their number in this epoch
};
EpochResult run_epoch(const AgentOptions& options, const std::function<bool()>& change_requested, int& num_restarts);

// Runs this host's part of the job until the job ends. Returns the exit code of the job, which is equal on every host.
// Throws UsageError, CommError.
int run_agent(const AgentOptions& options);

}  // namespace esp::launch
