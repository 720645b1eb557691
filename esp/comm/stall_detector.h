// StallDetector: a thread beside a rank's work that reports a call that waits longer than the stall timeout, and which
// rank it waits for.
//
// Ten times a second it samples this rank's position in every group; calls pay nothing for that. After one second in a
// call it asks all ranks for their status over the failure detector's connection, which their own threads answer. A
// rank is reported as stopped if it does not answer twice in a row and others have waited two seconds for it. A rank
// that answers but is in no call is reported after the stall timeout of the current phase. The lowest waiting rank
// reports, once per stall, and once more at its end. The detector only reports; the deadline of the call ends the run.
//
// The world outlives it. `begin` is called by the training thread; the callbacks run on the detector's thread. In a
// world of threads of one process it does nothing.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "esp/comm/stall.h"
#include "esp/comm/stall_timeout.h"
#include "esp/net/watch.h"
#include "esp/net/world.h"

namespace esp::comm {

class Communicator;

class StallDetector {
 public:
  struct Callbacks {
    std::function<void(const Stall&)> stalled;
    std::function<void(const Stall&)> went_on;  // `waited` is the total time
  };
  StallDetector(const net::World& world, Callbacks listener);
  ~StallDetector();
  StallDetector(const StallDetector&) = delete;
  StallDetector& operator=(const StallDetector&) = delete;

  // Starts a phase and ends the previous one; `number` is the step number.
  void begin(Phase phase, int64_t number, double steps_long = 0);
  // Sets the labels of calls; called on the detector's thread.
  void set_call_labeler(CallLabeler labeler);

 private:
  struct Wait {  // the longest of the calls this rank is in
    uint64_t group = 0;
    net::Standing standing;
    Clock::time_point since;
  };

  void run();
  void sample(Clock::time_point now);
  std::optional<Wait> longest_wait(Clock::time_point now);
  void publish_status(const std::optional<Wait>& wait, Clock::time_point now);
  void evaluate(const std::optional<Wait>& wait, Clock::time_point now);
  std::vector<RankStatus> query_all();
  void report(Stall stall, const Wait* wait, std::span<const RankStatus> all, Clock::time_point now);
  void end_stall(Clock::time_point now);
  bool still_stalled(const std::optional<Wait>& wait);

  const net::World& world_;
  const Callbacks listener_;
  const net::Group all_ranks_;
  net::LiveStanding status_;

  // The watch's thread only.
  std::map<uint64_t, std::pair<uint32_t, Clock::time_point>> seen_;  // by group: version, since when
  Clock::time_point next_question_;
  std::vector<int> silent_before_;  // ranks that did not answer the last query
  struct ReportedStall {
    Stall stall;
    uint64_t group;
    uint32_t version;
    Clock::time_point since;
    int64_t phases;
  };
  std::optional<ReportedStall> reported_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  StallTimeout stall_timeout_;
  Phase phase_ = Phase::start;
  int64_t number_ = 0, num_phases_ = 0;
  double steps_long_ = 0;
  bool disturbed_ = false, was_odd_ = false;  // a stall was reported in this phase; the previous phase was an outlier
  Clock::time_point phase_began_ = Clock::now();
  CallLabeler labeler_;

  std::thread thread_;
};

// Group id of a communicator's calls; none for other implementations.
std::optional<uint64_t> group_id_of(const Communicator& communicator);

}  // namespace esp::comm
