// The delayed update against plain programs with its recurrence: w[k+1] = update(w[k], gradient at w[k−1]) from the
// step after W on, nothing at step W, and no delay before.
#include <gtest/gtest.h>

#include <cstring>

#include "esp/kernel/elementwise.h"
#include "esp/obs/temporary_folder.h"
#include "esp/sync/tier/offloaded_optimizer.h"

namespace esp::sync {
namespace {

constexpr int64_t kRows = 61, kCols = 7, kCount = kRows * kCols + kCols;

std::vector<char> bytes_of(const tensor::Tensor& x) {
  const auto* data = static_cast<const char*>(x.data());
  return {data, data + x.bytes()};
}

// Values, gradients and what computes the second from the first.
struct Machine {
  explicit Machine(const tensor::Context& c, DType type) : context(c) {
    list.begin_unit("u");
    list.add("w", {kRows, kCols}, nn::Init::normal(1), true);
    list.add("b", {kCols}, nn::Init::normal(1), false);
    list.materialize(context, type, true);
    list.initialise(3, context.stream);
  }
  tensor::Tensor& values() { return list.units()[0].values; }
  tensor::Tensor& grads() { return list.units()[0].grads; }

  // F = Σ a[i]·(w[i] − c[i])² / 2, with noise of the step's own: no two steps have the same gradients.
  void backward(int64_t step) {
    const tensor::Tensor w = tensor::cast_to(context, values(), DType::f64, device::MemoryCategory::other);
    tensor::Tensor g = tensor::empty(context, {kCount}, DType::f64, device::MemoryCategory::other);
    kernel::fill_normal(g.data(), 0, 0.05, 11, static_cast<uint64_t>(step), 0, kCount, DType::f64, context.stream);
    for (int64_t i = 0; i < kCount; ++i)
      g.as<double>()[i] += (0.5 + static_cast<double>(i % 13) / 13) * (w.as<double>()[i] - static_cast<double>(i % 5));
    kernel::cast(grads().data(), grads().dtype(), g.data(), DType::f64, kCount, context.stream);
  }

  const tensor::Context context;
  nn::ParameterList list;
};

double rate(int64_t step) {
  return 1e-2 / static_cast<double>(step + 1);
}
double scale(int64_t step) {
  return step % 2 ? 1 : 0.5;
}

struct DelayedTest : testing::TestWithParam<std::tuple<const char*, DType>> {
  device::MemoryAccount account;
  device::Pool pool{account}, host{account, device::MemoryTier::host};
  tensor::Context context{{}, &pool};
  device::HostLink link;
  obs::TemporaryFolder folder;
  optim::OptimizerOptions rule{.name = "adamw", .weight_decay = 0.1};

  std::unique_ptr<OffloadedOptimizer> offloaded(Machine& machine, int64_t delay_after) {
    TierOptions options;
    options.placement = std::get<0>(GetParam());
    options.tile = 100;
    options.delay_after = delay_after;
    options.host_threads = 2;
    options.file.folder = folder.path();
    return make_offloaded_optimizer(rule, machine.list, context.stream, host, link, optim::everything(machine.list),
                                    options);
  }
  DType type() const { return std::get<1>(GetParam()); }

  // The values after every step, by the recurrence and by nothing else of ours than the optimizer on the device.
  std::vector<std::vector<char>> recurrence(int64_t delay_after, int64_t steps) {
    Machine machine(context, type());
    auto optimizer = optim::make_optimizer(rule, machine.list, context);
    std::vector<std::vector<char>> trajectory;
    tensor::Tensor kept = tensor::copy_of(context, machine.grads(), device::MemoryCategory::other);
    for (int64_t k = 0; k < steps; ++k) {
      machine.backward(k);  // at w[k]
      if (k < delay_after) {
        optimizer->step(rate(k), scale(k));
      } else {
        const tensor::Tensor fresh = tensor::copy_of(context, machine.grads(), device::MemoryCategory::other);
        if (k > delay_after) {
          std::memcpy(machine.grads().data(), kept.data(), kept.bytes());
          optimizer->step(rate(k - 1), scale(k - 1));
        }
        kept = fresh;
      }
      trajectory.push_back(bytes_of(machine.values()));
    }
    return trajectory;
  }
};

TEST_P(DelayedTest, FollowsItsRecurrenceBitForBit) {
  for (const int64_t delay_after : {1, 4}) {
    Machine machine(context, type());
    auto optimizer = offloaded(machine, delay_after);
    const auto expected = recurrence(delay_after, 12);
    for (int64_t k = 0; k < 12; ++k) {
      machine.backward(k);
      optimizer->step(rate(k), scale(k));
      EXPECT_EQ(bytes_of(machine.values()), expected[static_cast<size_t>(k)]) << delay_after << " " << k;
    }
    EXPECT_EQ(expected[static_cast<size_t>(delay_after)], expected[static_cast<size_t>(delay_after) - 1]);
    EXPECT_EQ(optimizer->num_steps(), 12);
  }
}

TEST_P(DelayedTest, PiecesTakenDuringBackwardMeetAnUpdateUnderWay) {
  Machine machine(context, type());
  auto optimizer = offloaded(machine, 2);
  const auto expected = recurrence(2, 10);
  for (int64_t k = 0; k < 10; ++k) {
    machine.backward(k);
    for (int64_t end = kCount; end > 0; end -= 50) {
      const int64_t begin = std::max<int64_t>(0, end - 50);
      optimizer->take_gradient(0, begin, machine.grads().slice(begin, end));
    }
    kernel::fill(machine.grads().data(), 1e9, kCount, type(), context.stream);  // what was taken is what counts
    optimizer->step(rate(k), scale(k));
    EXPECT_EQ(bytes_of(machine.values()), expected[static_cast<size_t>(k)]) << k;
  }
}

TEST_P(DelayedTest, StoppingAndResumingIsNotStopping) {
  for (const int64_t stop : {2, 3, 7}) {  // before the delay begins, at its first step, within it
    Machine first(context, type()), second(context, type());
    auto before = offloaded(first, 3);
    const auto expected = recurrence(3, 12);
    for (int64_t k = 0; k < stop; ++k) {
      first.backward(k);
      before->step(rate(k), scale(k));
    }
    auto after = offloaded(second, 3);
    std::memcpy(second.values().data(), first.values().data(), first.values().bytes());
    const auto from = before->states(), to = after->states();
    ASSERT_EQ(from.size(), 3u);
    for (size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(from[i].slot, to[i].slot);
      std::memcpy(to[i].values.data(), from[i].values.data(), from[i].values.bytes());
    }
    after->set_num_steps(before->num_steps());
    after->states_restored();
    for (int64_t k = stop; k < 12; ++k) {
      second.backward(k);
      after->step(rate(k), scale(k));
      EXPECT_EQ(bytes_of(second.values()), expected[static_cast<size_t>(k)]) << stop << " " << k;
    }
  }
}

TEST_P(DelayedTest, EveryStepButTheFirstDelayedMovesAllUpAndAllDown) {
  Machine machine(context, type());
  auto optimizer = offloaded(machine, 2);
  const uint64_t bytes = machine.values().bytes(), down = link.bytes_down(), up = link.bytes_up();
  for (int64_t k = 0; k < 6; ++k) {
    machine.backward(k);
    optimizer->step(rate(k), scale(k));
  }
  EXPECT_EQ(link.bytes_down() - down, 6 * bytes);
  EXPECT_EQ(link.bytes_up() - up, 5 * bytes);
  EXPECT_EQ(account.use(device::MemoryCategory::gradient, device::MemoryTier::host).current, 2 * bytes);
}

INSTANTIATE_TEST_SUITE_P(Placement, DelayedTest,
                         testing::Combine(testing::Values("host", "file"), testing::Values(DType::bf16, DType::f32)),
                         [](const auto& row) {
                           return fmt::format("{}_{}", std::get<0>(row.param), name_of(std::get<1>(row.param)));
                         });

}  // namespace
}  // namespace esp::sync
