// Reform: how the ranks of one host go on in their processes when some of them have died.
//
// Three states. `forming`: the ranks of the round meet. `whole`: all have; the work goes on. `gathering`: one was lost,
// or one says that it lost another. Then the next round is opened, a rank is started in the place of each that died,
// and when every rank waits or is ready, those that wait are told where to meet: forming again. Nobody joins before all
// are known to come, so that one more death meanwhile costs one more process and nothing else. A rank that neither
// waits nor died when the patience is over hangs: it is killed, and another takes its place. What cannot be mended so
// (a death while forming, patience over twice) makes it `stuck`: the owner ends all and starts them again.
//
// Driven by one thread, which constructed the job; the job outlives it.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "esp/launch/control.h"
#include "esp/launch/local.h"

namespace esp::launch {

class Reform {
 public:
  struct Opened {
    NextRound next;
    Environment environment;  // what differs for ranks started into it
  };
  struct Options {
    int num_ranks = 1, first_rank = 0;
    int round = 0;  // that the ranks of the job were started into
    Duration patience = std::chrono::seconds(10);
    std::function<Opened(int round)> open;
    std::function<bool()> may_begin;               // asked once for every round beyond the first
    std::function<void(const std::string&)> tell;  // a line for a person
    std::function<void()> formed = [] {};          // the round is whole: what the former one needed may go
  };
  Reform(LocalJob& job, Options options) : job_(job), options_(std::move(options)), round_(options_.round) {}

  void lost(const Failure& failure);
  void heard(int rank, const Word& word);  // `rank` from 0 on this host
  void look();                             // at the clock

  // There is no going on in place: why, once it is so.
  const std::optional<std::string>& stuck() const { return stuck_; }
  int round() const { return round_; }

 private:
  enum class State { forming, whole, gathering };
  bool begin();
  void settle();
  void tell();
  void announce();
  size_t num_present() const { return waiting_.size() + ready_.size(); }

  LocalJob& job_;
  Options options_;
  State state_ = State::forming;
  int round_;      // of the ranks that go on; the one to come while gathering is the next
  Opened opened_;  // the one to come, or the present one
  std::set<int> waiting_, ready_, formed_, early_;  // early: waiting before the round was whole
  std::string losses_;                              // in words
  std::optional<Clock::time_point> begun_;
  Clock::time_point announced_;
  std::optional<Deadline> patience_;
  bool killed_some_ = false;
  std::optional<std::string> stuck_;
};

}  // namespace esp::launch
