// Pipeline and data parallelism must not change any bit. A pipeline must equal one process with the same micro-batches.
// With run.deterministic, pp combined with dp must equal dp without pp. Embeddings are untied here, because a pipeline
// sums the two gradients of a tied table separately.
#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>

#include "esp/kernel/elementwise.h"
#include "tests/parity/parallel_runs.h"

namespace esp::parity {
namespace {

Overrides untied(const std::string& arch, Overrides more) {
  more.insert(more.end(), {"model.tie_embeddings=false", "run.deterministic=true", "train.clip=0.05"});
  return small_model(arch, more);
}

Overrides merge(Overrides all, const Overrides& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct Variant {
  const char* name;
  const char* arch;
  Overrides overrides;
};

class PipelineBitIdentity : public testing::TestWithParam<Variant> {};

TEST_P(PipelineBitIdentity, EveryScheduleIsBitIdenticalWithAndWithoutDataParallelism) {
  const Overrides model = untied(GetParam().arch, GetParam().overrides);
  const LayoutResult one = train_layout({.ranks = 1, .steps = 4, .overrides = model});
  const Overrides schedules[] = {{"parallel.pp=2", "parallel.schedule=gpipe"},
                                 {"parallel.pp=3", "parallel.schedule=1f1b"},
                                 {"parallel.pp=2", "parallel.schedule=interleaved", "parallel.interleave=2"},
                                 {"parallel.pp=4", "parallel.schedule=zb-h1"}};
  for (const Overrides& schedule : schedules) {
    const int stages = schedule[0].back() - '0';
    expect_same_bits(train_layout({.ranks = stages, .steps = 4, .overrides = merge(model, schedule)}), one,
                     schedule[1]);
  }
  const LayoutResult replicas =
      train_layout({.ranks = 3, .steps = 4, .overrides = merge(model, {"train.micro_batch=1"})});
  for (const char* method : {"allreduce", "zero1", "zero2", "zero3"})
    expect_same_bits(train_layout({.ranks = 6,
                                   .steps = 4,
                                   .overrides = merge(model, {"train.micro_batch=1", "parallel.pp=2",
                                                              fmt::format("sync.method={}", method)})}),
                     replicas, method);
}

INSTANTIATE_TEST_SUITE_P(Models, PipelineBitIdentity,
                         testing::Values(Variant{"gpt", "gpt", {}},
                                         Variant{"gpt_bf16", "gpt", {"train.precision=bf16"}},
                                         Variant{"llama_fp64", "llama", {"train.precision=fp64"}},
                                         Variant{"bert_dropout", "bert", {"model.dropout=0.1"}},
                                         Variant{"llama_recompute", "llama", {"train.recompute=full"}}),
                         [](const auto& row) { return std::string(row.param.name); });

// In 16 bits, the loss of every layout must stay within 2 % of the loss of one process.
TEST(SixteenBitLayouts, LossStaysWithinTwoPercentOfOneProcess) {
  const Overrides layouts[] = {{"parallel.tp=2", "parallel.sequence=true", "model.seq_len=12"},
                               {"parallel.tp=2", "parallel.pp=2", "sync.method=zero1"},
                               {"parallel.cp=2", "parallel.dp=2", "sync.method=zero2"},
                               {"parallel.pp=2", "parallel.dp=2", "sync.method=zero3"}};
  for (const char* precision : {"bf16", "fp16"})
    for (const Overrides& layout : layouts) {
      const Overrides model = small_model("gpt", {fmt::format("train.precision={}", precision)});
      const Overrides length = layout.back().starts_with("model.") ? Overrides{layout.back()} : Overrides{};
      const LayoutResult one = train_layout({.ranks = 1, .overrides = merge(model, length)});
      const int ranks = layout[1] == "parallel.sequence=true" ? 2 : 4;
      const LayoutResult many = train_layout({.ranks = ranks, .overrides = merge(model, layout)});
      for (size_t i = 0; i < one.losses.size(); ++i)
        EXPECT_NEAR(many.losses[i], one.losses[i], 0.02 * one.losses[i]) << precision << " " << layout[0] << " " << i;
    }
}

// A non-finite gradient on one rank makes all ranks skip the step, for any pipeline stage and tensor shard.
TEST(LayoutOverflow, OverflowOnOneRankSkipsStepOnAllRanks) {
  for (const int bad : {0, 3, 7}) {
    LayoutRun run;
    run.ranks = 8;
    run.steps = 4;
    run.overrides = small_model("gpt", {"parallel.tp=2", "parallel.pp=2", "train.precision=fp16"});
    std::vector<double> scales(8);
    run.prepare = [&](int rank, train::Engine& engine) {
      if (rank != bad) return;
      autograd::Weight& weight = engine.model().parameters().units().back().parameters.front()->weight;
      weight.on_ready = [&engine, &weight, inner = weight.on_ready] {
        if (engine.num_steps() == 2)
          kernel::fill(weight.grad.data(), HUGE_VAL, 1, weight.grad.dtype(), engine.context().stream);
        inner();
      };
    };
    run.finish = [&](int rank, train::Engine& engine) {
      scales[static_cast<size_t>(rank)] = engine.loss_scale().scale();
    };
    const LayoutResult seen = train_layout(run);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(std::isfinite(seen.norms[i]), i != 2) << "rank " << bad << ", step " << i;
    EXPECT_EQ(scales, std::vector<double>(8, 32768)) << "rank " << bad;
  }
}

}  // namespace
}  // namespace esp::parity
