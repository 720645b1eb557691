// InPlaceRestart: recovery from a rank failure on one host. The surviving ranks keep their processes; failed ranks are
// replaced.
//
// Three states:
//   connecting  the ranks of the round join its rendezvous
//   running     all ranks have a communicator; training continues
//   collecting  a rank failed, or a rank reported that it lost a peer; the ranks report for the next round
//
// In state collecting, a replacement is started for each failed rank. Surviving ranks report `waiting`, replacements
// report `ready`. When every rank has reported, the waiting ranks get the endpoint of the next round (state
// connecting). No rank joins earlier. Therefore one more failure in state collecting costs only one more replacement. A
// rank that has neither reported nor died at the timeout hangs: it is killed and replaced. A failure in state
// connecting, or a second timeout, cannot be handled in place: give_up_reason() is set, and the owner restarts all
// ranks.
//
// The clock comes from the options, and the processes are behind an interface, so the fault simulation (tests/faults)
// can run the same code. Used only by the thread that constructed the RankProcesses. They outlive this object.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "esp/launch/control.h"
#include "esp/launch/local.h"
#include "esp/launch/rank_processes.h"

namespace esp::launch {

class InPlaceRestart {
 public:
  struct RoundSetup {
    NextRound next;
    Environment environment;  // environment variables that are changed for replacement ranks
  };
  struct Options {
    int num_ranks = 1, first_rank = 0;
    int round = 0;  // number of the round in which the ranks were started
    Duration timeout = std::chrono::seconds(10);
    std::function<RoundSetup(int round)> open_round;
    std::function<bool()> may_restart;  // called once before each further round; false: no restart is allowed
    std::function<void(const std::string&)> print_line;  // prints a line for the user
    // Called when all ranks are connected. The caller can then free resources of the previous round.
    std::function<void()> on_connected = [] {};
    std::function<Clock::time_point()> now = [] { return Clock::now(); };
  };
  InPlaceRestart(RankProcesses& job, Options options)
      : processes_(job), options_(std::move(options)), round_(options_.round) {}

  // Processes messages and failures that arrived since the last call. `restart_all`: the owner must end and restart all
  // ranks. `abort`: the job must end, because the failure would repeat or a stop was requested.
  enum class Decision { proceed, restart_all, abort };
  Decision poll(const std::vector<std::pair<int, std::string>>& messages, const std::vector<Failure>& failures,
                bool stopping);

  void on_failure(const Failure& failure);
  void on_message(int rank, const RankMessage& message);  // `rank` counts from 0 on this host
  void check_timeouts();                                  // handles an expired timeout

  // Why a restart in place is impossible; empty as long as it is possible.
  const std::optional<std::string>& give_up_reason() const { return give_up_reason_; }
  // The failure that caused the decision `abort`. It is stored here, because the RankProcesses may no longer have it:
  // if the same poll also completed a recovery, that poll has called clear_failures().
  const std::optional<Failure>& fatal_failure() const { return fatal_failure_; }
  int round() const { return round_; }

 private:
  enum class State { connecting, running, collecting };
  bool begin_round();
  bool give_up_if_finished();
  void update_state();
  void on_recovered();
  void report_outcome();
  void send_next_round();
  size_t num_present() const { return waiting_.size() + ready_.size(); }

  RankProcesses& processes_;
  Options options_;
  State state_ = State::connecting;
  int round_;              // current round; in state collecting, round_ + 1 is being prepared
  RoundSetup next_round_;  // endpoint and environment of the next round; kept after the round has begun
  // Local ranks by the last message they sent. waiting_early_: ranks that sent `waiting` while others were still
  // connecting.
  std::set<int> waiting_, ready_, connected_, waiting_early_;
  std::string losses_;  // the failures of this recovery, as text
  // parts of the line about the last recovery; outcome_ is empty after the line was printed
  std::string outcome_, resumed_;
  std::optional<Clock::time_point> failed_at_;
  std::optional<Clock::time_point> deadline_;
  bool killed_some_ = false;
  std::optional<std::string> give_up_reason_;
  std::optional<Failure> fatal_failure_;
};

}  // namespace esp::launch
