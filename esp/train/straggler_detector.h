// StragglerDetector: detects a rank that persistently delays the others. Each step is a vote for its slowest rank, and
// a vote against every other rank. The weight of the vote is the fraction of the step that the other ranks waited. A
// rank is reported if the others waited for it at least 1/12 of the time, and if one of two statistical tests passes:
//
//   became slow   At least 14 of the last 16 steps vote for the rank, consistently (t-test), and by far more than the
//                 earlier steps varied. An occasional vote for another rank changes little.
//   always slow   There are no earlier steps to compare with. Over up to 64 steps the weighted sum is so large that
//                 random votes would reach it less than once in a million sums.
//
// If there are more ranks than cores, short steps are merged into samples of at least `min_sample_ms`; otherwise one
// scheduler delay would cover many consecutive steps. A rank is reported once, until another rank is reported. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace esp::train {

class StragglerDetector {
 public:
  static constexpr int kSteps = 16, kMaxSamples = 64;
  static constexpr int kMinVotes = 14;  // a rank needs this many votes in the last kSteps samples
  // chosen because a rank that is 10 % slower delays its steps by 1/11
  static constexpr double kMinWaitFraction = 1.0 / 12;
  static constexpr double kMinT = 4.5, kMinChange = 5.5;
  static constexpr double kOversubscribed_ms = 500;  // value of min_sample_ms if ranks share cores

  explicit StragglerDetector(double min_sample_ms = 0) : min_sample_ms_(min_sample_ms) {}

  struct Detection {
    int rank = 0;
    int64_t num_steps = 0;              // number of steps over which the means are taken
    double waited_ms = 0, step_ms = 0;  // mean waiting time for this rank and mean step time
  };
  // Call it after each step. `waited_ms` is the mean time that the other ranks waited for the slowest one.
  std::optional<Detection> step(int slowest_rank, double waited_ms, double step_ms);

 private:
  struct StepSample {
    int rank = -1;
    double waited_ms = 0, step_ms = 0;
    int64_t num_steps = 0;
  };
  // Statistics of the votes for a rank in the samples from `newest` to `oldest`; the last sample has number 0.
  struct SampleStats {
    int count = 0, num_for = 0;
    double sum = 0, squares = 0;
  };
  const StepSample& sample_back(int64_t steps) const {
    return samples_[static_cast<size_t>((num_steps_ - 1 - steps) % kMaxSamples)];
  }
  SampleStats sample_stats(int rank, int64_t newest, int64_t oldest) const;
  StepSample merge_pending();  // merges the pending steps into one sample and clears them
  bool has_become_slow(int rank) const;
  bool is_always_slow(int rank) const;

  const double min_sample_ms_;
  std::array<StepSample, kMaxSamples> samples_{};
  int64_t num_steps_ = 0;
  StepSample pending_;
  std::vector<double> waited_for_;  // waiting time for each rank, summed over the pending steps
  int last_reported_ = -1;
};

}  // namespace esp::train
