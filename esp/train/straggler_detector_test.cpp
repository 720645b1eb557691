// Tests StragglerDetector with synthetic step times; no real clock is used.
#include "esp/train/straggler_detector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "esp/base/rng.h"

namespace esp::train {
namespace {

constexpr int kWithin = 20;

// The statistics that the engine reports for a step, computed from the time that each rank was busy.
struct Step {
  int slowest = 0;
  double waited = 0, longest = 0;
};
Step step_stats(const std::vector<double>& busy) {
  Step step;
  double sum = 0;
  for (size_t rank = 0; rank < busy.size(); ++rank) {
    sum += busy[rank];
    if (busy[rank] > step.longest) {
      step.longest = busy[rank];
      step.slowest = static_cast<int>(rank);
    }
  }
  const auto size = static_cast<double>(busy.size());
  step.waited = (step.longest * size - sum) / (size - 1);
  return step;
}

double draw(uint64_t purpose, uint64_t index) {
  return random_unit(5, purpose, index);
}

using Busy = std::function<double(int rank, int64_t step)>;

// The first rank that is detected, and after how many steps.
struct Named {
  int rank = -1;
  int64_t step = -1;
};
Named first_detected(StragglerDetector& straggler, int ranks, int64_t from, int64_t to, const Busy& busy) {
  std::vector<double> all(static_cast<size_t>(ranks));
  for (int64_t step = from; step < to; ++step) {
    for (int rank = 0; rank < ranks; ++rank) all[static_cast<size_t>(rank)] = busy(rank, step);
    const Step seen = step_stats(all);
    if (const auto found = straggler.step(seen.slowest, seen.waited, seen.longest))
      return {found->rank, step - from + 1};
  }
  return {};
}

// A normal step: 100 ms plus noise.
double usual(int rank, int64_t step, double noise) {
  return 100 * (1 + noise * (draw(static_cast<uint64_t>(rank), static_cast<uint64_t>(step)) - 0.5));
}

TEST(StragglerDetector, DetectsTenPercentWithinTwentySteps) {
  for (int ranks : {2, 3, 8})
    for (int slow = 0; slow < ranks; ++slow) {
      StragglerDetector straggler;
      ASSERT_EQ(
          first_detected(straggler, ranks, 0, 200, [](int rank, int64_t step) { return usual(rank, step, 0.04); }).rank,
          -1);
      const Named named = first_detected(straggler, ranks, 200, 300, [&](int rank, int64_t step) {
        return usual(rank, step, 0.02) * (rank == slow ? 1.10 : 1);
      });
      EXPECT_EQ(named.rank, slow) << ranks << " ranks";
      EXPECT_LE(named.step, kWithin) << ranks << " ranks";
    }
}

// Rank 1 is stopped for 10 of every 15 ms. How much this delays a step depends on the phase of the stops. In some steps
// the stop falls into a time in which rank 1 only waits, or another process takes the core of rank 0.
TEST(StragglerDetector, DetectsARankStoppedMostOfTheTime) {
  for (const auto& [away, most] : {std::pair(0.0, kWithin), std::pair(0.1, 4 * kWithin)}) {
    std::vector<int64_t> steps;
    for (uint64_t trial = 0; trial < 50; ++trial) {
      StragglerDetector straggler;
      EXPECT_EQ(
          first_detected(straggler, 2, 0, 50, [&](int rank, int64_t step) { return usual(rank, step, 0.1); }).rank, -1);
      const double part_away = away;
      const Named named = first_detected(straggler, 2, 0, 400, [&](int rank, int64_t step) {
        const uint64_t at = trial * 1000 + static_cast<uint64_t>(step);
        if (draw(90, at) < part_away) return rank == 0 ? 14.0 : 12.0;
        const double held_up = rank == 1 ? 12 * (1 + 2 * draw(91, at)) : 12.0;
        return held_up * (1 + 0.1 * draw(92 + static_cast<uint64_t>(rank), at));
      });
      EXPECT_EQ(named.rank, 1);
      steps.push_back(named.step);
    }
    std::sort(steps.begin(), steps.end());
    EXPECT_LE(steps[steps.size() / 2], kWithin + 5) << away;
    EXPECT_LE(steps.back(), most) << away;
  }
}

TEST(StragglerDetector, DetectsARankSlowFromTheStart) {
  StragglerDetector straggler;
  const Named named = first_detected(
      straggler, 2, 0, 400, [](int rank, int64_t step) { return usual(rank, step, 0.05) * (rank == 1 ? 1.2 : 1); });
  EXPECT_EQ(named.rank, 1);
  EXPECT_LE(named.step, StragglerDetector::kMaxSamples);
}

TEST(StragglerDetector, IgnoresAlternatingSlowRanks) {
  const Busy evenly = [](int rank, int64_t step) { return usual(rank, step, 0.5); };
  // Each rank has rare, long delays, as on a busy machine.
  const Busy seldom = [](int rank, int64_t step) {
    return usual(rank, step, 0.1) * (draw(30 + static_cast<uint64_t>(rank), static_cast<uint64_t>(step)) < 0.1 ? 8 : 1);
  };
  // Another process uses the core of one rank for a few steps, and then that of the next rank.
  const Busy wandering = [](int rank, int64_t step) {
    const bool here = (step / 6) % 4 == rank;
    return usual(rank, step, 0.2) * (here ? 1.5 : 1);
  };
  // The machine alternates between quiet and busy.
  const Busy changing = [](int rank, int64_t step) { return usual(rank, step, step / 2000 % 2 ? 0.6 : 0.02); };
  for (const Busy& busy : {evenly, seldom, wandering, changing})
    for (int ranks : {2, 4, 8}) {
      StragglerDetector straggler;
      const Named named = first_detected(straggler, ranks, 0, 100'000, busy);
      EXPECT_EQ(named.rank, -1) << ranks << " ranks, after " << named.step;
    }
}

// From time to time a random rank loses its core for 150 ms, which is more than 16 consecutive steps of 4 ms.
TEST(StragglerDetector, MergesShortStepsWhenRanksShareCores) {
  const Busy taken_for_moments = [](int rank, int64_t step) {
    const auto at = static_cast<uint64_t>(step) / 37;
    const bool taken = draw(200, at) < 0.3 && static_cast<int>(draw(201, at) * 8) == rank;
    return usual(rank, step, 0.1) / 25 * (taken ? 1.6 : 1);
  };
  StragglerDetector unmerged, merged(StragglerDetector::kOversubscribed_ms);
  EXPECT_NE(first_detected(unmerged, 8, 0, 100'000, taken_for_moments).rank, -1);
  EXPECT_EQ(first_detected(merged, 8, 0, 1'000'000, taken_for_moments).rank, -1);
  // A rank that is slow all the time is still reported within seconds.
  const Named slow = first_detected(merged, 8, 0, 100'000, [](int rank, int64_t step) {
    return usual(rank, step, 0.1) / 25 * (rank == 3 ? 1.6 : 1);
  });
  EXPECT_EQ(slow.rank, 3);
  EXPECT_LE(slow.step * 4 * 1.6, 20 * StragglerDetector::kOversubscribed_ms);
}

TEST(StragglerDetector, ReportsRankOnceUntilAnotherRankIsReported) {
  StragglerDetector straggler;
  const auto slow = [](int which) {
    return [which](int rank, int64_t step) { return usual(rank, step, 0.02) * (rank == which ? 1.3 : 1); };
  };
  EXPECT_EQ(first_detected(straggler, 4, 0, 100, slow(2)).rank, 2);
  EXPECT_EQ(first_detected(straggler, 4, 100, 1000, slow(2)).rank, -1);
  EXPECT_EQ(first_detected(straggler, 4, 1000, 1100, slow(3)).rank, 3);
  EXPECT_EQ(first_detected(straggler, 4, 1100, 1200, slow(2)).rank, 2);
}

TEST(StragglerDetector, IgnoresRankWhenWaitsAreShort) {
  StragglerDetector straggler;
  for (int step = 0; step < 200; ++step) EXPECT_FALSE(straggler.step(1, 5, 100));
}

TEST(StragglerDetector, IgnoresASinglePause) {
  StragglerDetector straggler;
  const Named named = first_detected(straggler, 2, 0, 200, [](int rank, int64_t step) {
    return rank == 1 && step == 100 ? 5000.0 : usual(rank, step, 0.02);
  });
  EXPECT_EQ(named.rank, -1);
}

}  // namespace
}  // namespace esp::train
