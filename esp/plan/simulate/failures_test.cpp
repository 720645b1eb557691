#include "esp/plan/simulate/failures.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"

namespace esp::plan {
namespace {

// a failure every three hours, checkpoints of 60 s, restarts of 300 s
constexpr FailureModel kLarge{3 * 3600, 60, 300};

TEST(Failures, SimulatedGoodputEqualsTheExpectation) {
  for (const double interval : {120.0, 600.0, 1200.0, 7200.0}) {
    const Goodput drawn = simulate_goodput(kLarge, interval, 400 * 86400.0, 7);
    EXPECT_NEAR(drawn.fraction, expected_goodput(kLarge, interval), 0.01) << interval;
    EXPECT_NEAR(drawn.fraction + drawn.checkpoint + drawn.lost + drawn.restart, 1, 1e-9);
    EXPECT_NEAR(drawn.failures, 8, 0.4);
  }
}

TEST(Failures, YoungAndDalyAreNearTheBestInterval) {
  double best = 0, at = 0;
  for (double interval = 30; interval < 20000; interval *= 1.01)
    if (const double goodput = expected_goodput(kLarge, interval); goodput > best) best = goodput, at = interval;
  EXPECT_NEAR(daly_interval_s(kLarge), at, 0.02 * at);
  EXPECT_NEAR(young_interval_s(kLarge), at, 0.10 * at);
  EXPECT_GT(expected_goodput(kLarge, young_interval_s(kLarge)), best - 1e-4);
  EXPECT_GT(best, simulate_goodput(kLarge, at / 8, 100 * 86400.0, 1).fraction);
}

TEST(Failures, DependOnSeedAndNeverHappenWithoutMtbf) {
  EXPECT_EQ(simulate_goodput(kLarge, 900, 1e6, 3).fraction, simulate_goodput(kLarge, 900, 1e6, 3).fraction);
  EXPECT_NE(simulate_goodput(kLarge, 900, 1e6, 3).fraction, simulate_goodput(kLarge, 900, 1e6, 4).fraction);
  const FailureModel never{0, 10, 100};
  EXPECT_DOUBLE_EQ(simulate_goodput(never, 90, 9000, 1).fraction, 0.9);
  EXPECT_DOUBLE_EQ(expected_goodput(never, 90), 0.9);
}

TEST(Failures, RejectJobThatMakesNoProgress) {
  EXPECT_THROW(simulate_goodput({1, 1, 1e8}, 10, 86400, 1), UsageError);
  EXPECT_THROW(simulate_goodput({1, 1, 1}, 1e5, 86400, 1), UsageError);
}

}  // namespace
}  // namespace esp::plan
