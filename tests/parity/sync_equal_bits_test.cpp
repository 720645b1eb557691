// With run.deterministic every strategy equals every other, and one ordered process, to the bit: losses, norms and
// values after each step.
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

Overrides joined(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void all_equal(const Overrides& overrides, std::initializer_list<int> sizes,
               std::span<const char* const> methods = kMethods) {
  for (const int ranks : sizes) {
    Plan plan;
    plan.ranks = ranks;
    plan.overrides = tiny(joined({"run.deterministic=true"}, overrides));
    const Seen ordered = train_ordered(plan);
    ASSERT_FALSE(ordered.steps.back().skipped);
    for (const char* method : methods) {
      Plan of = plan;
      of.overrides.push_back(fmt::format("sync.method={}", method));
      expect_same_bits(train_ranks(of), ordered, fmt::format("{} on {} ranks", method, ranks));
    }
  }
}

TEST(EqualBits, OverSizesThatDoNotDivide) {
  all_equal({}, {1, 2, 3, 4, 8});
}

TEST(EqualBits, InBf16) {
  all_equal({"train.precision=bf16"}, {1, 2, 3, 4, 8});
}

// Where the master copy is the optimizer's alone.
TEST(EqualBits, WithAMasterCopyInHalves) {
  all_equal({"train.precision=bf16", "sync.split_master=true"}, {1, 3, 4}, std::span(kMethods).first(4));
}

TEST(EqualBits, ClippingThatBites) {
  Plan plan;
  plan.ranks = 3;
  plan.overrides = tiny({"run.deterministic=true", "train.clip=0.01"});
  const Seen clipped = train_ordered(plan);
  for (const Step& step : clipped.steps) EXPECT_GT(step.grad_norm, 0.1);
  all_equal({"train.clip=0.01"}, {2, 3});
  all_equal({"train.clip=0.01", "train.precision=bf16"}, {3});
  // A norm summed another way would show: without the limit the run is another.
  Plan unlimited = plan;
  unlimited.overrides.push_back("train.clip=0");
  EXPECT_FALSE(train_ordered(unlimited).steps.back().values == clipped.steps.back().values);
}

class Variants : public testing::TestWithParam<Variant> {};

TEST_P(Variants, AreEqualToo) {
  all_equal(GetParam().overrides, {3});
  if (!long_tests()) return;
  Overrides shared = GetParam().overrides;
  shared.push_back("train.global_batch=32");  // so that micro-batches divide every rank's share
  all_equal(shared, {1, 2, 4, 8});
}

INSTANTIATE_TEST_SUITE_P(
    EqualBits, Variants,
    testing::Values(
        Variant{"recompute_full", {"train.recompute=full"}},
        Variant{"recompute_selective", {"train.recompute=selective"}},
        Variant{"recompute_of_one_block", {"train.recompute=full", "train.recompute_layers=1"}},
        Variant{"dropout", {"model.dropout=0.1"}},
        Variant{"dropout_recompute_bf16", {"model.dropout=0.2", "train.recompute=full", "train.precision=bf16"}},
        Variant{"untied", {"model.tie_embeddings=false"}}, Variant{"sgd", {"train.optimizer=sgd"}},
        Variant{"sgd_bf16_untied", {"train.optimizer=sgd", "train.precision=bf16", "model.tie_embeddings=false"}},
        Variant{"fp16", {"train.precision=fp16"}}, Variant{"fp64", {"train.precision=fp64"}}, Variant{"llama", kLlama},
        Variant{"llama_bf16", joined(kLlama, {"train.precision=bf16"})},
        Variant{"bert", {"model.arch=bert", "model.vocab=263", "model.post_norm=true", "data.mask_rate=0.4"}},
        Variant{"one_bucket", {"sync.first_bucket_mb=1", "sync.bucket_mb=25"}},
        Variant{"bucket_per_parameter", {"sync.first_bucket_mb=0.00001", "sync.bucket_mb=0.00001"}},
        Variant{"no_prefetch", {"sync.prefetch=0"}}, Variant{"prefetch_of_three", {"sync.prefetch=3"}},
        Variant{"kept", {"sync.keep_gathered=true"}},
        Variant{"micro_batches", {"train.micro_batch=2", "sync.accumulate=local"}},
        Variant{"micro_batches_clipped_bf16",
                {"train.micro_batch=4", "sync.accumulate=local", "train.clip=0.01", "train.precision=bf16"}}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(EqualBits, ReducedMicroBatchesOfStages2And3) {
  for (const char* precision : {"fp32", "bf16"}) {
    Plan plan;
    plan.ranks = 3;
    plan.overrides = tiny({"run.deterministic=true", "train.micro_batch=2", "sync.accumulate=reduced",
                           "sync.method=zero2", fmt::format("train.precision={}", precision)});
    const Seen two = train_ranks(plan);
    plan.overrides.push_back("sync.method=zero3");
    expect_same_bits(train_ranks(plan), two, precision);
  }
}

// Two stacks, padding, and a table used by three parts of the model.
TEST(EqualBits, OfAnEncoderAndDecoder) {
  for (const char* objective : {"pairs", "span_corruption"}) {
    Plan plan;
    plan.ranks = 3;
    plan.overrides = tiny({"run.deterministic=true", "model.arch=t5", "model.vocab=363", "train.clip=0.01",
                           fmt::format("data.objective={}", objective)});
    if (std::string(objective) == "pairs") plan.overrides.push_back("data.train=" + pairs_file());
    const Seen whole = train_ranks(plan);
    for (const char* method : kMethods)
      for (const char* prefetch : {"0", "1", "4"}) {
        Plan of = plan;
        of.overrides.push_back(fmt::format("sync.method={}", method));
        of.overrides.push_back(fmt::format("sync.prefetch={}", prefetch));
        expect_same_bits(train_ranks(of), whole, fmt::format("{} of {}", method, objective));
      }
  }
}

// Evaluation walks through the units in an order of its own and leaves the training's alone.
TEST(EqualBits, WithEvaluationBetweenSteps) {
  Plan plan;
  plan.ranks = 3;
  plan.overrides = tiny({"run.deterministic=true", "data.val_fraction=0.1"});
  const Seen ordered = train_ordered(plan);
  std::vector<double> losses[2];
  for (const char* method : {"allreduce", "zero3"}) {
    Plan of = plan;
    of.overrides.push_back(fmt::format("sync.method={}", method));
    of.after = [&](int rank, int, train::Engine& engine) {
      const double loss = engine.evaluate(1);
      if (rank == 0) losses[method == std::string("zero3") ? 1 : 0].push_back(loss);
    };
    expect_same_bits(train_ranks(of), ordered, method);
  }
  ASSERT_EQ(losses[0].size(), 3u);
  EXPECT_EQ(losses[0], losses[1]);
}

// A rank alone has nobody to send to: nothing is rounded for the wire.
TEST(EqualBits, OfWiresThatNothingTravelsOn) {
  all_equal({"sync.wire=bf16"}, {1});
}

TEST(EqualBits, OnEveryTransportAndAgain) {
  Plan plan;
  plan.ranks = 3;
  plan.overrides = tiny({"run.deterministic=true", "sync.method=zero3", "train.clip=0.01"});
  const Seen first = train_ranks(plan);
  for (const char* transport : {"inproc", "shm", "auto"}) {
    plan.transport = transport;
    expect_same_bits(train_ranks(plan), first, transport);
  }
}

}  // namespace
}  // namespace esp::parity
