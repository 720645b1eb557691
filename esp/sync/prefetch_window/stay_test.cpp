// Unit window with `stay`: which units are fetched, which are hinted, and how many are gathered.
#include <gtest/gtest.h>

#include <algorithm>

#include "esp/sync/zero/unit_window.h"

namespace esp::sync {
namespace {

using tensor::Tensor;
using Units = std::vector<size_t>;

class Noted final : public UnitGather {
 public:
  void start(size_t unit, const Tensor&) override { started.push_back(unit); }
  void finish(size_t, const Tensor&) override {}
  void hint(size_t unit, int distance) override { hints.emplace_back(unit, distance); }
  void values_changed() override { ++num_changes; }
  double exposed_ms() const override { return 0; }
  Units started;
  std::vector<std::pair<size_t, int>> hints;
  int num_changes = 0;
};

struct Walk {
  static constexpr int64_t kCount = 10;
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  tensor::Context context{{}, &pool};
  nn::ParameterList list;
  Noted gather;
  std::unique_ptr<UnitWindow> window;

  Walk(int num_units, int64_t ahead) {
    for (int u = 0; u < num_units; ++u) {
      list.begin_unit(std::to_string(u));
      list.add("p" + std::to_string(u), {kCount}, nn::Init::zeros(), false);
    }
    window = std::make_unique<UnitWindow>(list, context, gather, UnitWindow::Options{DType::f32, ahead, false, true});
  }
  void pass(const Units& forward, const Units& backward) {
    gather.started.clear();
    gather.hints.clear();
    window->begin_pass(true);
    for (const size_t unit : forward) list.all()[unit].weight.used_value();
    window->begin_backward();
    for (const size_t unit : backward) list.all()[unit].weight.used_value();
    window->end_pass();
  }
  uint64_t units_at_most() { return account.use(device::MemoryCategory::buffer).peak / (kCount * sizeof(float)); }
};

const Units kForward = {0, 1, 2, 3, 4, 5}, kBackward = {5, 4, 3, 2, 1, 0};

TEST(StayWindow, KeepsTheLastForBackwardAndTheFirstForTheNextPass) {
  for (const size_t ahead : {1, 2, 3}) {
    Walk walk(6, static_cast<int64_t>(ahead));
    walk.pass(kForward, kBackward);  // records the order
    walk.window->values_changed();
    walk.pass(kForward, kBackward);
    EXPECT_EQ(walk.gather.started.size(), 6 + 6 - (ahead + 1)) << "the turn, ahead " << ahead;
    walk.pass(kForward, kBackward);  // another micro-batch: same weights
    EXPECT_EQ(walk.gather.started.size(), 6 - ahead + 6 - (ahead + 1)) << "the beginning, ahead " << ahead;
    EXPECT_LE(walk.units_at_most(), ahead + 1);
    walk.window->values_changed();
    EXPECT_EQ(walk.account.use(device::MemoryCategory::buffer).current, 0u);
    walk.pass(kForward, kBackward);
    EXPECT_EQ(walk.gather.started.size(), 6 + 6 - (ahead + 1)) << "after a step, ahead " << ahead;
    EXPECT_EQ(walk.gather.num_changes, 2);
  }
}

// Two units beyond the window are hinted, nearest first, except those already gathered.
TEST(StayWindow, HintsTheTwoUnitsBeyondIt) {
  Walk walk(6, 1);
  walk.pass(kForward, kBackward);
  walk.window->values_changed();
  walk.pass(kForward, kBackward);
  const std::vector<std::pair<size_t, int>> first = {{2, 1}, {3, 2}, {3, 1}, {4, 2}, {4, 1}, {5, 2}, {5, 1}};
  ASSERT_GE(walk.gather.hints.size(), first.size());
  EXPECT_TRUE(std::equal(first.begin(), first.end(), walk.gather.hints.begin()));
}

TEST(StayWindow, FollowsAWidthThatChanges) {
  Walk walk(6, 1);
  walk.pass(kForward, kBackward);
  walk.window->set_ahead(4);
  walk.window->values_changed();
  walk.pass(kForward, kBackward);
  EXPECT_EQ(walk.gather.started.size(), 6 + 6 - 5);
  EXPECT_EQ(walk.units_at_most(), 5u);
}

TEST(StayWindow, DropsUnitsThatAShorterWalkDoesNotUse) {
  Walk walk(6, 2);
  walk.pass(kForward, kBackward);
  walk.pass({0, 1}, {1, 0});
  EXPECT_LE(walk.account.use(device::MemoryCategory::buffer).current, 2 * Walk::kCount * sizeof(float));
  walk.pass(kForward, kBackward);
  EXPECT_LE(walk.units_at_most(), 3u);
}

}  // namespace
}  // namespace esp::sync
