// N ranks against one rank with the whole batch: the same mathematics, rounded in another order. In fp64 a mistake
// (1e-2) and rounding (1e-15) cannot be confused; fp32 and bf16 stay within what rounding explains.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "esp/data/loader.h"
#include "esp/train/feed.h"
#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

const char* const kMethods[] = {"allreduce", "zero1", "zero2", "zero3"};

Overrides joined(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Seen run(int ranks, int steps, const Overrides& overrides, const char* transport = "inproc") {
  Plan plan;
  plan.ranks = ranks;
  plan.steps = steps;
  plan.overrides = tiny(overrides);
  plan.transport = transport;
  return train_ranks(plan);
}

void expect_close_in_f64(const Overrides& overrides, std::initializer_list<int> sizes, const Overrides& of_many = {}) {
  const Overrides exact = joined({"train.precision=fp64"}, overrides);
  const Seen one = run(1, 4, exact);
  double worst = 0;
  for (const int ranks : sizes)
    for (const char* method : kMethods) {
      const Seen many = run(ranks, 4, joined(joined(exact, of_many), {fmt::format("sync.method={}", method)}));
      const std::string what = fmt::format("{} on {} ranks", method, ranks);
      for (size_t i = 0; i < one.steps.size(); ++i) {
        const double apart = distance(many.steps[i].values, one.steps[i].values, DType::f64);
        worst = std::max(worst, apart);
        EXPECT_LE(apart, 1e-11) << what << ", step " << i;
        EXPECT_NEAR(many.steps[i].loss, one.steps[i].loss, 1e-11 * std::abs(one.steps[i].loss)) << what;
        EXPECT_NEAR(many.steps[i].grad_norm, one.steps[i].grad_norm, 1e-11 * one.steps[i].grad_norm) << what;
      }
      EXPECT_EQ(std::isnan(many.evaluated), std::isnan(one.evaluated)) << what;
      EXPECT_FALSE(std::abs(many.evaluated - one.evaluated) > 1e-11) << what;  // where there is anything held out
    }
  testing::Test::RecordProperty("worst_distance", fmt::format("{:.1e}", worst));
}

TEST(Rounding, InF64WithAdam) {
  expect_close_in_f64({"data.val_fraction=0.1"}, {2, 3, 4, 8});
}

// Momentum without clipping keeps every factor: a gradient too large or too small by N would show at once.
TEST(Rounding, InF64WithMomentumNoFactorOfNIsLost) {
  const Overrides plain = {"train.optimizer=sgd", "train.clip=0", "data.val_fraction=0.1"};
  expect_close_in_f64(plain, {2, 4});
  const Overrides exact = joined({"train.precision=fp64"}, plain);
  const Seen one = run(1, 4, exact), doubled = run(1, 4, joined(exact, {"train.lr=0.02"}));
  EXPECT_GT(distance(doubled.steps.back().values, one.steps.back().values, DType::f64), 1e-4);
}

TEST(Rounding, InF64OfOtherShapes) {
  expect_close_in_f64({"model.tie_embeddings=false", "data.val_fraction=0.1"}, {2, 3});
  expect_close_in_f64(
      {"model.arch=llama", "model.norm=rms", "model.positions=rotary", "model.gated=true", "model.bias=false",
       "model.tie_embeddings=false", "model.kv_heads=1", "model.dim=18", "data.val_fraction=0.1"},
      {3});
}

TEST(Rounding, InF64WithMicroBatchesAddedUpBeforeOrAfterReducing) {
  const Overrides micro = {"data.val_fraction=0.1", "train.clip=0.05"};
  expect_close_in_f64(micro, {2, 3}, {"train.micro_batch=2"});  // stages 2 and 3 reduce every micro-batch
  expect_close_in_f64(micro, {3}, {"train.micro_batch=4", "sync.accumulate=local"});
}

TEST(Rounding, InF64WithRecomputationAndDropout) {
  for (const char* recompute : {"full", "selective"})
    expect_close_in_f64({"model.dropout=0.1", fmt::format("train.recompute={}", recompute), "data.val_fraction=0.1"},
                        {3});
}

// Masked positions are drawn row by row, so ranks count different numbers of tokens.
TEST(Rounding, InF64WhenRanksCountUnevenTokens) {
  const Overrides bert = {"model.arch=bert",    "model.vocab=263",       "model.post_norm=true",
                          "data.mask_rate=0.3", "data.val_fraction=0.1", "train.optimizer=sgd"};
  train::RunConfig config = config_of(tiny(bert));
  const auto feed = train::make_feed(config, Log());
  std::set<int64_t> counts;
  for (uint64_t first = 0; first < 24; first += 6) {
    data::Batch batch;
    data::fill_batch(*feed->train, first, 6, batch);
    counts.insert(batch.counted);
  }
  EXPECT_GT(counts.size(), 1u) << "the shares of four ranks count alike; the test shows nothing";
  expect_close_in_f64(bert, {2, 4});
}

// The mean over tokens, not the mean over ranks of their means; pairs are padded to length, so shares differ much.
TEST(Rounding, InF64WhenRowsArePadded) {
  expect_close_in_f64(
      {"model.arch=t5", "data.objective=pairs", "data.train=" + pairs_file(), "model.vocab=263", "train.clip=0"},
      {3, 4});
}

TEST(Rounding, InF32) {
  const Overrides sgd = {"train.optimizer=sgd", "data.val_fraction=0.1"};
  const Seen one = run(1, 10, sgd), adam = run(1, 10, {"data.val_fraction=0.1"});
  for (const char* method : kMethods)
    for (const char* transport : {"inproc", "auto"}) {
      const std::string set = fmt::format("sync.method={}", method);
      const Seen many = run(4, 10, joined(sgd, {set}), transport);
      EXPECT_NEAR(many.steps.back().loss, one.steps.back().loss, 1e-5) << method;
      EXPECT_LE(distance(many.steps.back().values, one.steps.back().values, DType::f32), 1e-5) << method;
      EXPECT_NEAR(many.evaluated, one.evaluated, 1e-5) << method;
      const Seen by_adam = run(3, 10, {"data.val_fraction=0.1", set}, transport);
      EXPECT_NEAR(by_adam.steps.back().loss, adam.steps.back().loss, 1e-5) << method;
      EXPECT_LE(distance(by_adam.steps.back().values, adam.steps.back().values, DType::f32), 1e-3) << method;
    }
}

TEST(Rounding, In16Bits) {
  for (const char* precision : {"bf16", "fp16"}) {
    const Overrides half = {fmt::format("train.precision={}", precision)};
    const Seen one = run(1, 10, half);
    for (const char* method : kMethods) {
      const Seen many = run(4, 10, joined(half, {fmt::format("sync.method={}", method)}), "auto");
      for (size_t i = 0; i < one.steps.size(); ++i)
        EXPECT_NEAR(many.steps[i].loss, one.steps[i].loss, 0.02 * one.steps[i].loss) << method << " " << precision;
    }
  }
}

// Another type on the wire: each gradient is rounded once before it travels and once by each sum.
TEST(Rounding, OfGradientsThatTravelIn16Bits) {
  const Overrides sgd = {"train.optimizer=sgd"};
  for (const char* wire : {"bf16", "fp16"})
    for (const char* method : kMethods) {
      const Overrides set = joined(sgd, {fmt::format("sync.method={}", method)});
      const Seen plain = run(3, 6, set), rounded = run(3, 6, joined(set, {fmt::format("sync.wire={}", wire)}));
      const double apart = distance(rounded.steps.back().values, plain.steps.back().values, DType::f32);
      EXPECT_LE(apart, 1e-3) << method << " " << wire;
      EXPECT_GT(apart, 1e-9) << method << " " << wire << ": nothing was rounded";
      EXPECT_NEAR(rounded.steps.back().loss, plain.steps.back().loss, 0.02 * plain.steps.back().loss) << method;
    }
}

// One machine: a group of two shards, two groups that hold the same.
TEST(Rounding, OfGroupsThatShardInsideAndReplicateAcross) {
  const Overrides exact = {"train.precision=fp64", "data.val_fraction=0.1", "train.clip=0.05"};
  const Seen one = run(1, 4, exact);
  for (const char* method : {"zero1", "zero2", "zero3"})
    for (const char* group : {"1", "2", "4"}) {
      const Seen many =
          run(4, 4, joined(exact, {fmt::format("sync.method={}", method), fmt::format("sync.group={}", group)}));
      EXPECT_LE(distance(many.steps.back().values, one.steps.back().values, DType::f64), 1e-11)
          << method << " in groups of " << group;
      EXPECT_NEAR(many.evaluated, one.evaluated, 1e-11) << method;
    }
}

}  // namespace
}  // namespace esp::parity
