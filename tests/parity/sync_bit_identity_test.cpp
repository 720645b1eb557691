// With run.deterministic all sync methods and the single-process reference must be bit-identical: losses, gradient
// norms and weights after each step.
#include <gtest/gtest.h>

#include <span>

#include <fmt/format.h>

#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

const char* const kMethods[] = {"allreduce", "zero1", "zero2", "zero3", "ps"};

struct Variant {
  const char* name;
  Overrides overrides;
};

std::ostream& operator<<(std::ostream& out, const Variant& variant) {
  return out << variant.name;
}

const Overrides kLlama = {"model.arch=llama", "model.norm=rms",   "model.positions=rotary",
                          "model.gated=true", "model.bias=false", "model.tie_embeddings=false",
                          "model.kv_heads=1", "model.dim=18"};

Overrides merge(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void expect_all_equal(const Overrides& overrides, std::initializer_list<int> sizes,
                      std::span<const char* const> methods = kMethods) {
  for (const int ranks : sizes) {
    RunSpec spec;
    spec.ranks = ranks;
    spec.overrides = tiny_model(merge({"run.deterministic=true"}, overrides));
    const RunResult reference = train_reference(spec);
    ASSERT_FALSE(reference.steps.back().skipped);
    for (const char* method : methods) {
      RunSpec with_method = spec;
      with_method.overrides.push_back(fmt::format("sync.method={}", method));
      expect_same_bits(train_ranks(with_method), reference, fmt::format("{} on {} ranks", method, ranks));
    }
  }
}

TEST(BitIdentity, MethodsEqualReferenceWhenSizesAreNotDivisible) {
  expect_all_equal({}, {1, 2, 3, 4, 8});
}

TEST(BitIdentity, MethodsEqualReferenceInBf16) {
  expect_all_equal({"train.precision=bf16"}, {1, 2, 3, 4, 8});
}

// In this mode only the optimizer stores the master copy. Parameter servers do not support this and are excluded.
TEST(BitIdentity, MethodsEqualReferenceWithSplitMasterCopy) {
  expect_all_equal({"train.precision=bf16", "sync.split_master=true"}, {1, 3, 4}, std::span(kMethods).first(4));
}

TEST(BitIdentity, MethodsEqualReferenceWhenGradientsAreClipped) {
  RunSpec spec;
  spec.ranks = 3;
  spec.overrides = tiny_model({"run.deterministic=true", "train.clip=0.01"});
  const RunResult clipped = train_reference(spec);
  for (const StepRecord& step : clipped.steps) EXPECT_GT(step.grad_norm, 0.1);
  expect_all_equal({"train.clip=0.01"}, {2, 3});
  expect_all_equal({"train.clip=0.01", "train.precision=bf16"}, {3});
  // Checks that clipping takes effect: without it the weights differ. Otherwise this test could not detect a norm that
  // is summed in another order.
  RunSpec unlimited = spec;
  unlimited.overrides.push_back("train.clip=0");
  EXPECT_FALSE(train_reference(unlimited).steps.back().values == clipped.steps.back().values);
}

class BitIdentityVariants : public testing::TestWithParam<Variant> {};

TEST_P(BitIdentityVariants, EqualTheReference) {
  expect_all_equal(GetParam().overrides, {3});
  if (!long_tests()) return;
  Overrides shared = GetParam().overrides;
  shared.push_back("train.global_batch=32");  // a batch that every rank can divide into micro-batches
  expect_all_equal(shared, {1, 2, 4, 8});
}

INSTANTIATE_TEST_SUITE_P(
    Settings, BitIdentityVariants,
    testing::Values(
        Variant{"recompute_full", {"train.recompute=full"}},
        Variant{"recompute_selective", {"train.recompute=selective"}},
        Variant{"recompute_of_one_block", {"train.recompute=full", "train.recompute_layers=1"}},
        Variant{"dropout", {"model.dropout=0.1"}},
        Variant{"dropout_recompute_bf16", {"model.dropout=0.2", "train.recompute=full", "train.precision=bf16"}},
        Variant{"untied", {"model.tie_embeddings=false"}}, Variant{"sgd", {"train.optimizer=sgd"}},
        Variant{"sgd_bf16_untied", {"train.optimizer=sgd", "train.precision=bf16", "model.tie_embeddings=false"}},
        Variant{"fp16", {"train.precision=fp16"}}, Variant{"fp64", {"train.precision=fp64"}}, Variant{"llama", kLlama},
        Variant{"llama_bf16", merge(kLlama, {"train.precision=bf16"})},
        Variant{"bert", {"model.arch=bert", "model.vocab=263", "model.post_norm=true", "data.mask_rate=0.4"}},
        Variant{"one_bucket", {"sync.first_bucket_mb=1", "sync.bucket_mb=25"}},
        Variant{"bucket_per_parameter", {"sync.first_bucket_mb=0.00001", "sync.bucket_mb=0.00001"}},
        Variant{"no_prefetch", {"sync.prefetch=0"}}, Variant{"prefetch_of_three", {"sync.prefetch=3"}},
        Variant{"kept", {"sync.keep_gathered=true"}},
        Variant{"micro_batches", {"train.micro_batch=2", "sync.accumulate=local"}},
        Variant{"micro_batches_clipped_bf16",
                {"train.micro_batch=4", "sync.accumulate=local", "train.clip=0.01", "train.precision=bf16"}}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(BitIdentity, Zero2EqualsZero3WhenEveryMicroBatchIsReduced) {
  for (const char* precision : {"fp32", "bf16"}) {
    RunSpec spec;
    spec.ranks = 3;
    spec.overrides = tiny_model({"run.deterministic=true", "train.micro_batch=2", "sync.accumulate=reduced",
                                 "sync.method=zero2", fmt::format("train.precision={}", precision)});
    const RunResult two = train_ranks(spec);
    spec.overrides.push_back("sync.method=zero3");
    expect_same_bits(train_ranks(spec), two, precision);
  }
}

// An encoder-decoder model has two stacks, padding, and an embedding table that is used in three places.
TEST(BitIdentity, MethodsEqualReferenceForEncoderDecoderModels) {
  for (const char* objective : {"pairs", "span_corruption"}) {
    RunSpec spec;
    spec.ranks = 3;
    spec.overrides = tiny_model({"run.deterministic=true", "model.arch=t5", "model.vocab=363", "train.clip=0.01",
                                 fmt::format("data.objective={}", objective)});
    if (std::string(objective) == "pairs") spec.overrides.push_back("data.train=" + pairs_file());
    const RunResult whole = train_ranks(spec);
    for (const char* method : kMethods)
      for (const char* prefetch : {"0", "1", "4"}) {
        RunSpec with_method = spec;
        with_method.overrides.push_back(fmt::format("sync.method={}", method));
        with_method.overrides.push_back(fmt::format("sync.prefetch={}", prefetch));
        expect_same_bits(train_ranks(with_method), whole, fmt::format("{} of {}", method, objective));
      }
  }
}

// Evaluation uses the units in its own order. This must not change the order that was recorded in training.
TEST(BitIdentity, EvaluationBetweenStepsChangesNoBit) {
  RunSpec spec;
  spec.ranks = 3;
  spec.overrides = tiny_model({"run.deterministic=true", "data.val_fraction=0.1"});
  const RunResult reference = train_reference(spec);
  std::vector<double> losses[2];
  for (const char* method : {"allreduce", "zero3"}) {
    RunSpec with_method = spec;
    with_method.overrides.push_back(fmt::format("sync.method={}", method));
    with_method.after_step = [&](int rank, int, train::Engine& engine) {
      const double loss = engine.evaluate(1);
      if (rank == 0) losses[method == std::string("zero3") ? 1 : 0].push_back(loss);
    };
    expect_same_bits(train_ranks(with_method), reference, method);
  }
  ASSERT_EQ(losses[0].size(), 3u);
  EXPECT_EQ(losses[0], losses[1]);
}

// A single rank sends nothing, so nothing is rounded to the wire type.
TEST(BitIdentity, WireTypeChangesNoBitWithOneRank) {
  expect_all_equal({"sync.wire=bf16"}, {1});
}

TEST(BitIdentity, EveryTransportAndRepetitionGivesSameBits) {
  RunSpec spec;
  spec.ranks = 3;
  spec.overrides = tiny_model({"run.deterministic=true", "sync.method=zero3", "train.clip=0.01"});
  const RunResult first = train_ranks(spec);
  for (const char* transport : {"inproc", "shm", "auto"}) {
    spec.transport = transport;
    expect_same_bits(train_ranks(spec), first, transport);
  }
}

}  // namespace
}  // namespace esp::parity
