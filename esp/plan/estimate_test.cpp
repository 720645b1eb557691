#include "esp/plan/estimate.h"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/parallel/pp/simulate.h"
#include "esp/plan/catalog.h"
#include "esp/plan/pipeline_time.h"
#include "esp/plan/software.h"

namespace esp::plan {
namespace {

Cluster cluster_of(const char* chip, int gpus, double gbps_per_node = 0) {
  ClusterRequest request;
  request.gpus = gpus;
  request.net_gbps_per_node = gbps_per_node;
  return make_cluster(built_in_catalog(), built_in_catalog().processor(chip), request);
}

ModelShape llama70b() {
  ModelShape s;
  s.name = "llama-3-70b";
  s.arch = "llama";
  s.layers = 80;
  s.hidden = 8192;
  s.ffn = 28672;
  s.heads = 64;
  s.kv_heads = 8;
  s.head_dim = 128;
  s.vocab = 128256;
  s.seq = 8192;
  s.gated = s.rms = true;
  s.bias = s.tied = s.learned_positions = false;
  return s;
}

Policy policy_512() {
  Policy p;
  p.tp = 8;
  p.pp = 4;
  p.dp = 16;
  p.sequence = true;
  p.zero = 1;
  p.micro_batch = 1;
  p.global_batch = 512;
  return p;
}

double step(const ModelShape& s, const Cluster& c, const Policy& p) {
  return estimate(s, c, p).step_s;
}

TEST(Estimate, PartsOfLlama70bStepSumToStepTime) {
  const Cluster c = cluster_of("A100-80GB-SXM", 512);
  Policy p = policy_512();
  p.recompute = RecomputePolicy::selective;
  const Estimate e = estimate(llama70b(), c, p);
  EXPECT_TRUE(e.fits);
  EXPECT_GT(e.mfu, 0.3);
  EXPECT_LT(e.mfu, 0.65);
  EXPECT_NEAR(e.compute_s + e.bubble_s + e.exposed_s + e.optimizer_s + e.offload_s, e.step_s, 1e-9 * e.step_s);
  EXPECT_LT(e.low_s, e.step_s);
  EXPECT_GT(e.high_s, e.step_s);
  EXPECT_GT(e.step_s, lower_bound_s(llama70b(), c, p));
}

TEST(Estimate, WarnsWithCostWhenTensorGroupsSpanNodes) {
  const Cluster c = cluster_of("A100-80GB-SXM", 512);
  Policy p = policy_512();
  const double inside = step(llama70b(), c, p);
  p.tp = 16;
  p.dp = 8;
  const Estimate e = estimate(llama70b(), c, p);
  EXPECT_GT(e.step_s, 1.1 * inside);
  ASSERT_FALSE(e.reasons.empty());
  EXPECT_NE(e.reasons.back().find("span 2 nodes"), std::string::npos);
}

TEST(Estimate, ReasonNamesLargestCategoryIfMemoryDoesNotFit) {
  const Cluster c = cluster_of("A100-40GB-SXM", 8);
  Policy p;
  p.dp = 8;
  p.global_batch = 8;
  const Estimate e = estimate(llama70b(), c, p);
  EXPECT_FALSE(e.fits);
  ASSERT_FALSE(e.reasons.empty());
  EXPECT_NE(e.reasons[0].find("states"), std::string::npos);
}

TEST(Estimate, DoesNotFitIfOffloadedStatesExceedHostMemory) {
  Cluster c = cluster_of("A100-80GB-SXM", 8);
  Policy p;
  p.dp = 8;
  p.zero = 3;
  p.global_batch = 8;
  p.recompute = RecomputePolicy::full;
  p.offload = OffloadTarget::host;
  c.host_memory_bytes = 2e12;
  EXPECT_TRUE(estimate(llama70b(), c, p).fits);
  c.host_memory_bytes = 2e11;
  EXPECT_FALSE(estimate(llama70b(), c, p).fits);
}

// Every field of a policy must change the estimate.
TEST(Estimate, ChangesWithEveryPolicyField) {
  const Cluster c = cluster_of("H100-80GB-SXM", 512);
  ModelShape s = llama70b();
  s.experts = 8;
  s.topk = 2;
  s.expert_ffn = 7168;
  Policy base = policy_512();
  base.cp = 2;
  base.dp = 8;
  base.ep = 4;
  base.schedule = "interleaved";
  base.interleave = 2;
  const std::pair<const char*, std::function<void(Policy&)>> changes[] = {
      {"tp", [](Policy& p) { p.tp = 4; }},
      {"pp", [](Policy& p) { p.pp = 8; }},
      {"dp", [](Policy& p) { p.dp = 16; }},
      {"cp", [](Policy& p) { p.cp = 4; }},
      {"ep", [](Policy& p) { p.ep = 8; }},
      {"expert_tp", [](Policy& p) { p.expert_tp = 2; }},
      {"sequence", [](Policy& p) { p.sequence = false; }},
      {"context", [](Policy& p) { p.context = "ulysses"; }},
      {"schedule", [](Policy& p) { p.schedule = "1f1b", p.interleave = 1; }},
      {"zb", [](Policy& p) { p.schedule = "zb-h1", p.interleave = 1; }},
      {"interleave", [](Policy& p) { p.interleave = 5; }},
      {"vocabulary", [](Policy& p) { p.vocab_parallel_pipeline = true; }},
      {"micro_batch", [](Policy& p) { p.micro_batch = 2; }},
      {"global_batch", [](Policy& p) { p.global_batch = 1024; }},
      {"precision", [](Policy& p) { p.precision = "fp8"; }},
      {"zero", [](Policy& p) { p.zero = 3; }},
      {"shard_group", [](Policy& p) { p.shard_group = 4; }},
      {"offload", [](Policy& p) { p.offload = OffloadTarget::host; }},
      {"recompute", [](Policy& p) { p.recompute = RecomputePolicy::full; }},
      {"recompute_layers", [](Policy& p) { p.recompute = RecomputePolicy::full, p.recompute_layers = 3; }},
      {"flash", [](Policy& p) { p.flash = false; }},
      {"dropout", [](Policy& p) { p.dropout = true; }},
      {"fused", [](Policy& p) { p.fused = false; }},
      {"gradients", [](Policy& p) { p.gradients_fp32 = false; }},
      {"overlap_dp", [](Policy& p) { p.overlap_dp = false; }},
      {"overlap_tp", [](Policy& p) { p.overlap_tp = true; }},
      {"overlap_pp", [](Policy& p) { p.overlap_pp = false; }},
      {"overlap_cp", [](Policy& p) { p.overlap_cp = false; }},
      {"overlap_ep", [](Policy& p) { p.overlap_ep = true; }},
      {"imbalance", [](Policy& p) { p.expert_imbalance = 1.5; }},
      {"expert_nodes", [](Policy& p) { p.ep = 64, p.expert_tp = 1, p.expert_nodes = 1; }},
      {"software", [](Policy& p) { p.software = "deepspeed"; }},
  };
  const double before = step(s, c, base);
  for (const auto& [name, change] : changes) {
    Policy p = base;
    change(p);
    const double after = step(s, c, p);
    EXPECT_TRUE(std::isfinite(after)) << name;
    EXPECT_NE(after, before) << name;
  }
}

TEST(Estimate, StepIsNeverSlowerOnBetterHardware) {
  const ModelShape s = llama70b();
  Policy p = policy_512();
  for (const int zero : {0, 1, 3}) {
    p.zero = zero;
    const Cluster c = cluster_of("A100-80GB-SXM", 512);
    const double before = step(s, c, p);
    const std::function<void(Cluster&)> better[] = {[](Cluster& k) { k.inside.bandwidth *= 2; },
                                                    [](Cluster& k) { k.across.bandwidth *= 2; },
                                                    [](Cluster& k) { k.inside.latency /= 2; },
                                                    [](Cluster& k) { k.across.latency /= 2; },
                                                    [](Cluster& k) { k.processor.memory_bandwidth *= 2; },
                                                    [](Cluster& k) { k.processor.bf16_flops *= 2; }};
    for (const auto& change : better) {
      Cluster k = c;
      change(k);
      EXPECT_LE(step(s, k, p), before);
    }
  }
}

TEST(Estimate, StepTimeIsAtLeastLowerBound) {
  const Cluster c = cluster_of("H100-80GB-SXM", 512);
  ModelShape s = llama70b();
  for (const int64_t vocab : {1000, 128256, 2000000})
    for (const int layers : {2, 80})
      for (const RecomputePolicy recompute : {RecomputePolicy::none, RecomputePolicy::selective, RecomputePolicy::full})
        for (const char* precision : {"bf16", "fp8"}) {
          s.vocab = vocab;
          s.layers = layers;
          Policy p = policy_512();
          p.pp = 1;
          p.dp = 64;
          p.recompute = recompute;
          p.precision = precision;
          EXPECT_LT(lower_bound_s(s, c, p), step(s, c, p));
        }
}

TEST(Estimate, RecomputationTradesTimeForMemory) {
  const Cluster c = cluster_of("A100-80GB-SXM", 512);
  Policy p = policy_512();
  const Estimate none = estimate(llama70b(), c, p);
  p.recompute = RecomputePolicy::full;
  const Estimate full = estimate(llama70b(), c, p);
  EXPECT_GT(full.step_s, 1.2 * none.step_s);
  EXPECT_LT(full.step_s, 1.4 * none.step_s);
  EXPECT_LT(full.memory.activation, 0.2 * none.memory.activation);
  EXPECT_EQ(full.flops, none.flops);
  EXPECT_GT(full.hardware_flops, none.hardware_flops);
}

// Compares the closed form with a virtual-time run of the schedules that the trainer executes.
TEST(PipelineTime, MatchesSimulationForEqualStages) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1"})
    for (const int m : {8, 32}) {
      Policy p;
      p.pp = 4;
      p.interleave = std::string(name) == "interleaved" ? 2 : 1;
      p.schedule = name;
      p.global_batch = m;
      ModelShape s = llama70b();
      const PipelinePieces pieces = pipeline_pieces(s, p);
      const parallel::ScheduleShape shape{4, p.interleave, m};
      const StageTime one{1.0 / p.interleave, 1.1 / p.interleave, 0.9 / p.interleave, 0};
      const double closed =
          pipeline_time(p, pieces, std::vector<StageTime>(static_cast<size_t>(pieces.count()), one)).total;
      const auto events =
          parallel::simulate(parallel::make_schedule(name, shape), parallel::equal_costs(shape, {1, 1.1, 0.9}));
      EXPECT_NEAR(closed, events.makespan, 0.02 * events.makespan) << name << " of " << m;
    }
}

TEST(PipelineTime, HeavyLastStageDelaysEveryMicroBatch) {
  Policy p;
  p.pp = 4;
  p.global_batch = 16;
  const PipelinePieces pieces = pipeline_pieces(llama70b(), p);
  std::vector<StageTime> times(4, {1, 1, 1, 0});
  times[3] = {2, 2, 2, 0};
  const double closed = pipeline_time(p, pieces, times).total;
  parallel::PipelineCosts costs;
  for (const StageTime& t : times) costs.virtual_stages.push_back({t.forward, t.backward, t.weights});
  const auto events = parallel::simulate(parallel::make_schedule("1f1b", {4, 1, 16}), costs);
  EXPECT_NEAR(closed, events.makespan, 0.02 * events.makespan);
}

// From 8 to 1,024 A100 with 400 Gb/s per node, the throughput per processor drops by 44 % if ZeRO 1 shards over all
// ranks, and by 11 % with shard groups of one node.
TEST(Estimate, BroadcastTimeGrowsWithNumberOfRanks) {
  ModelShape s = llama70b();
  s.layers = 32;
  s.hidden = 4096;
  s.ffn = 11008;
  s.heads = s.kv_heads = 32;
  s.vocab = 103168;
  s.seq = 2048;
  const auto rate = [&](int ranks, int group) {
    Policy p;
    p.dp = ranks;
    p.zero = 1;
    p.shard_group = group;
    p.micro_batch = 2;
    p.global_batch = 8 * ranks;
    p.gradients_fp32 = false;
    p.software = "internevo";
    return 1 / step(s, cluster_of("A100-80GB-SXM", ranks, 400), p);
  };
  EXPECT_NEAR(1 - rate(1024, 1024) / rate(8, 8), 0.44, 0.05);
  EXPECT_NEAR(1 - rate(1024, 8) / rate(8, 8), 0.11, 0.05);
}

TEST(Estimate, StepIsFasterIfTokensAreSentOncePerNode) {
  ModelShape s = llama70b();
  s.experts = 64;
  s.topk = 8;
  s.expert_ffn = 2048;
  Policy p;
  p.dp = p.ep = 64;
  p.global_batch = 64;
  const Cluster c = cluster_of("H100-80GB-SXM", 64);
  const double copies = step(s, c, p);
  p.expert_nodes = 4;
  const double once = step(s, c, p);
  EXPECT_LT(once, copies);
  p.expert_nodes = 2;
  EXPECT_LT(step(s, c, p), once);
}

TEST(Estimate, UnbalancedCausalAttentionWaitsForLastContextRank) {
  ModelShape s = llama70b();
  s.seq = 131072;
  Policy p;
  p.tp = 8;
  p.sequence = true;
  p.cp = 8;
  p.recompute = RecomputePolicy::full;
  const Cluster c = cluster_of("H100-80GB-SXM", 64);
  const auto core = [&](const char* software, int ranks) {
    p.software = software;
    p.cp = ranks;
    s.causal = true;
    const double half = stage_times(s, c, p)[0].forward;
    s.causal = false;
    return stage_times(s, c, p)[0].forward - half;  // the unmasked half of the attention scores
  };
  ASSERT_FALSE(software_row("torchtitan").balanced_context);
  ASSERT_TRUE(software_row("nemo-2023").balanced_context);
  // Unbalanced: the last of eight ranks computes 15/16 of the scores instead of 8/16, so causal masking saves little.
  EXPECT_LT(core("torchtitan", 8), 0.25 * core("nemo-2023", 8));
  EXPECT_GT(core("torchtitan", 1), 0.9 * core("nemo-2023", 1));
}

TEST(Estimate, GradientReductionAfterPipelineIsExposed) {
  Policy p = policy_512();
  p.zero = 0;
  const Cluster c = cluster_of("A100-80GB-SXM", 512);
  const auto shown = [&](const char* software) {
    p.software = software;
    double all = 0, time = 0;
    for (const GroupTraffic& t : estimate(llama70b(), c, p).traffic)
      if (t.group == "dp") all += t.exposed_s, time += t.time_s;
    return all / time;
  };
  EXPECT_NEAR(shown("deepspeed"), 1, 1e-9);
  EXPECT_LT(shown("megatron-core"), 0.9);
  p.zero = 1;  // with ZeRO 1, gradients are all-reduced and weights are gathered
  double bytes = 0;
  p.software = "deepspeed";
  for (const GroupTraffic& t : estimate(llama70b(), c, p).traffic)
    if (t.op == "all_reduce" && t.group == "dp") bytes += t.bytes;
  EXPECT_GT(bytes, 0);
}

TEST(Estimate, MisalignedHeadDimensionIsSlowWithoutFusedAttention) {
  ModelShape s = llama70b();
  s.hidden = 13824;
  s.seq = 2048;
  Policy p = policy_512();
  const Cluster c = cluster_of("A100-80GB-SXM", 512);
  const auto time = [&](int64_t heads, bool flash) {
    s.heads = s.kv_heads = heads;
    s.head_dim = s.hidden / heads;
    p.flash = flash;
    return step(s, c, p);
  };
  // 128 heads have a head dimension of 108 (misaligned), 96 heads one of 144
  EXPECT_GT(time(128, false), 1.2 * time(96, false));
  EXPECT_LT(time(128, true), 1.1 * time(96, true));
}

TEST(Estimate, CostIncludesTimeLostToFailures) {
  Cluster c = cluster_of("A100-80GB-SXM", 512);
  const Policy p = policy_512();
  const Estimate e = estimate(llama70b(), c, p);
  const TrainingCost never = cost_of(e, c, p, llama70b(), 1e12);
  EXPECT_EQ(never.goodput, 1);
  EXPECT_NEAR(never.gpu_hours, 512 * never.hours, 1e-6 * never.gpu_hours);
  EXPECT_NEAR(never.steps, 1e12 / (512 * 8192.0), 1);
  c.mtbf_hours = 5000;
  const TrainingCost often = cost_of(e, c, p, llama70b(), 1e12);
  EXPECT_LT(often.goodput, 1);
  EXPECT_GT(often.hours, never.hours);
}

TEST(PolicyError, RejectsInfeasiblePoliciesWithAHint) {
  const Cluster c = cluster_of("A100-80GB-SXM", 512);
  const ModelShape s = llama70b();
  const auto why = [&](auto change) {
    Policy p = policy_512();
    change(p);
    return policy_error(s, c, p).value_or("");
  };
  EXPECT_EQ(why([](Policy&) {}), "");
  EXPECT_NE(why([](Policy& p) { p.dp = 64; }).find("512"), std::string::npos);
  EXPECT_NE(why([](Policy& p) { p.tp = 0; }).find("tp"), std::string::npos);
  EXPECT_NE(why([](Policy& p) { p.tp = 3; }).find("64 attention heads"), std::string::npos);
  EXPECT_NE(why([](Policy& p) { p.precision = "fp8"; }).find("fp8"), std::string::npos);
  EXPECT_NE(why([](Policy& p) { p.software = "nothing"; }).find("megatron-core"), std::string::npos);
  EXPECT_NE(why([](Policy& p) { p.global_batch = 500; }).find("multiple of dp = 16"), std::string::npos);
  EXPECT_NE(why([](Policy& p) { p.stage_layers = {1, 2, 3, 4}; }).find("80"), std::string::npos);
  EXPECT_EQ(why([](Policy& p) { p.schedule = "v-half"; }), "");
  Policy p = policy_512();
  p.micro_batch = 0;
  EXPECT_THROW(check(s, c, p), UsageError);
}

TEST(Software, RecognisesCommonSpellings) {
  EXPECT_EQ(recognise_software("Megatron-LM (commit 6985e589)", false), "megatron-2021");
  EXPECT_EQ(recognise_software("Megatron-LM", false), "megatron-2022");
  EXPECT_EQ(recognise_software("Megatron-LM", true), "megatron-2023");
  EXPECT_EQ(recognise_software("NeMo 24.03.01", true), "nemo-2023");
  EXPECT_EQ(recognise_software("NeMo 24.07", true), "nemo");
  EXPECT_EQ(recognise_software("HAI-LLM", true), "hai-llm");
  EXPECT_EQ(recognise_software("Megatron-DeepSpeed", false), "deepspeed");
  EXPECT_EQ(recognise_software("InternEvo v0.2.1dev20231121", true), "internevo");
  EXPECT_EQ(recognise_software("torchtitan 2024", true), "torchtitan");
  EXPECT_EQ(recognise_software("something new", true), "megatron-core");
  EXPECT_THROW(software_row("something new"), UsageError);
}

}  // namespace
}  // namespace esp::plan
