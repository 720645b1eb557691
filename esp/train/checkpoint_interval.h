// When the next periodic checkpoint or snapshot is due, from what those before have cost.
//
//   cost      seconds that training was paused for one, plus the larger of the processor time of the thread that wrote
//             it and the time by which steps took longer meanwhile
//   interval  max(cost, total cost + cost − share · time before the last one) / share, within [least, most]
//
// So all of them together take at most `share` of the run, unless `most` is reached: the bound on the work at risk goes
// before the share. Pure: the caller passes the time, in seconds of any clock.
#pragma once

#include <cstdint>

namespace esp::train {

class CheckpointInterval {
 public:
  struct Options {
    double least_s = 1, most_s = 60;
    double share = 0.01;    // of the run's time
    double expected_s = 0;  // cost of the first one, before any was measured
  };
  CheckpointInterval(const Options& options, double now_s) : options_(options), started_s_(now_s), last_s_(now_s) {}

  void begin(double now_s);  // one is made now
  // Cost of all of them so far. It grows until the one under way is written.
  void set_total_cost(double seconds) { total_cost_s_ = seconds; }

  int num() const { return num_; }
  double interval_s() const;
  // Whether one has to follow the step that begins now and takes about `step_s`.
  bool due_after_step(double now_s, double step_s) const { return now_s + step_s >= last_s_ + interval_s(); }
  // Where ranks can agree at few steps only: how many steps until they meet again, at least 1. They meet at half of
  // the way, so that steps may become twice as long without a later checkpoint.
  int64_t steps_to_next_look(double now_s, double step_s) const;
  // The bound on the work at risk makes them cost more than the share. The first one does not tell: its memory is new.
  bool over_share() const;

 private:
  double cost_s() const;

  Options options_;
  double started_s_, last_s_, total_cost_s_ = 0, cost_before_last_s_ = 0;
  int num_ = 0;
};

}  // namespace esp::train
