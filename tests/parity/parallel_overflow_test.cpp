// A loss that is not finite in a model divided among ranks: the part it comes from is named, whoever holds it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include <fmt/format.h>

#include "esp/kernel/elementwise.h"
#include "tests/parity/parallel_runs.h"

namespace esp::parity {
namespace {

struct Layout {
  int ranks;
  Overrides overrides;
};

class OverflowInStages : public testing::TestWithParam<Layout> {};

TEST_P(OverflowInStages, IsTracedToTheUnit) {
  const struct {
    std::string parameter;
    double value;
    const char* says;
  } rows[] = {{"embedding.weight", std::nan(""), "values of stem are not"},
              {"blocks.0.mlp.up.weight", 3e38, "blocks.0 is the first whose output is not, of values that are"},
              {"blocks.3.mlp.up.weight", HUGE_VAL, "values of blocks.3 are not"},
              {"blocks.4.mlp.up.weight", 3e38, "blocks.4 is the first whose output is not, of values that are"},
              {"norm.weight", std::nan(""), "values of head are not"}};
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
        fmt::format("step 1: the loss is not finite: {} (rank {}); it is skipped", row.says, holder);
    EXPECT_THAT(notes, testing::ElementsAre(first, "step 2: the loss is not finite; it is skipped"))
        << row.parameter << " = " << row.value;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, OverflowInStages,
    testing::Values(Layout{1, {}}, Layout{2, {"parallel.pp=2"}},
                    Layout{2, {"parallel.pp=2", "parallel.schedule=zb-h1"}},
                    Layout{2, {"parallel.pp=2", "parallel.schedule=interleaved", "parallel.interleave=2"}},
                    Layout{4, {"parallel.pp=4", "parallel.schedule=gpipe", "train.recompute=full"}},
                    Layout{4, {"parallel.pp=2", "parallel.tp=2", "parallel.sequence=true"}},
                    Layout{4, {"parallel.pp=2", "parallel.cp=2"}}, Layout{4, {"parallel.pp=2", "sync.method=zero1"}}),
    [](const auto& row) { return fmt::format("{}", row.index); });

}  // namespace
}  // namespace esp::parity
