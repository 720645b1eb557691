// If a gradient on one rank is not finite, all ranks must skip the step and halve the loss scale.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include <fmt/format.h>

#include "esp/kernel/elementwise.h"
#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

// At step `step`, writes `value` into the gradient of parameter `name`, as if backward had computed it.
void inject_value(train::Engine& engine, std::string_view name, int64_t step, double value) {
  autograd::Weight& weight = engine.model().parameters().find(name).weight;
  weight.on_ready = [&engine, &weight, step, value, inner = weight.on_ready] {
    if (engine.num_steps() == step)
      kernel::fill(weight.grad.data(), value, 1, weight.grad.dtype(), engine.context().stream);
    inner();
  };
}

class Overflow : public testing::TestWithParam<const char*> {};

TEST_P(Overflow, OverflowOnOneRankSkipsStepOnAllRanks) {
  for (const char* precision : {"fp16", "bf16"})
    for (const double value : {HUGE_VAL, std::nan("")}) {
      RunSpec spec;
      spec.ranks = 3;
      spec.steps = 4;
      spec.overrides =
          tiny_model({fmt::format("sync.method={}", GetParam()), fmt::format("train.precision={}", precision)});
      spec.prepare = [&](int rank, train::Engine& engine) {
        if (rank == 1) inject_value(engine, "blocks.1.mlp.up.weight", 2, value);
      };
      const RunResult seen = train_ranks(spec);  // also checks that all ranks report the same steps
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

std::vector<std::string> collect_notes(RunSpec spec) {
  std::vector<std::string> notes;
  std::mutex mutex;
  spec.on_note = [&](const std::string& line) {
    std::lock_guard lock(mutex);
    notes.push_back(line);
  };
  train_ranks(spec);
  return notes;
}

TEST_P(Overflow, ReportsFirstUnitInBackwardOrderForGradients) {
  RunSpec spec;
  spec.ranks = 2;
  spec.overrides = tiny_model({fmt::format("sync.method={}", GetParam())});
  spec.prepare = [](int rank, train::Engine& engine) {
    for (const char* name : {"blocks.0.mlp.up.weight", "blocks.1.mlp.up.weight"})
      if (rank == 1) inject_value(engine, name, 1, HUGE_VAL);
  };
  const auto notes = collect_notes(spec);
  ASSERT_EQ(notes.size(), 2u);
  for (const std::string& line : notes)
    EXPECT_EQ(line,
              "step 2: gradients are not finite, first in blocks.1 (backward order), then in 1 more unit; the step is "
              "skipped");
}

// A huge learning rate makes every weight non-finite. The search for the unit must work however a method stores the
// weights.
TEST_P(Overflow, TracesNonFiniteLossToUnit) {
  RunSpec spec;
  spec.ranks = 2;
  spec.steps = 4;
  spec.overrides = tiny_model({fmt::format("sync.method={}", GetParam()), "train.lr=1e30", "train.warmup=0"});
  const auto notes = collect_notes(spec);
  ASSERT_EQ(notes.size(), 6u);  // three skipped steps, reported by two ranks
  int traced = 0;
  for (const std::string& line : notes)
    if (line.find("step 2: ") != 0) {
      EXPECT_THAT(line, testing::HasSubstr(": the loss is not finite; the step is skipped"));
    } else {
      EXPECT_THAT(line, testing::ContainsRegex("(stem|blocks|head).* \\(rank [01]\\); the step is skipped$"));
      ++traced;
    }
  EXPECT_EQ(traced, 2) << "both ranks trace the first non-finite loss";
}

TEST(LossOverflow, DistinguishesNonFiniteWeightsFromNonFiniteOutputs) {
  const struct {
    double value;
    const char* message;
  } rows[] = {{std::nan(""), "the parameters of blocks.1 are not finite (rank 0)"},
              {HUGE_VAL, "the parameters of blocks.1 are not finite (rank 0)"},
              {3e38, "blocks.1 is the first part with a non-finite output from finite parameters (rank 0)"}};
  for (const auto& row : rows) {
    RunSpec spec;
    spec.steps = 1;
    spec.overrides = tiny_model({"model.dropout=0.1"});
    spec.prepare = [&](int, train::Engine& engine) {
      const tensor::Tensor& value = engine.model().parameters().find("blocks.1.mlp.up.weight").weight.value;
      kernel::fill(value.data(), row.value, value.count(), value.dtype(), engine.context().stream);
    };
    EXPECT_THAT(collect_notes(spec), testing::ElementsAre(fmt::format(
                                         "step 1: the loss is not finite: {}; the step is skipped", row.message)));
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, Overflow, testing::Values("allreduce", "zero1", "zero2", "zero3"),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace esp::parity
