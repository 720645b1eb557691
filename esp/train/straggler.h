// Who holds up the others, step after step. A step speaks for its slowest rank, by the part of it that the others
// waited, and against whoever else is suspected. A rank is named when they waited for it at least a twelfth of the time
// and chance does not do that, in one of two ways:
//
//   it became slow    of the last 16 steps at least 14 speak for it, evenly (a t-test), and by far more than the steps
//                     before them differed: a step now and then that speaks for another costs little
//   it always was     there is nothing to compare with; over up to 64 steps the sum of what they say is so large that
//                     steps which take turns come to it less than once in a million such sums
//
// Where ranks outnumber the cores steps count together until they have lasted a while (`shortest_ms`): what a scheduler
// does to a rank goes on for many short ones, and sixteen in a row would say nothing. Once until another is. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace esp::train {

class Straggler {
 public:
  static constexpr int kSteps = 16, kKept = 64;
  static constexpr int kLeast = 14;          // of kSteps
  static constexpr double kPart = 1.0 / 12;  // a rank 10 % slower costs an eleventh of its steps
  static constexpr double kEven = 4.5, kFar = 5.5;
  static constexpr double kCrowded_ms = 500;  // shortest_ms where ranks take turns on the cores

  explicit Straggler(double shortest_ms = 0) : shortest_ms_(shortest_ms) {}

  struct Found {
    int rank = 0;
    int64_t num_steps = 0;              // that it was judged by
    double waited_ms = 0, step_ms = 0;  // their means
  };
  // After each step; `waited_ms`: by the others, on average.
  std::optional<Found> step(int slowest_rank, double waited_ms, double step_ms);

 private:
  struct Seen {
    int rank = -1;
    double waited_ms = 0, step_ms = 0;
    int64_t num_steps = 0;
  };
  // What the steps from `newest` back to `oldest` (0: the last) say for a rank.
  struct Sum {
    int count = 0, num_for = 0;
    double sum = 0, squares = 0;
  };
  const Seen& back(int64_t steps) const { return seen_[static_cast<size_t>((num_steps_ - 1 - steps) % kKept)]; }
  Sum said(int rank, int64_t newest, int64_t oldest) const;
  Seen together();  // the steps of `under_way_`, which then has none
  bool became_slow(int rank) const;
  bool always_was(int rank) const;

  const double shortest_ms_;
  std::array<Seen, kKept> seen_{};
  int64_t num_steps_ = 0;
  Seen under_way_;
  std::vector<double> waited_for_;  // of the steps under way, by rank
  int told_ = -1;
};

}  // namespace esp::train
