// Reform: how the ranks of one host go on in their processes when some of them have died.
//
// Three states. `forming`: the ranks of the round meet. `whole`: all have; the work goes on. `gathering`: one was lost,
// or one says that it lost another. Then the next round is opened, a rank is started in the place of each that died,
// and when every rank waits or is ready, those that wait are told where to meet: forming again. Nobody joins before all
// are known to come, so that one more death meanwhile costs one more process and nothing else. A rank that neither
// waits nor died when the patience is over hangs: it is killed, and another takes its place. What cannot be mended so
// (a death while forming, patience over twice) makes it `stuck`: the owner ends all and starts them again.
//
// The time comes from the options and the processes are behind an interface, so that the simulation of faults drives
// the same code. One thread, which constructed the ranks; they outlive it.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "esp/launch/control.h"
#include "esp/launch/local.h"
#include "esp/launch/ranks.h"

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
    std::function<Clock::time_point()> now = [] { return Clock::now(); };
  };
  Reform(Ranks& job, Options options) : job_(job), options_(std::move(options)), round_(options_.round) {}

  // What ranks have said and which have failed since it was asked last, and what comes of it. `stuck`: all are to be
  // ended and started again; `for_good`: a failure that would happen again, or the job is to stop.
  enum class Verdict { go_on, stuck, for_good };
  Verdict attend(const std::vector<std::pair<int, std::string>>& words, const std::vector<Failure>& failures,
                 bool stopping);

  void lost(const Failure& failure);
  void heard(int rank, const Word& word);  // `rank` from 0 on this host
  void look();                             // at the clock

  // There is no going on in place: why, once it is so.
  const std::optional<std::string>& stuck() const { return stuck_; }
  // The failure that ended it for good. The ranks' own memory of it may be gone: the round can have become whole, and
  // what came before been forgiven, in the very moment it was heard of.
  const std::optional<Failure>& condemned() const { return condemned_; }
  int round() const { return round_; }

 private:
  enum class State { forming, whole, gathering };
  bool begin();
  void settle();
  void recovered();
  void tell();
  void announce();
  size_t num_present() const { return waiting_.size() + ready_.size(); }

  Ranks& job_;
  Options options_;
  State state_ = State::forming;
  int round_;      // of the ranks that go on; the one to come while gathering is the next
  Opened opened_;  // the one to come, or the present one
  std::set<int> waiting_, ready_, formed_, early_;  // early: waiting before the round was whole
  std::string losses_;                              // in words
  std::string outcome_, resumed_;                   // of the last recovery; outcome: empty once it was told
  std::optional<Clock::time_point> begun_;
  std::optional<Clock::time_point> patience_;
  bool killed_some_ = false;
  std::optional<std::string> stuck_;
  std::optional<Failure> condemned_;
};

}  // namespace esp::launch
