// CheckpointInterval: decides when the next periodic checkpoint or snapshot is due, from the measured cost of earlier
// saves.
//
//   cost      of one save, in seconds: time that training was paused, plus the larger of two times: the CPU time of the
//             writer thread, and the time by which steps were slower during the write
//   interval  max(cost, total cost + cost − share · time before the last save) / share, clamped to
//             [min_s, max_s − cost]
//
// `max_s` limits the work at risk: the time from the start of one save until the next save is written. All saves
// together take at most `share` of the run time, unless the interval reaches this limit, which has priority.
// Pure: the caller passes the time, in seconds of any clock.
#pragma once

#include <cstdint>

namespace esp::train {

class CheckpointInterval {
 public:
  struct Options {
    double min_s = 1, max_s = 60;
    double share = 0.01;    // fraction of the run time that saves may take
    double expected_s = 0;  // assumed cost of the first save
  };
  CheckpointInterval(const Options& options, double now_s) : options_(options), started_s_(now_s), last_s_(now_s) {}

  void begin(double now_s);  // call when a save starts
  // Total cost of all saves so far, in seconds. The value may still grow while the last save is being written.
  void set_total_cost(double seconds) { total_cost_s_ = seconds; }

  int num() const { return num_; }
  double interval_s() const;
  // Whether to save after the step that starts now and takes about `step_s`.
  bool due_after_step(double now_s, double step_s) const { return now_s + step_s >= last_s_ + interval_s(); }
  // For ranks that do not run in lockstep: the number of steps until their next joint decision, at least 1. The steps
  // cover half of the remaining time, so a save is not late even if steps become twice as long.
  int64_t steps_to_next_decision(double now_s, double step_s) const;
  // True if max_s forces saves to cost more than `share`. The first save is ignored, because it is slower: it touches
  // new memory.
  bool exceeds_share() const;

 private:
  double cost_s() const;

  Options options_;
  double started_s_, last_s_, total_cost_s_ = 0, cost_before_last_s_ = 0;
  int num_ = 0;
};

}  // namespace esp::train
