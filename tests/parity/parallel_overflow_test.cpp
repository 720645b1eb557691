// If the loss of a model that is divided over ranks is not finite, the log note must name the unit that caused it, on
// any rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include <fmt/format.h>

#include "esp/kernel/elementwise.h"
#include "tests/parity/parallel_runs.h"

namespace esp::parity {
namespace {

struct OverflowLayout {
  int ranks;
  Overrides overrides;
};

class LayoutLossOverflow : public testing::TestWithParam<OverflowLayout> {};

TEST_P(LayoutLossOverflow, LogNoteNamesUnitThatCausesNonFiniteLoss) {
  const struct {
    std::string parameter;
    double value;
    const char* message;
  } rows[] = {
      {"embedding.weight", std::nan(""), "the parameters of stem are not finite"},
      {"blocks.0.mlp.up.weight", 3e38, "blocks.0 is the first part with a non-finite output from finite parameters"},
      {"blocks.3.mlp.up.weight", HUGE_VAL, "the parameters of blocks.3 are not finite"},
      {"blocks.4.mlp.up.weight", 3e38, "blocks.4 is the first part with a non-finite output from finite parameters"},
      {"norm.weight", std::nan(""), "the parameters of head are not finite"}};
  for (const auto& row : rows) {
    LayoutRun run;
    run.ranks = GetParam().ranks;
    run.steps = 2;
    run.overrides = small_model("gpt", GetParam().overrides);
    run.overrides.emplace_back("model.dropout=0.1");
    std::mutex mutex;
    int holder = run.ranks;
    run.prepare = [&](int rank, train::Engine& engine) {
      nn::Parameter* found = engine.model().parameters().find_or_null(row.parameter);
      if (!found) return;
      const tensor::Tensor& value = found->weight.value;
      kernel::fill(value.data(), row.value, value.count(), value.dtype(), engine.context().stream);
      std::lock_guard lock(mutex);
      holder = std::min(holder, rank);
    };
    const std::vector<std::string> notes = train_layout(run).notes;
    const std::string first =
        fmt::format("step 1: the loss is not finite: {} (rank {}); the step is skipped", row.message, holder);
    EXPECT_THAT(notes, testing::ElementsAre(first, "step 2: the loss is not finite; the step is skipped"))
        << row.parameter << " = " << row.value;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LayoutLossOverflow,
    testing::Values(OverflowLayout{1, {}}, OverflowLayout{2, {"parallel.pp=2"}},
                    OverflowLayout{2, {"parallel.pp=2", "parallel.schedule=zb-h1"}},
                    OverflowLayout{2, {"parallel.pp=2", "parallel.schedule=interleaved", "parallel.interleave=2"}},
                    OverflowLayout{4, {"parallel.pp=4", "parallel.schedule=gpipe", "train.recompute=full"}},
                    OverflowLayout{4, {"parallel.pp=2", "parallel.tp=2", "parallel.sequence=true"}},
                    OverflowLayout{4, {"parallel.pp=2", "parallel.cp=2"}},
                    OverflowLayout{4, {"parallel.pp=2", "sync.method=zero1"}}),
    [](const auto& row) { return fmt::format("{}", row.index); });

}  // namespace
}  // namespace esp::parity
