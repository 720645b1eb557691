// StallDetector: a thread beside a rank's work. It reports a call that waits longer than the stall timeout, and the
// rank that the call waits for.
//
// Ten times a second it samples this rank's call position in every group; the calls themselves are not slowed down.
// After one second in a call it asks all ranks for their status over the failure detector's connection; the network
// thread of each rank answers. A rank is reported as stopped if it fails to answer twice in a row and others have
// waited two seconds for it. A rank that answers but is in no call is reported after the timeout of the current phase.
// The lowest waiting rank reports, once per stall, and once more when the stall ends. The detector only reports; the
// deadline of the call ends the run.
//
// The world must outlive the detector. `begin` is called by the training thread; the callbacks run on the detector's
// thread. In a world of threads of one process the detector does nothing.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "esp/comm/stall.h"
#include "esp/comm/stall_timeout.h"
#include "esp/net/failure_detector.h"
#include "esp/net/world.h"

namespace esp::comm {

class Communicator;

class StallDetector {
 public:
  struct Callbacks {
    std::function<void(const Stall&)> stalled;
    std::function<void(const Stall&)> resumed;  // `waited` is the total duration of the stall
  };
  StallDetector(const net::World& world, Callbacks callbacks);
  ~StallDetector();
  StallDetector(const StallDetector&) = delete;
  StallDetector& operator=(const StallDetector&) = delete;

  // Starts a phase and ends the previous one; `number` is the step number. See StallTimeout::timeout for
  // `expected_steps`.
  void begin(Phase phase, int64_t number, double expected_steps = 0);
  // Sets the function that labels calls; it is called on the detector's thread.
  void set_call_labeler(CallLabeler labeler);

 private:
  struct CallWait {  // the call in which this rank has waited longest, in any group
    uint64_t group = 0;
    net::CallPosition position;
    Clock::time_point since;
  };

  void run();
  void sample(Clock::time_point now);
  std::optional<CallWait> longest_wait(Clock::time_point now);
  void publish_status(const std::optional<CallWait>& wait, Clock::time_point now);
  void evaluate(const std::optional<CallWait>& wait, Clock::time_point now);
  std::vector<RankStatus> query_all();
  void report(Stall stall, const CallWait* wait, std::span<const RankStatus> all, Clock::time_point now);
  void end_stall(Clock::time_point now);
  bool still_stalled(const std::optional<CallWait>& wait);

  const net::World& world_;
  const Callbacks callbacks_;
  const net::Group all_ranks_;
  net::LiveCallPosition status_;

  // The members from here to reported_ are used by the detector's thread only. last_seen_: per group, the version of
  // the call position and the time at which this version was first sampled.
  std::map<uint64_t, std::pair<uint32_t, Clock::time_point>> last_seen_;
  Clock::time_point next_query_;
  std::vector<int> previously_silent_;  // ranks that did not answer the last query
  struct ReportedStall {
    Stall stall;
    uint64_t group;
    uint32_t version;
    Clock::time_point since;
    int64_t phases;
  };
  std::optional<ReportedStall> reported_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool stopping_ = false;
  StallTimeout timeout_;
  Phase phase_ = Phase::start;
  int64_t number_ = 0, num_phases_ = 0;
  double expected_steps_ = 0;
  bool phase_stalled_ = false;     // a stall was reported in this phase
  bool previous_outlier_ = false;  // the previous phase was longer than its timeout
  Clock::time_point phase_began_ = Clock::now();
  CallLabeler labeler_;

  std::thread thread_;
};

// Group id of a communicator's calls; nullopt if it is not a ScheduledCommunicator.
std::optional<uint64_t> group_id_of(const Communicator& communicator);

}  // namespace esp::comm
