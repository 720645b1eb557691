// Whole models divided over the tensor axis, with the stream's rows divided or not, against one holder: losses, logits,
// gathered gradients and values after steps in fp64.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/parity/tensor_runs.h"

namespace esp::parity {
namespace {

constexpr double kTolerance = 1e-12;

// Of sizes that divide by nothing but where heads must.
model::ModelConfig config_of(const std::string& arch, int tp) {
  model::ModelConfig c = model::default_config(arch == "classifier" ? "bert" : arch);
  c.layers = 2;
  c.heads = 2 * tp;
  c.dim = 8 * tp;
  c.ffn = 37;
  c.vocab = 29;
  c.seq_len = 9;
  c.dropout = 0.1;
  if (arch == "llama") {
    c.kv_heads = tp;
    c.tie_embeddings = false;
  }
  if (arch == "bert" || arch == "classifier") c.type_vocab = 2;
  if (arch == "classifier") {
    c.num_classes = 5;
    c.pooler = true;
  }
  return c;
}

void expect_near_one(TensorPlan plan, const std::string& what) {
  const auto ranks = run_tensor(plan);
  plan.tp = 1;
  plan.sequence = plan.keep_gathered = false;
  plan.recompute = nn::RecomputeMode::none;
  const TensorSeen one = run_tensor(plan).front();
  EXPECT_LT(worst_distance(ranks, one), kTolerance) << what;
  // Whoever has a copy of a parameter has the same one.
  for (const TensorSeen& rank : ranks) {
    EXPECT_EQ(rank.losses, ranks[0].losses) << what;
    for (const auto& [name, held] : rank.parameters) {
      if (held.divided) continue;
      EXPECT_EQ(held.values, ranks[0].parameters.at(name).values) << what << ' ' << name;
      EXPECT_EQ(held.gradients, ranks[0].parameters.at(name).gradients) << what << ' ' << name;
    }
  }
}

class TensorModels : public testing::TestWithParam<const char*> {};

TEST_P(TensorModels, AreTheOneHoldersAtEverySize) {
  for (const int tp : {2, 3, 4})
    for (const bool sequence : {false, true}) {
      TensorPlan plan;
      plan.config = config_of(GetParam(), tp);
      plan.tp = tp;
      plan.sequence = sequence;
      plan.steps = 3;
      expect_near_one(plan, fmt::format("{} tp {} sequence {}", GetParam(), tp, sequence));
    }
}

TEST_P(TensorModels, AreTheOneHoldersWithRecomputation) {
  for (const auto recompute : {nn::RecomputeMode::selective, nn::RecomputeMode::full})
    for (const bool sequence : {false, true}) {
      TensorPlan plan;
      plan.config = config_of(GetParam(), 2);
      plan.tp = 2;
      plan.sequence = sequence;
      plan.recompute = recompute;
      expect_near_one(plan, fmt::format("{} sequence {} recompute {}", GetParam(), sequence, int(recompute)));
    }
}

TEST_P(TensorModels, AreTheOneHoldersWithMicroBatchesAndWithoutOverlap) {
  for (const bool overlap : {false, true})
    for (const bool sequence : {false, true}) {
      TensorPlan plan;
      plan.config = config_of(GetParam(), 2);
      plan.tp = 2;
      plan.sequence = sequence;
      plan.overlap = overlap;
      plan.keep_gathered = overlap;
      plan.micro_batches = 3;
      plan.steps = 2;
      expect_near_one(plan, fmt::format("{} sequence {} overlap {}", GetParam(), sequence, overlap));
    }
}

// Sums over the axis are in the storage type, like the stream they make.
TEST_P(TensorModels, StayNearTheOneHolderInShorterTypes) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const bool sequence : {false, true}) {
      TensorPlan plan;
      plan.config = config_of(GetParam(), 2);
      plan.tp = 2;
      plan.sequence = sequence;
      plan.dtype = dtype;
      plan.steps = 10;
      const auto ranks = run_tensor(plan);
      plan.tp = 1;
      plan.sequence = false;
      const TensorSeen one = run_tensor(plan).front();
      for (size_t i = 0; i < one.losses.size(); ++i) {
        const double apart = std::abs(ranks[0].losses[i] - one.losses[i]);
        // Losses are sums of 22 tokens' or 3 sequences'.
        EXPECT_LT(apart, dtype == DType::f32 ? 2e-4 : 0.02 * one.losses[i]) << name_of(dtype) << sequence;
      }
      if (dtype != DType::f32) continue;
      for (const auto& [name, held] : ranks[1].parameters) {
        double sum = 0, size = 0;
        const std::vector<double> whole = held.part(one.parameters.at(name).values);
        for (size_t i = 0; i < whole.size(); ++i) {
          sum += (held.values[i] - whole[i]) * (held.values[i] - whole[i]);
          size += whole[i] * whole[i];
        }
        EXPECT_LE(std::sqrt(sum), 1e-5 * std::sqrt(size) + 1e-7) << name << sequence;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Archs, TensorModels, testing::Values("gpt", "llama", "bert", "classifier", "t5"),
                         [](const auto& about) { return std::string(about.param); });

}  // namespace
}  // namespace esp::parity
