// Checkpoints bind no layout: saved under one and resumed under another, training goes on as if nothing had happened.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/obs/temporary_folder.h"
#include "tests/parity/parallel_runs.h"

namespace esp::parity {
namespace {

struct Side {
  const char* name;
  int ranks;
  Overrides layout;
};

Overrides with(Overrides all, const Overrides& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

const Side kSides[] = {
    {"tp2_pp2", 4, {"parallel.tp=2", "parallel.pp=2"}},
    {"dp4", 4, {"sync.method=zero3", "train.micro_batch=1"}},
    {"cp2", 2, {"parallel.cp=2"}},
    {"pp3", 3, {"parallel.pp=3", "parallel.schedule=gpipe"}},
    {"tp3", 3, {"parallel.tp=3"}},
    {"tp4_dp2_zero1", 8, {"parallel.tp=4", "sync.method=zero1"}},
    {"tp2_pp2_dp2_zero2", 8, {"parallel.tp=2", "parallel.pp=2", "sync.method=zero2"}},
    {"one", 1, {}},
};

// Ten steps under `first` for four of them, then under `second`, against ten of one process.
void expect_going_on(const Overrides& model, const Side& first, const Side& second, const Trained& whole,
                     double tolerance) {
  const obs::TemporaryFolder folder;
  train_layout({.ranks = first.ranks, .steps = 4, .overrides = with(model, first.layout), .save = folder.path()});
  const Trained rest =
      train_layout({.ranks = second.ranks, .overrides = with(model, second.layout), .resume = folder / "step-4"});
  ASSERT_EQ(rest.losses.size(), 6u);
  for (size_t i = 0; i < rest.losses.size(); ++i)
    EXPECT_NEAR(rest.losses[i], whole.losses[i + 4], tolerance) << first.name << " to " << second.name;
  if (tolerance > 1e-6) return;  // of sixteen bits only the loss is comparable
  EXPECT_LE(parameter_error(rest, whole), tolerance) << first.name << " to " << second.name;
}

class Reshard : public testing::TestWithParam<const char*> {};

TEST_P(Reshard, FromAnyLayoutToAnyOther) {
  Overrides model = small_model(GetParam(), {"train.precision=fp64", "model.dropout=0.1"});
  if (std::string(GetParam()) == "llama") model.emplace_back("model.kv_heads=12");
  const Trained whole = train_layout({.ranks = 1, .overrides = model});
  for (size_t i = 0; i < std::size(kSides); ++i)
    for (const size_t ahead : {1u, 3u})
      expect_going_on(model, kSides[i], kSides[(i + ahead) % std::size(kSides)], whole, 1e-11);
}

INSTANTIATE_TEST_SUITE_P(Models, Reshard, testing::Values("gpt", "llama", "bert"),
                         [](const auto& row) { return std::string(row.param); });

TEST(Reshard, MovesExperts) {
  const Overrides model = small_model("gpt", {"train.precision=fp64", "model.moe.experts=4", "model.moe.every=2"});
  const Trained whole = train_layout({.ranks = 1, .overrides = model});
  const Side sides[] = {{"ep2", 2, {"parallel.dp=2", "parallel.ep=2"}},
                        {"ep2_pp2", 4, {"parallel.dp=2", "parallel.ep=2", "parallel.pp=2"}},
                        {"ep4_zero1", 4, {"parallel.ep=4", "train.micro_batch=1", "sync.method=zero1"}},
                        {"tp2", 2, {"parallel.tp=2"}}};
  for (size_t i = 0; i < 4; ++i) expect_going_on(model, sides[i], sides[(i + 1) % 4], whole, 1e-11);
}

TEST(Reshard, KeepsMastersOfSixteenBits) {
  const Overrides model = small_model("gpt", {"train.precision=bf16"});
  const Trained whole = train_layout({.ranks = 1, .overrides = model});
  expect_going_on(model, kSides[0], kSides[5], whole, 0.05);
  // Back under the layout that made it, every bit is the same.
  const obs::TemporaryFolder folder;
  const Overrides divided = with(model, kSides[6].layout);
  const Trained through = train_layout({.ranks = 8, .overrides = divided});
  train_layout({.ranks = 8, .steps = 4, .overrides = divided, .save = folder.path()});
  const Trained rest = train_layout({.ranks = 8, .overrides = divided, .resume = folder / "step-4"});
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(rest.losses[i], through.losses[i + 4]) << i;
  for (const auto& [name, values] : through.parameters)
    EXPECT_TRUE(rest.parameters.at(name).bytes == values.bytes) << name;
}

// Another model's checkpoint is told by name, under a layout too.
TEST(Reshard, AnotherModelsCheckpointIsRefused) {
  const obs::TemporaryFolder folder;
  train_layout({.ranks = 2, .steps = 1, .overrides = small_model("gpt", {"parallel.tp=2"}), .save = folder.path()});
  EXPECT_THROW(train_layout({.ranks = 2,
                             .steps = 2,
                             .overrides = small_model("gpt", {"parallel.tp=2", "model.ffn=41"}),
                             .resume = folder / "step-1"}),
               IoError);
}

TEST(Reshard, ARunBeginsWithAnothersParameters) {
  const obs::TemporaryFolder folder;
  const Overrides model = small_model("gpt", {"train.precision=fp64"});
  train_layout({.ranks = 4, .steps = 3, .overrides = with(model, kSides[0].layout), .save = folder.path()});
  const Trained whole = train_layout({.ranks = 1, .overrides = model, .init = folder / "step-3"});
  const Trained fresh = train_layout({.ranks = 1, .overrides = model});
  EXPECT_GT(loss_error(fresh, whole), 0.01);
  for (const Side& side : {kSides[0], kSides[1], kSides[3], kSides[4]}) {
    const Trained many =
        train_layout({.ranks = side.ranks, .overrides = with(model, side.layout), .init = folder / "step-3"});
    EXPECT_LE(loss_error(many, whole), 1e-11) << side.name;
    EXPECT_LE(parameter_error(many, whole), 1e-11) << side.name;
  }
}

}  // namespace
}  // namespace esp::parity
