// StallWatch: a thread beside a rank's work that notices when a call waits longer than it ever did and says for whom.
//
// Ten times a second it looks where this rank stands in every group (the calls themselves pay nothing for that). Once
// one call has lasted a second it asks all ranks for their whereabouts, over the watch's connection, which threads of
// their own answer: a rank that is silent twice in a row, and keeps others waiting for two seconds, is stopped; one
// that answers but waits for nobody is blamed when the patience learned for this phase is over. Of those that wait the
// lowest rank speaks, once per stall, and once more when it is over. It only tells; the call's deadline ends the run.
//
// The world outlives it. `begin` is for the thread that trains; the listener is called on the watch's own thread. In a
// world without a watch (threads of one process) it does nothing.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "esp/comm/patience.h"
#include "esp/comm/stall.h"
#include "esp/net/watch.h"
#include "esp/net/world.h"

namespace esp::comm {

class Communicator;

class StallWatch {
 public:
  struct Listener {
    std::function<void(const Stall&)> stalled;
    std::function<void(const Stall&)> went_on;  // with the whole time in `waited`
  };
  StallWatch(const net::World& world, Listener listener);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // This rank begins a phase, which ends the one before; `number` is the step's.
  void begin(Phase phase, int64_t number, double steps_long = 0);
  // What calls are for, in words; called on the watch's thread.
  void explain_with(Purpose purpose);

 private:
  struct Wait {  // the longest of the calls this rank is in
    uint64_t group = 0;
    net::Standing standing;
    Clock::time_point since;
  };

  void run();
  void look(Clock::time_point now);
  std::optional<Wait> longest_wait(Clock::time_point now);
  void say_where(const std::optional<Wait>& wait, Clock::time_point now);
  void consider(const std::optional<Wait>& wait, Clock::time_point now);
  std::vector<Whereabouts> ask_everyone();
  void tell(Stall stall, const Wait* wait, std::span<const Whereabouts> all, Clock::time_point now);
  void end_stall(Clock::time_point now);
  bool still_stalled(const std::optional<Wait>& wait);

  const net::World& world_;
  const Listener listener_;
  const net::Group everyone_;
  net::LiveStanding whereabouts_;

  // The watch's thread only.
  std::map<uint64_t, std::pair<uint32_t, Clock::time_point>> seen_;  // by group: version, since when
  Clock::time_point next_question_;
  std::vector<int> silent_before_;  // who did not answer the last question
  struct Told {
    Stall stall;
    uint64_t group;
    uint32_t version;
    Clock::time_point since;
    int64_t phases;
  };
  std::optional<Told> told_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  Patience patience_;
  Phase phase_ = Phase::start;
  int64_t number_ = 0, num_phases_ = 0;
  double steps_long_ = 0;
  bool disturbed_ = false, was_odd_ = false;  // a stall was told in this phase; the one before took oddly long
  Clock::time_point phase_began_ = Clock::now();
  Purpose purpose_;

  std::thread thread_;
};

// The id under which a communicator's calls are known; none for those that are not of ours.
std::optional<uint64_t> group_id_of(const Communicator& communicator);

}  // namespace esp::comm
