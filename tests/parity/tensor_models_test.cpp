// Tensor-parallel models, with and without sequence parallelism, compared with one rank in fp64: losses, logits,
// gathered gradients and weights after the steps.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/parity/tensor_runs.h"

namespace esp::parity {
namespace {

constexpr double kTolerance = 1e-12;

// The sizes of this model are not divisible by tp, except those that must be (heads).
model::ModelConfig small_config(const std::string& arch, int tp) {
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

void expect_equals_one_rank(TensorRunSpec spec, const std::string& what) {
  const auto ranks = run_tensor_parallel(spec);
  spec.tp = 1;
  spec.sequence = spec.keep_gathered = false;
  spec.recompute = nn::RecomputeMode::none;
  const TensorRankResult one = run_tensor_parallel(spec).front();
  EXPECT_LT(max_relative_error(ranks, one), kTolerance) << what;
  // Replicated parameters are bit-identical on all ranks.
  for (const TensorRankResult& rank : ranks) {
    EXPECT_EQ(rank.losses, ranks[0].losses) << what;
    for (const auto& [name, shard] : rank.parameters) {
      if (shard.is_sharded) continue;
      EXPECT_EQ(shard.values, ranks[0].parameters.at(name).values) << what << ' ' << name;
      EXPECT_EQ(shard.gradients, ranks[0].parameters.at(name).gradients) << what << ' ' << name;
    }
  }
}

class TensorParallelModels : public testing::TestWithParam<const char*> {};

TEST_P(TensorParallelModels, EqualOneRankForEveryTp) {
  for (const int tp : {2, 3, 4})
    for (const bool sequence : {false, true}) {
      TensorRunSpec spec;
      spec.config = small_config(GetParam(), tp);
      spec.tp = tp;
      spec.sequence = sequence;
      spec.steps = 3;
      expect_equals_one_rank(spec, fmt::format("{} tp {} sequence {}", GetParam(), tp, sequence));
    }
}

TEST_P(TensorParallelModels, EqualOneRankWithRecomputation) {
  for (const auto recompute : {nn::RecomputeMode::selective, nn::RecomputeMode::full})
    for (const bool sequence : {false, true}) {
      TensorRunSpec spec;
      spec.config = small_config(GetParam(), 2);
      spec.tp = 2;
      spec.sequence = sequence;
      spec.recompute = recompute;
      expect_equals_one_rank(spec, fmt::format("{} sequence {} recompute {}", GetParam(), sequence, int(recompute)));
    }
}

TEST_P(TensorParallelModels, EqualOneRankWithMicroBatchesAndWithoutOverlap) {
  for (const bool overlap : {false, true})
    for (const bool sequence : {false, true}) {
      TensorRunSpec spec;
      spec.config = small_config(GetParam(), 2);
      spec.tp = 2;
      spec.sequence = sequence;
      spec.overlap = overlap;
      spec.keep_gathered = overlap;
      spec.micro_batches = 3;
      spec.steps = 2;
      expect_equals_one_rank(spec, fmt::format("{} sequence {} overlap {}", GetParam(), sequence, overlap));
    }
}

// In these types the sums over the tensor-parallel ranks are rounded to the storage type of the residual stream.
TEST_P(TensorParallelModels, AreCloseToOneRankInF32And16Bits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const bool sequence : {false, true}) {
      TensorRunSpec spec;
      spec.config = small_config(GetParam(), 2);
      spec.tp = 2;
      spec.sequence = sequence;
      spec.dtype = dtype;
      spec.steps = 10;
      const auto ranks = run_tensor_parallel(spec);
      spec.tp = 1;
      spec.sequence = false;
      const TensorRankResult one = run_tensor_parallel(spec).front();
      for (size_t i = 0; i < one.losses.size(); ++i) {
        const double loss_error = std::abs(ranks[0].losses[i] - one.losses[i]);
        // The loss is a sum over 22 tokens or 3 sequences, hence the relative bound in 16 bits.
        EXPECT_LT(loss_error, dtype == DType::f32 ? 2e-4 : 0.02 * one.losses[i]) << name_of(dtype) << sequence;
      }
      if (dtype != DType::f32) continue;
      for (const auto& [name, shard] : ranks[1].parameters) {
        double sum = 0, size = 0;
        const std::vector<double> whole = shard.part(one.parameters.at(name).values);
        for (size_t i = 0; i < whole.size(); ++i) {
          sum += (shard.values[i] - whole[i]) * (shard.values[i] - whole[i]);
          size += whole[i] * whole[i];
        }
        EXPECT_LE(std::sqrt(sum), 1e-5 * std::sqrt(size) + 1e-7) << name << sequence;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Archs, TensorParallelModels, testing::Values("gpt", "llama", "bert", "classifier", "t5"),
                         [](const auto& arch) { return std::string(arch.param); });

}  // namespace
}  // namespace esp::parity
