// Tests when UnitWindow gathers units, and how many at a time.
#include "esp/sync/zero/unit_window.h"

#include <gtest/gtest.h>

#include <cstring>

#include "esp/kernel/elementwise.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

// Fills unit u with the value u + 1, but only in `finish`, so that a use before `finish` is detected.
class RecordingGather final : public UnitGather {
 public:
  void start(size_t unit, const Tensor&) override { started.push_back(unit); }
  void finish(size_t unit, const Tensor& whole) override {
    finished.push_back(unit);
    kernel::fill(whole.data(), static_cast<double>(unit + 1), whole.count(), whole.dtype(), device::Stream());
  }
  double exposed_ms() const override { return 0; }
  std::vector<size_t> started, finished;
};

struct WindowFixture {
  static constexpr int64_t kCount = 10;
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads{1};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
  nn::ParameterList list;
  RecordingGather gather;
  std::unique_ptr<UnitWindow> window;

  WindowFixture(int num_units, int64_t ahead, bool keep_gathered = false) {
    for (int u = 0; u < num_units; ++u) {
      list.begin_unit(std::to_string(u));
      list.add("p" + std::to_string(u), {kCount}, nn::Init::zeros(), false);
    }
    window = std::make_unique<UnitWindow>(list, context, gather, UnitWindow::Options{DType::f32, ahead, keep_gathered});
  }
  void use(size_t unit) {
    const Tensor values = list.all()[unit].weight.fetch_value();
    ASSERT_TRUE(values.defined());
    EXPECT_EQ(values.as<float>()[kCount - 1], static_cast<float>(unit + 1));
  }
  void step(const std::vector<size_t>& forward, const std::vector<size_t>& backward) {
    gather.started.clear();
    account.reset_peaks();
    window->begin_pass(true);
    for (const size_t unit : forward) use(unit);
    window->begin_backward();
    for (const size_t unit : backward) use(unit);
    window->end_pass();
    EXPECT_EQ(account.use(device::MemoryCategory::buffer).current, 0u);
  }
  uint64_t units_at_most() { return account.use(device::MemoryCategory::buffer).peak / (kCount * sizeof(float)); }
};

TEST(UnitWindow, GathersEachUnitOnceForwardAndOnceBackward) {
  for (const int64_t ahead : {0, 1, 2, 3, 7}) {
    WindowFixture fixture(4, ahead);
    for (int step = 0; step < 3; ++step) {
      fixture.step({0, 1, 2, 3}, {3, 2, 1, 0});
      for (size_t unit = 0; unit < 4; ++unit)
        EXPECT_EQ(std::count(fixture.gather.started.begin(), fixture.gather.started.end(), unit), 2)
            << "unit " << unit << ", ahead " << ahead << ", step " << step;
      EXPECT_LE(fixture.units_at_most(), static_cast<uint64_t>(ahead) + 1);
    }
  }
}

TEST(UnitWindow, PrefetchesAfterTheOrderIsRecorded) {
  WindowFixture fixture(4, 2);
  fixture.step({0, 1, 2, 3}, {});
  fixture.gather.started.clear();
  fixture.gather.finished.clear();
  fixture.window->begin_pass(true);
  fixture.use(0);
  EXPECT_EQ(fixture.gather.started, (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(fixture.gather.finished, (std::vector<size_t>{0}));
  fixture.use(1);
  EXPECT_EQ(fixture.gather.started, (std::vector<size_t>{0, 1, 2, 3}));
  fixture.window->end_pass();
}

TEST(UnitWindow, GathersEachUnitOncePerStepWithKeepGathered) {
  WindowFixture fixture(4, 1, true);
  for (int step = 0; step < 2; ++step) {
    fixture.step({0, 1, 2, 3}, {3, 2, 1, 0});
    EXPECT_EQ(fixture.gather.started.size(), 4u);
  }
}

TEST(UnitWindow, RecordsTheOrderAgainWhenItChanges) {
  WindowFixture fixture(4, 2);
  fixture.step({0, 1, 2, 3}, {3, 2, 1, 0});
  fixture.step({0, 2, 1, 3}, {3, 1, 2, 0});
  fixture.step({0, 1}, {1, 0});
  fixture.step({0, 1, 2, 3}, {3, 2, 1, 0});
  fixture.step({3, 0}, {0, 1, 2});
  fixture.step({3, 0}, {0, 1, 2});
  EXPECT_EQ(fixture.gather.started, (std::vector<size_t>{3, 0, 0, 1, 2}));
}

TEST(UnitWindow, RecordsTrainingAndEvaluationOrdersSeparately) {
  WindowFixture fixture(3, 1);
  fixture.step({0, 1, 2}, {2, 1});
  fixture.window->begin_pass(false);
  for (const size_t unit : {0, 1, 2}) fixture.use(unit);
  fixture.window->end_pass();
  fixture.step({0, 1, 2}, {2, 1});
  EXPECT_EQ(fixture.gather.started.size(), 5u);
}

}  // namespace
}  // namespace esp::sync
