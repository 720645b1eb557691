#include "esp/sync/tier/serial_executor.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "esp/base/error.h"

namespace esp::sync {
namespace {

Deadline soon() {
  return Deadline::after_ms(20'000);
}

TEST(SerialExecutorTest, RunsTasksInOrder) {
  SerialExecutor lane("esp-test");
  std::vector<int> done;
  for (int i = 0; i < 100; ++i) lane.post([&done, i] { done.push_back(i); });
  lane.wait(soon());
  ASSERT_EQ(done.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
}

TEST(SerialExecutorTest, StopsAtTheFirstErrorUntilItIsReported) {
  SerialExecutor lane("esp-test");
  std::promise<void> go;
  bool went_on = false;
  lane.post([&, ready = go.get_future().share()] {
    ready.wait();
    throw IoError("the first");
  });
  lane.post([&] { went_on = true; });
  go.set_value();
  try {
    lane.wait(soon());
    FAIL();
  } catch (const IoError& error) {
    EXPECT_STREQ(error.what(), "the first");
  }
  EXPECT_FALSE(went_on);
  lane.post([&] { went_on = true; });
  lane.wait(soon());
  EXPECT_TRUE(went_on);
}

TEST(SerialExecutorTest, WaitEndsAtItsDeadline) {
  SerialExecutor lane("esp-test");
  std::promise<void> go;
  lane.post([ready = go.get_future().share()] { ready.wait(); });
  EXPECT_THROW(lane.wait(Deadline::after_ms(1)), IoError);
  go.set_value();
  lane.wait(soon());
}

}  // namespace
}  // namespace esp::sync
