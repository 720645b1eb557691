// Compares N ranks with one rank that trains the whole batch. They must be equal except for the order of rounding. In
// fp64 an error (about 1e-2) is clearly larger than rounding (1e-15). fp32 and bf16 must stay within rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "esp/data/data_loader.h"
#include "esp/train/data_pipeline.h"
#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

const char* const kMethods[] = {"allreduce", "zero1", "zero2", "zero3"};

Overrides merge(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

RunResult run(int ranks, int steps, const Overrides& overrides, const char* transport = "inproc") {
  RunSpec spec;
  spec.ranks = ranks;
  spec.steps = steps;
  spec.overrides = tiny_model(overrides);
  spec.transport = transport;
  return train_ranks(spec);
}

void expect_close_in_f64(const Overrides& overrides, std::initializer_list<int> sizes,
                         const Overrides& multi_rank_overrides = {}) {
  const Overrides exact = merge({"train.precision=fp64"}, overrides);
  const RunResult one = run(1, 4, exact);
  double worst = 0;
  for (const int ranks : sizes)
    for (const char* method : kMethods) {
      const RunResult many =
          run(ranks, 4, merge(merge(exact, multi_rank_overrides), {fmt::format("sync.method={}", method)}));
      const std::string what = fmt::format("{} on {} ranks", method, ranks);
      for (size_t i = 0; i < one.steps.size(); ++i) {
        const double error = relative_distance(many.steps[i].values, one.steps[i].values, DType::f64);
        worst = std::max(worst, error);
        EXPECT_LE(error, 1e-11) << what << ", step " << i;
        EXPECT_NEAR(many.steps[i].loss, one.steps[i].loss, 1e-11 * std::abs(one.steps[i].loss)) << what;
        EXPECT_NEAR(many.steps[i].grad_norm, one.steps[i].grad_norm, 1e-11 * one.steps[i].grad_norm) << what;
      }
      EXPECT_EQ(std::isnan(many.evaluated), std::isnan(one.evaluated)) << what;
      // without held-out data both losses are NaN, and this comparison passes
      EXPECT_FALSE(std::abs(many.evaluated - one.evaluated) > 1e-11) << what;
    }
  testing::Test::RecordProperty("worst_distance", fmt::format("{:.1e}", worst));
}

TEST(SingleRankParity, SeveralRanksMatchOneRankInF64WithAdam) {
  expect_close_in_f64({"data.val_fraction=0.1"}, {2, 3, 4, 8});
}

// SGD with momentum and without clipping is sensitive to the scale of the gradient, so a wrong factor of N would be
// visible.
TEST(SingleRankParity, SeveralRanksMatchOneRankInF64WithMomentum) {
  const Overrides plain = {"train.optimizer=sgd", "train.clip=0", "data.val_fraction=0.1"};
  expect_close_in_f64(plain, {2, 4});
  const Overrides exact = merge({"train.precision=fp64"}, plain);
  const RunResult one = run(1, 4, exact), doubled = run(1, 4, merge(exact, {"train.lr=0.02"}));
  EXPECT_GT(relative_distance(doubled.steps.back().values, one.steps.back().values, DType::f64), 1e-4);
}

TEST(SingleRankParity, SeveralRanksMatchOneRankInF64ForOtherModels) {
  expect_close_in_f64({"model.tie_embeddings=false", "data.val_fraction=0.1"}, {2, 3});
  expect_close_in_f64(
      {"model.arch=llama", "model.norm=rms", "model.positions=rotary", "model.gated=true", "model.bias=false",
       "model.tie_embeddings=false", "model.kv_heads=1", "model.dim=18", "data.val_fraction=0.1"},
      {3});
}

TEST(SingleRankParity, SeveralRanksMatchOneRankInF64WithLocalAndReducedAccumulation) {
  const Overrides micro = {"data.val_fraction=0.1", "train.clip=0.05"};
  expect_close_in_f64(micro, {2, 3}, {"train.micro_batch=2"});  // zero2 and zero3 reduce after every micro-batch
  expect_close_in_f64(micro, {3}, {"train.micro_batch=4", "sync.accumulate=local"});
}

TEST(SingleRankParity, SeveralRanksMatchOneRankInF64WithRecomputationAndDropout) {
  for (const char* recompute : {"full", "selective"})
    expect_close_in_f64({"model.dropout=0.1", fmt::format("train.recompute={}", recompute), "data.val_fraction=0.1"},
                        {3});
}

// Masked positions are drawn per row, so the ranks count different numbers of tokens.
TEST(SingleRankParity, SeveralRanksMatchOneRankInF64WhenTokenCountsDiffer) {
  const Overrides bert = {"model.arch=bert",    "model.vocab=263",       "model.post_norm=true",
                          "data.mask_rate=0.3", "data.val_fraction=0.1", "train.optimizer=sgd"};
  train::RunConfig config = parse_config(tiny_model(bert));
  const auto feed = train::make_data_pipeline(config, Log());
  std::set<int64_t> counts;
  for (uint64_t first = 0; first < 24; first += 6) {
    data::Batch batch;
    data::fill_batch(*feed->train, first, 6, batch);
    counts.insert(batch.counted);
  }
  EXPECT_GT(counts.size(), 1u) << "four ranks count equal numbers of tokens, so the test proves nothing";
  expect_close_in_f64(bert, {2, 4});
}

// The loss must be the mean over all tokens, not the mean of the ranks' means. Rows are padded, so the ranks have very
// different numbers of tokens.
TEST(SingleRankParity, SeveralRanksMatchOneRankInF64WhenRowsArePadded) {
  expect_close_in_f64(
      {"model.arch=t5", "data.objective=pairs", "data.train=" + pairs_file(), "model.vocab=263", "train.clip=0"},
      {3, 4});
}

TEST(SingleRankParity, SeveralRanksMatchOneRankInF32) {
  const Overrides sgd = {"train.optimizer=sgd", "data.val_fraction=0.1"};
  const RunResult one = run(1, 10, sgd), adam = run(1, 10, {"data.val_fraction=0.1"});
  for (const char* method : kMethods)
    for (const char* transport : {"inproc", "auto"}) {
      const std::string set = fmt::format("sync.method={}", method);
      const RunResult many = run(4, 10, merge(sgd, {set}), transport);
      EXPECT_NEAR(many.steps.back().loss, one.steps.back().loss, 1e-5) << method;
      EXPECT_LE(relative_distance(many.steps.back().values, one.steps.back().values, DType::f32), 1e-5) << method;
      EXPECT_NEAR(many.evaluated, one.evaluated, 1e-5) << method;
      const RunResult by_adam = run(3, 10, {"data.val_fraction=0.1", set}, transport);
      EXPECT_NEAR(by_adam.steps.back().loss, adam.steps.back().loss, 1e-5) << method;
      EXPECT_LE(relative_distance(by_adam.steps.back().values, adam.steps.back().values, DType::f32), 1e-3) << method;
    }
}

TEST(SingleRankParity, SeveralRanksMatchOneRankIn16Bits) {
  for (const char* precision : {"bf16", "fp16"}) {
    const Overrides half = {fmt::format("train.precision={}", precision)};
    const RunResult one = run(1, 10, half);
    for (const char* method : kMethods) {
      const RunResult many = run(4, 10, merge(half, {fmt::format("sync.method={}", method)}), "auto");
      for (size_t i = 0; i < one.steps.size(); ++i)
        EXPECT_NEAR(many.steps[i].loss, one.steps[i].loss, 0.02 * one.steps[i].loss) << method << " " << precision;
    }
  }
}

// With a 16-bit wire type, each gradient is rounded once before it is sent and once by each sum.
TEST(SingleRankParity, SeveralRanksMatchOneRankWith16BitWireType) {
  const Overrides sgd = {"train.optimizer=sgd"};
  for (const char* wire : {"bf16", "fp16"})
    for (const char* method : kMethods) {
      const Overrides set = merge(sgd, {fmt::format("sync.method={}", method)});
      const RunResult plain = run(3, 6, set), rounded = run(3, 6, merge(set, {fmt::format("sync.wire={}", wire)}));
      const double error = relative_distance(rounded.steps.back().values, plain.steps.back().values, DType::f32);
      EXPECT_LE(error, 1e-3) << method << " " << wire;
      EXPECT_GT(error, 1e-9) << method << " " << wire << ": nothing was rounded";
      EXPECT_NEAR(rounded.steps.back().loss, plain.steps.back().loss, 0.02 * plain.steps.back().loss) << method;
    }
}

// Four ranks, in shard groups of 1, 2 and 4 ranks.
TEST(SingleRankParity, SeveralRanksMatchOneRankWithShardGroups) {
  const Overrides exact = {"train.precision=fp64", "data.val_fraction=0.1", "train.clip=0.05"};
  const RunResult one = run(1, 4, exact);
  for (const char* method : {"zero1", "zero2", "zero3"})
    for (const char* group : {"1", "2", "4"}) {
      const RunResult many =
          run(4, 4, merge(exact, {fmt::format("sync.method={}", method), fmt::format("sync.group={}", group)}));
      EXPECT_LE(relative_distance(many.steps.back().values, one.steps.back().values, DType::f64), 1e-11)
          << method << " in groups of " << group;
      EXPECT_NEAR(many.evaluated, one.evaluated, 1e-11) << method;
    }
}

}  // namespace
}  // namespace esp::parity
