// A gradient that is not finite on one rank: all skip the step, and all halve the scale alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

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

std::vector<std::string> notes_of(Plan plan) {
  std::vector<std::string> notes;
  std::mutex mutex;
  plan.noted = [&](const std::string& line) {
    std::lock_guard lock(mutex);
    notes.push_back(line);
  };
  train_ranks(plan);
  return notes;
}

TEST_P(Overflow, OfAGradientNamesTheUnitThatBackwardMetFirst) {
  Plan plan;
  plan.ranks = 2;
  plan.overrides = tiny({fmt::format("sync.method={}", GetParam())});
  plan.prepare = [](int rank, train::Engine& engine) {
    for (const char* name : {"blocks.0.mlp.up.weight", "blocks.1.mlp.up.weight"})
      if (rank == 1) poison(engine, name, 1, HUGE_VAL);
  };
  const auto notes = notes_of(plan);
  ASSERT_EQ(notes.size(), 2u);
  for (const std::string& line : notes)
    EXPECT_EQ(line,
              "step 2: gradients are not finite, in backward's order first in blocks.1, then in 1 more; it is skipped");
}

// A rate that leaves no number standing: every method's own way of bringing values together is looked through.
TEST_P(Overflow, OfTheLossIsTracedToAUnit) {
  Plan plan;
  plan.ranks = 2;
  plan.steps = 4;
  plan.overrides = tiny({fmt::format("sync.method={}", GetParam()), "train.lr=1e30", "train.warmup=0"});
  const auto notes = notes_of(plan);
  ASSERT_EQ(notes.size(), 6u);  // of three steps, by two ranks
  int traced = 0;
  for (const std::string& line : notes)
    if (line.find("step 2: ") != 0) {
      EXPECT_THAT(line, testing::HasSubstr(": the loss is not finite; it is skipped"));
    } else {
      EXPECT_THAT(line, testing::ContainsRegex("(stem|blocks|head).* \\(rank [01]\\); it is skipped$"));
      ++traced;
    }
  EXPECT_EQ(traced, 2) << "the first is looked into, by both";
}

TEST(OverflowOfTheLoss, IsToldApartByValuesAndByWhatIsMadeOfThem) {
  const struct {
    double value;
    const char* says;
  } rows[] = {{std::nan(""), "values of blocks.1 are not (rank 0)"},
              {HUGE_VAL, "values of blocks.1 are not (rank 0)"},
              {3e38, "blocks.1 is the first whose output is not, of values that are (rank 0)"}};
  for (const auto& row : rows) {
    Plan plan;
    plan.steps = 1;
    plan.overrides = tiny({"model.dropout=0.1"});
    plan.prepare = [&](int, train::Engine& engine) {
      const tensor::Tensor& value = engine.model().parameters().find("blocks.1.mlp.up.weight").weight.value;
      kernel::fill(value.data(), row.value, value.count(), value.dtype(), engine.context().stream);
    };
    EXPECT_THAT(notes_of(plan),
                testing::ElementsAre(fmt::format("step 1: the loss is not finite: {}; it is skipped", row.says)));
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, Overflow, testing::Values("allreduce", "zero1", "zero2", "zero3"),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace esp::parity
