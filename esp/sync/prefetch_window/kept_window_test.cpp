// Tests UnitWindow with keep_window: which units it fetches, which prefetch hints it gives, and how many units are
// gathered at a time.
#include <gtest/gtest.h>

#include <algorithm>

#include "esp/sync/zero/unit_window.h"

namespace esp::sync {
namespace {

using tensor::Tensor;
using Units = std::vector<size_t>;

class RecordingGather final : public UnitGather {
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

struct WindowFixture {
  static constexpr int64_t kCount = 10;
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  tensor::Context context{{}, &pool};
  nn::ParameterList list;
  RecordingGather gather;
  std::unique_ptr<UnitWindow> window;

  WindowFixture(int num_units, int64_t ahead) {
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
    for (const size_t unit : forward) list.all()[unit].weight.fetch_value();
    window->begin_backward();
    for (const size_t unit : backward) list.all()[unit].weight.fetch_value();
    window->end_pass();
  }
  uint64_t units_at_most() { return account.use(device::MemoryCategory::buffer).peak / (kCount * sizeof(float)); }
};

const Units kForward = {0, 1, 2, 3, 4, 5}, kBackward = {5, 4, 3, 2, 1, 0};

TEST(KeptWindow, KeepsTheLastUnitsForBackwardAndTheFirstForTheNextPass) {
  for (const size_t ahead : {1, 2, 3}) {
    WindowFixture fixture(6, static_cast<int64_t>(ahead));
    fixture.pass(kForward, kBackward);  // the first pass records the order
    fixture.window->values_changed();
    fixture.pass(kForward, kBackward);
    EXPECT_EQ(fixture.gather.started.size(), 6 + 6 - (ahead + 1)) << "turn from forward to backward, ahead " << ahead;
    fixture.pass(kForward, kBackward);  // the next micro-batch, with unchanged weights
    EXPECT_EQ(fixture.gather.started.size(), 6 - ahead + 6 - (ahead + 1)) << "start of the next pass, ahead " << ahead;
    EXPECT_LE(fixture.units_at_most(), ahead + 1);
    fixture.window->values_changed();
    EXPECT_EQ(fixture.account.use(device::MemoryCategory::buffer).current, 0u);
    fixture.pass(kForward, kBackward);
    EXPECT_EQ(fixture.gather.started.size(), 6 + 6 - (ahead + 1)) << "after a step, ahead " << ahead;
    EXPECT_EQ(fixture.gather.num_changes, 2);
  }
}

// The window hints the two units after it, nearest first, unless they are already gathered.
TEST(KeptWindow, PrefetchesTheNextTwoUnitsAfterTheWindow) {
  WindowFixture fixture(6, 1);
  fixture.pass(kForward, kBackward);
  fixture.window->values_changed();
  fixture.pass(kForward, kBackward);
  const std::vector<std::pair<size_t, int>> first = {{2, 1}, {3, 2}, {3, 1}, {4, 2}, {4, 1}, {5, 2}, {5, 1}};
  ASSERT_GE(fixture.gather.hints.size(), first.size());
  EXPECT_TRUE(std::equal(first.begin(), first.end(), fixture.gather.hints.begin()));
}

TEST(KeptWindow, FollowsAChangedWindowSize) {
  WindowFixture fixture(6, 1);
  fixture.pass(kForward, kBackward);
  fixture.window->set_ahead(4);
  fixture.window->values_changed();
  fixture.pass(kForward, kBackward);
  EXPECT_EQ(fixture.gather.started.size(), 6 + 6 - 5);
  EXPECT_EQ(fixture.units_at_most(), 5u);
}

TEST(KeptWindow, DropsUnitsThatAShorterPassDoesNotUse) {
  WindowFixture fixture(6, 2);
  fixture.pass(kForward, kBackward);
  fixture.pass({0, 1}, {1, 0});
  EXPECT_LE(fixture.account.use(device::MemoryCategory::buffer).current, 2 * WindowFixture::kCount * sizeof(float));
  fixture.pass(kForward, kBackward);
  EXPECT_LE(fixture.units_at_most(), 3u);
}

}  // namespace
}  // namespace esp::sync
