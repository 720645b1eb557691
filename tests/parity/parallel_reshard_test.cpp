// Checkpoints do not depend on the layout: a run that is saved in one layout and resumed in another must equal an
// uninterrupted run.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/obs/temporary_folder.h"
#include "tests/parity/parallel_runs.h"

namespace esp::parity {
namespace {

struct ReshardLayout {
  const char* name;
  int ranks;
  Overrides overrides;
};

Overrides merge(Overrides all, const Overrides& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

const ReshardLayout kReshardLayouts[] = {
    {"tp2_pp2", 4, {"parallel.tp=2", "parallel.pp=2"}},
    {"dp4", 4, {"sync.method=zero3", "train.micro_batch=1"}},
    {"cp2", 2, {"parallel.cp=2"}},
    {"pp3", 3, {"parallel.pp=3", "parallel.schedule=gpipe"}},
    {"tp3", 3, {"parallel.tp=3"}},
    {"tp4_dp2_zero1", 8, {"parallel.tp=4", "sync.method=zero1"}},
    {"tp2_pp2_dp2_zero2", 8, {"parallel.tp=2", "parallel.pp=2", "sync.method=zero2"}},
    {"one", 1, {}},
};

// Trains 4 steps in layout `first` and 6 in layout `second`, and compares them with 10 steps of one process.
void expect_resumes_equal(const Overrides& model, const ReshardLayout& first, const ReshardLayout& second,
                          const LayoutResult& uninterrupted, double tolerance) {
  const obs::TemporaryFolder folder;
  train_layout({.ranks = first.ranks, .steps = 4, .overrides = merge(model, first.overrides), .save = folder.path()});
  const LayoutResult rest =
      train_layout({.ranks = second.ranks, .overrides = merge(model, second.overrides), .resume = folder / "step-4"});
  ASSERT_EQ(rest.losses.size(), 6u);
  for (size_t i = 0; i < rest.losses.size(); ++i)
    EXPECT_NEAR(rest.losses[i], uninterrupted.losses[i + 4], tolerance) << first.name << " to " << second.name;
  if (tolerance > 1e-6) return;  // in 16 bits only the losses are compared
  EXPECT_LE(parameter_error(rest, uninterrupted), tolerance) << first.name << " to " << second.name;
}

class Reshard : public testing::TestWithParam<const char*> {};

TEST_P(Reshard, ResumesInAnyOtherLayout) {
  Overrides model = small_model(GetParam(), {"train.precision=fp64", "model.dropout=0.1"});
  if (std::string(GetParam()) == "llama") model.emplace_back("model.kv_heads=12");
  const LayoutResult uninterrupted = train_layout({.ranks = 1, .overrides = model});
  for (size_t i = 0; i < std::size(kReshardLayouts); ++i)
    for (const size_t ahead : {1u, 3u})
      expect_resumes_equal(model, kReshardLayouts[i], kReshardLayouts[(i + ahead) % std::size(kReshardLayouts)],
                           uninterrupted, 1e-11);
}

INSTANTIATE_TEST_SUITE_P(Models, Reshard, testing::Values("gpt", "llama", "bert"),
                         [](const auto& row) { return std::string(row.param); });

TEST(Reshard, ResumesWithExpertsOnOtherRanks) {
  const Overrides model = small_model("gpt", {"train.precision=fp64", "model.moe.experts=4", "model.moe.every=2"});
  const LayoutResult uninterrupted = train_layout({.ranks = 1, .overrides = model});
  const ReshardLayout layouts[] = {{"ep2", 2, {"parallel.dp=2", "parallel.ep=2"}},
                                   {"ep2_pp2", 4, {"parallel.dp=2", "parallel.ep=2", "parallel.pp=2"}},
                                   {"ep4_zero1", 4, {"parallel.ep=4", "train.micro_batch=1", "sync.method=zero1"}},
                                   {"tp2", 2, {"parallel.tp=2"}}};
  for (size_t i = 0; i < 4; ++i) expect_resumes_equal(model, layouts[i], layouts[(i + 1) % 4], uninterrupted, 1e-11);
}

TEST(Reshard, KeepsMasterWeightsOf16BitTraining) {
  const Overrides model = small_model("gpt", {"train.precision=bf16"});
  const LayoutResult uninterrupted = train_layout({.ranks = 1, .overrides = model});
  expect_resumes_equal(model, kReshardLayouts[0], kReshardLayouts[5], uninterrupted, 0.05);
  // If the layout does not change, the resumed training must be bit-identical.
  const obs::TemporaryFolder folder;
  const Overrides divided = merge(model, kReshardLayouts[6].overrides);
  const LayoutResult reference = train_layout({.ranks = 8, .overrides = divided});
  train_layout({.ranks = 8, .steps = 4, .overrides = divided, .save = folder.path()});
  const LayoutResult rest = train_layout({.ranks = 8, .overrides = divided, .resume = folder / "step-4"});
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(rest.losses[i], reference.losses[i + 4]) << i;
  for (const auto& [name, values] : reference.parameters)
    EXPECT_TRUE(rest.parameters.at(name).bytes == values.bytes) << name;
}

// Parallel layouts must reject a checkpoint of another model too.
TEST(Reshard, RejectsACheckpointOfAnotherModel) {
  const obs::TemporaryFolder folder;
  train_layout({.ranks = 2, .steps = 1, .overrides = small_model("gpt", {"parallel.tp=2"}), .save = folder.path()});
  EXPECT_THROW(train_layout({.ranks = 2,
                             .steps = 2,
                             .overrides = small_model("gpt", {"parallel.tp=2", "model.ffn=41"}),
                             .resume = folder / "step-1"}),
               IoError);
}

TEST(Reshard, InitialisesFromTheWeightsOfAnotherRun) {
  const obs::TemporaryFolder folder;
  const Overrides model = small_model("gpt", {"train.precision=fp64"});
  train_layout(
      {.ranks = 4, .steps = 3, .overrides = merge(model, kReshardLayouts[0].overrides), .save = folder.path()});
  const LayoutResult uninterrupted = train_layout({.ranks = 1, .overrides = model, .init = folder / "step-3"});
  const LayoutResult fresh = train_layout({.ranks = 1, .overrides = model});
  EXPECT_GT(loss_error(fresh, uninterrupted), 0.01);
  for (const ReshardLayout& layout : {kReshardLayouts[0], kReshardLayouts[1], kReshardLayouts[3], kReshardLayouts[4]}) {
    const LayoutResult many =
        train_layout({.ranks = layout.ranks, .overrides = merge(model, layout.overrides), .init = folder / "step-3"});
    EXPECT_LE(loss_error(many, uninterrupted), 1e-11) << layout.name;
    EXPECT_LE(parameter_error(many, uninterrupted), 1e-11) << layout.name;
  }
}

}  // namespace
}  // namespace esp::parity
