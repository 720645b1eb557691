#include "esp/train/step_request.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace esp::train {
namespace {

TEST(StepRequest, RoundTripsThroughOneDouble) {
  for (const bool stop : {false, true})
    for (const PeriodicSave save : {PeriodicSave::none, PeriodicSave::snapshot, PeriodicSave::checkpoint})
      for (const double cost : {0.0, 0.009, 1.234, 16777.215}) {
        const StepRequest back = unpack(pack({stop, save, cost, 2 * cost}));
        EXPECT_EQ(back.stop, stop);
        EXPECT_EQ(back.save, save);
        EXPECT_DOUBLE_EQ(back.snapshot_cost_s, cost);
        EXPECT_DOUBLE_EQ(back.checkpoint_cost_s, std::min(2 * cost, 16777.215));
      }
}

TEST(StepRequest, EmptyRequestPacksToZero) {
  EXPECT_EQ(pack({}), 0);
}

TEST(StepRequest, ClampsCostsThatExceedTheirBits) {
  const StepRequest back = unpack(pack({true, PeriodicSave::checkpoint, 1e9, -1}));
  EXPECT_DOUBLE_EQ(back.snapshot_cost_s, 16777.215);
  EXPECT_EQ(back.checkpoint_cost_s, 0);
  EXPECT_TRUE(back.stop);
  EXPECT_EQ(back.save, PeriodicSave::checkpoint);
}

}  // namespace
}  // namespace esp::train
