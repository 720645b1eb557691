// A gradient that is not finite on one rank: all skip the step, and all halve the scale alike.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include <fmt/format.h>

#include "esp/kernel/elementwise.h"
#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

// Rank `rank` finds an infinity in the gradient of `name` in step `step`, as backward leaves it.
void poison(train::Engine& engine, std::string_view name, int64_t step, double value) {
  autograd::Weight& weight = engine.model().parameters().find(name).weight;
  weight.on_ready = [&engine, &weight, step, value, inner = weight.on_ready] {
    if (engine.num_steps() == step)
      kernel::fill(weight.grad.data(), value, 1, weight.grad.dtype(), engine.context().stream);
    inner();
  };
}

class Overflow : public testing::TestWithParam<const char*> {};

TEST_P(Overflow, OnOneRankIsAgreedByAll) {
  for (const char* precision : {"fp16", "bf16"})
    for (const double value : {HUGE_VAL, std::nan("")}) {
      Plan plan;
      plan.ranks = 3;
      plan.steps = 4;
      plan.overrides = tiny({fmt::format("sync.method={}", GetParam()), fmt::format("train.precision={}", precision)});
      plan.prepare = [&](int rank, train::Engine& engine) {
        if (rank == 1) poison(engine, "blocks.1.mlp.up.weight", 2, value);
      };
      const Seen seen = train_ranks(plan);  // every rank says the same of each step
      const double first = std::string(precision) == "fp16" ? 65536 : 1;
      const double halved = std::string(precision) == "fp16" ? 32768 : 1;
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(seen.steps[i].skipped, i == 2) << i;
        EXPECT_EQ(seen.steps[i].scale, i < 2 ? first : halved) << i;
      }
      EXPECT_TRUE(seen.steps[2].values == seen.steps[1].values) << "a skipped step changed values";
      EXPECT_FALSE(seen.steps[3].values == seen.steps[2].values);
      EXPECT_TRUE(std::isfinite(seen.steps[3].grad_norm));
    }
}

INSTANTIATE_TEST_SUITE_P(Methods, Overflow, testing::Values("allreduce", "zero1", "zero2", "zero3"),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace esp::parity
