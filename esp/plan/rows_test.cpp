#include "esp/plan/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/plan/validate.h"

namespace esp::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

MeasuredRow row_of(const std::string& head, const std::string& cells) {
  const auto rows = read_rows(head + "\n" + cells + "\n", "test.csv", built_in_catalog());
  return rows.at(0);
}

std::string assumptions_of(const MeasuredRow& row) {
  std::string all;
  for (const std::string& one : row.assumed) all += one + "; ";
  return all;
}

TEST(Csv, ReadsQuotesLineBreaksByteOrderMarkAndBothLineEndings) {
  const auto rows = parse_csv(
      "\xEF\xBB\xBF"
      "a,b\r\n\"1,2\",\"say \"\"no\"\"\nnow\"\r\n\r\n3,\n,4",
      "t");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_THAT(rows[0], ElementsAre("a", "b"));
  EXPECT_THAT(rows[1], ElementsAre("1,2", "say \"no\"\nnow"));
  EXPECT_THAT(rows[2], ElementsAre("3", ""));
  EXPECT_THAT(rows[3], ElementsAre("", "4"));
  EXPECT_THROW(parse_csv("a\n\"open", "t"), IoError);
}

TEST(Csv, ReadsCommonNumberFormats) {
  const CsvRow row({"a", "b", "c", "d", "e", "f", "G "}, {"1,024", "~3.5", "2 (inferred)", "8k", "n/a", "many", "-1"});
  EXPECT_EQ(row.number("a"), 1024);
  EXPECT_EQ(row.number("b"), 3.5);
  EXPECT_EQ(row.number("c"), 2);
  EXPECT_EQ(row.number("d"), 8192);
  EXPECT_FALSE(row.number("e"));
  EXPECT_FALSE(row.number("f"));
  EXPECT_FALSE(row.number("g"));  // the value is below the lower bound of number()
  EXPECT_EQ(row.number("g", -5), -1);
}

TEST(Rows, CompleteRowNeedsNoAssumptions) {
  const MeasuredRow row = row_of(
      "row_id,kind,source,framework,model,arch,params_b,layers,hidden,ffn,heads,kv_heads,seq,vocab,gpu,gpu_mem_gb,gpus,"
      "gpus_per_node,net_gbps_per_node,precision,tp,pp,dp,cp,ep,vpp,schedule,seq_par,zero,mbs,gbs,recompute,flash_attn,"
      "offload,comm_overlap,step_time_s",
      "r1,step,s,Megatron-LM (commit "
      "6985e589),GPT-145.6B,gpt,145.6,80,12288,49152,96,96,2048,51200,A100-80GB-SXM,80,1536,"
      "8,1600,fp16,8,8,24,1,1,2,interleaved-1f1b,0,0,2,2304,full,0,none,none (local DDP); PP scatter-gather on,24.82");
  EXPECT_EQ(assumptions_of(row), "");
  EXPECT_EQ(row.policy.software, "megatron-2021");
  EXPECT_EQ(row.policy.schedule, "interleaved");
  EXPECT_EQ(row.policy.interleave, 2);
  EXPECT_EQ(row.policy.world(), 1536);
  EXPECT_EQ(row.policy.num_micro_batches(), 48);
  EXPECT_EQ(row.policy.recompute, RecomputePolicy::full);
  EXPECT_FALSE(row.policy.overlap_dp);
  EXPECT_FALSE(row.policy.flash);
  EXPECT_TRUE(row.shape.tied);
  EXPECT_EQ(row.cluster.across.bandwidth, 25e9);
  EXPECT_EQ(row.measured_s, 24.82);
}

TEST(Rows, RecordsAssumptionsForMissingFields) {
  const MeasuredRow row = row_of("source,layers,hidden,gpu,gpus,step_time_s", "s,32,4096,H100,64,1.5");
  EXPECT_EQ(row.policy.dp, 64);
  EXPECT_EQ(row.shape.heads, 32);
  EXPECT_EQ(row.shape.ffn, 4 * 4096);
  EXPECT_GT(row.shape.vocab, 0);
  for (const char* word :
       {"heads", "ffn", "vocab", "seq", "dp", "batch", "precision", "software", "Gb/s", "recomputation"})
    EXPECT_THAT(assumptions_of(row), HasSubstr(word));
  EXPECT_EQ(row.id, "row 1");
  EXPECT_GT(predict(row).predicted_s.value_or(0), 0);
}

TEST(Rows, PublishedParameterCountSelectsModelVariant) {
  const char* head = "source,arch,params_b,layers,hidden,ffn,heads,vocab,seq,experts,topk,moe_ffn,gpu";
  EXPECT_TRUE(row_of(head, "s,gpt,1.7,24,2304,9216,24,51200,2048,,,,A100").shape.tied);
  EXPECT_FALSE(row_of(head, "s,gpt,7.1,30,4096,16384,32,131072,4096,,,,H100").shape.tied);
  EXPECT_TRUE(row_of(head, "s,gpt,6.7,32,4096,11008,32,32000,2048,,,,A100").shape.gated);
  const ModelShape moe = row_of(head, "s,llama,46.7,32,4096,14336,32,32000,4096,8,2,14336,H100").shape;
  EXPECT_EQ(moe.experts, 8);
  EXPECT_EQ(moe.expert_every, 1);
  EXPECT_EQ(moe.shared_experts, 0);
}

TEST(Rows, RecognisesAModelByNameOrCount) {
  const char* head = "source,model,arch,params_b,seq,gpu,gpus,step_time_s";
  const MeasuredRow llama = row_of(head, "s,Llama-3.1-405B,llama,,,H100,1024,1");
  EXPECT_EQ(llama.shape.layers, 126);
  EXPECT_EQ(llama.shape.seq, 8192);
  EXPECT_EQ(row_of(head, "s,LLaMA-7B,llama,6.7,512,A100,8,1").shape.seq, 512);
  const MeasuredRow other = row_of(head, "s,house model,gpt,20,2048,A100,64,1");
  EXPECT_NEAR(other.shape.parameters() / 20e9, 1, 0.1);
  EXPECT_GT(predict(other).predicted_s.value_or(0), 0);
  EXPECT_THAT(assumptions_of(other), HasSubstr("usual"));
  EXPECT_FALSE(predict(row_of(head, "s,nothing,gpt,,2048,A100,64,1")).predicted_s.has_value());
}

TEST(Rows, InfersAxesFromTheGivenFields) {
  const char* head = "source,layers,hidden,gpu,gpus,tp,pp,dp,cp,gbs,mbs,grad_accum";
  EXPECT_EQ(row_of(head, "s,32,4096,H100,64,8,2,,1,64,1,").policy.dp, 4);
  const Policy within = row_of(head, "s,32,4096,H100,64,8,1,8,4,64,1,").policy;  // dp in this row includes cp
  EXPECT_EQ(within.dp, 2);
  EXPECT_EQ(within.world(), 64);
  EXPECT_EQ(row_of(head, "s,32,4096,H100,8,1,1,8,1,,2,4").policy.global_batch, 64);
  EXPECT_EQ(row_of(head, "s,32,4096,H100,8,1,1,8,1,64,,4").policy.micro_batch, 2);
  // Axes that do not multiply to gpus are not an error.
  EXPECT_EQ(row_of(head, "s,32,4096,H100,8,4000,4000,4000,4000,1e30,9999999,1e9").policy.tp, 1);
}

TEST(Rows, ParsesSchedulesPrecisionsAndRecomputation) {
  std::vector<std::string> assumed;
  const auto schedule = [&](const char* words, int chunks = 1) {
    return parse_schedule(words, chunks, assumed).schedule;
  };
  EXPECT_EQ(schedule("ZB-V"), "zb-v");
  EXPECT_EQ(schedule("zero-bubble zb-2p"), "zb-2p");
  EXPECT_EQ(schedule("zb-1p"), "zb-h1");
  EXPECT_EQ(schedule("V-Half"), "v-half");
  EXPECT_EQ(schedule("dualpipe"), "dualpipe");
  EXPECT_EQ(schedule("interleaved-1f1b", 2), "interleaved");
  EXPECT_EQ(schedule("1f1b", 4), "interleaved");
  EXPECT_EQ(schedule("AFAB"), "gpipe");
  EXPECT_TRUE(parse_schedule("1f1b-vocab-2", 1, assumed).vocabulary);
  EXPECT_TRUE(parse_schedule("interlaced", 1, assumed).vocabulary);
  EXPECT_TRUE(assumed.empty());
  EXPECT_EQ(schedule("lightning"), "1f1b");
  EXPECT_EQ(assumed.size(), 1u);
  const Processor& v100 = built_in_catalog().processor("V100").processor;
  const Processor& h100 = built_in_catalog().processor("H100").processor;
  EXPECT_EQ(parse_precision("mxfp8", h100, assumed), "fp8");
  EXPECT_EQ(parse_precision("bf16", v100, assumed), "fp16");
  EXPECT_EQ(parse_precision("nvfp4", h100, assumed), "fp8");
  EXPECT_EQ(parse_precision("", h100, assumed), "bf16");
  const char* head = "source,layers,hidden,gpu,gpus,pp,recompute";
  EXPECT_EQ(row_of(head, "s,32,4096,H100,8,1,attn").policy.recompute, RecomputePolicy::selective);
  EXPECT_EQ(row_of(head, "s,32,4096,H100,8,1,selective (attention core)").policy.recompute, RecomputePolicy::selective);
  EXPECT_EQ(row_of(head, "s,32,4096,H100,8,1,disabled").policy.recompute, RecomputePolicy::none);
  EXPECT_EQ(row_of(head, "s,32,4096,H100,8,1,every_layer").policy.recompute, RecomputePolicy::full);
  const Policy some = row_of(head, "s,32,4096,H100,8,4,full 3 layers").policy;
  EXPECT_EQ(some.recompute, RecomputePolicy::full);
  EXPECT_EQ(some.recompute_layers, 3);
  EXPECT_EQ(row_of(head, "s,32,4096,H100,8,4,\"full (uniform, 1 layer)\"").policy.recompute_layers, -1);
}

TEST(Rows, AcceptsUnitsSeparatorsAndColumnAliases) {
  const MeasuredRow row = row_of("Source;Num Layers;hidden-size;vocab_size;gpu;gpus;global_batch_size;step_time",
                                 "s;32;4096;32k;H100;8;64;850 ms");
  EXPECT_EQ(row.shape.layers, 32);
  EXPECT_EQ(row.shape.hidden, 4096);
  EXPECT_EQ(row.shape.vocab, 32768);
  EXPECT_EQ(row.policy.global_batch, 64);
  EXPECT_DOUBLE_EQ(row.measured_s, 0.85);
  const char* head = "source,model,params_b,gpu,gpus,step_time_s";
  EXPECT_DOUBLE_EQ(row_of(head, "s,house,350M,A100,8,1").shape.given_parameters, 350e6);
  EXPECT_DOUBLE_EQ(row_of(head, "s,house,1.2T,A100,8,1 s").shape.given_parameters, 1.2e12);
  EXPECT_DOUBLE_EQ(row_of(head, "s,house,7,A100,8,2 measured").measured_s, 2);
}

TEST(Rows, InfersPolicyDetailsFromFrameworkAndNotes) {
  const char* head =
      "source,framework,model,arch,layers,hidden,seq,experts,topk,gpu,gpus,precision,tp,pp,dp,cp,ep,mbs,gbs,notes";
  const auto policy = [&](const std::string& cells) { return row_of(head, cells).policy; };
  EXPECT_EQ(policy("s,Megatron-Core,m,llama,8,4096,32768,,,H100,8,bf16,1,1,1,8,1,1,4,cp a2a").context, "ulysses");
  EXPECT_EQ(policy("s,Megatron-Core,m,llama,8,4096,32768,,,H100,8,bf16,1,1,1,8,1,1,4,").context, "ring");
  EXPECT_EQ(policy("s,Megatron-Core,m,moe,8,4096,4096,64,8,H100,64,bf16,1,1,64,1,32,1,64,DeepEP").expert_nodes, 32);
  EXPECT_EQ(policy("s,Megatron-Core,m,moe,8,4096,4096,64,8,H100,64,bf16,1,1,64,1,32,1,64,").expert_nodes, 0);
  // A rank's batch of 32, with a pipeline of eight stages, is split into eight micro-batches of four sequences.
  EXPECT_EQ(policy("s,torchtitan,m,llama,32,4096,8192,,,H100,64,bf16,1,8,8,1,1,32,256,").micro_batch, 4);
  EXPECT_EQ(policy("s,Megatron-Core,m,llama,32,4096,8192,,,H100,64,bf16,1,8,8,1,1,32,256,").micro_batch, 32);
  EXPECT_TRUE(policy("s,Megatron-DeepSpeed,m,gpt,32,4096,2048,,,A100,64,bf16,1,8,8,1,1,1,64,").gradients_fp32);
  EXPECT_FALSE(policy("s,Megatron-DeepSpeed,m,gpt,32,4096,2048,,,A100,64,fp16,1,8,8,1,1,1,64,").gradients_fp32);
  EXPECT_EQ(policy("s,HAI-LLM,m,moe,8,4096,4096,64,8,H800,64,fp8,1,1,64,1,32,1,64,").moment_bytes, 4);
  const auto dense = [&](int layers) {
    return row_of(head, "s,Megatron-Core,DeepSeek-V3,moe," + std::to_string(layers) +
                            ",7168,4096,256,8,B200,8,bf16,1,1,8,1,8,1,32,")
        .shape.dense_layers;
  };
  EXPECT_EQ(dense(61), 3);
  EXPECT_EQ(dense(4), 1);
}

// Published runs fitted in memory. If chunks and recomputation are open and no candidate is predicted to fit, the
// fastest is chosen.
TEST(Rows, ChoosesFastestCandidateIfNoneIsPredictedToFit) {
  const char* head =
      "source,framework,arch,layers,hidden,ffn,heads,seq,vocab,gpu,gpus,tp,pp,dp,schedule,mbs,gbs,recompute,step_time_"
      "s";
  const MeasuredRow row = row_of(
      head, "s,Megatron-Core,llama,128,16384,53248,128,8192,128256,A100-40GB,128,8,16,1,interleaved,1,64,none,1");
  ASSERT_FALSE(predict(row).fits);
  EXPECT_GT(row.policy.interleave, 1);
  EXPECT_THAT(assumptions_of(row), HasSubstr("fitted"));
}

TEST(Rows, ErrorInOneRowDoesNotAffectOtherRows) {
  const auto rows = read_rows(
      "row_id,source,layers,hidden,heads,gpu,gpus,tp,pp,precision,step_time_s\n"
      "a,s,32,4096,32,H100,8,1,1,bf16,1\n"
      "b,s,-1,nan,0,Cray-1,0,1e9,minus one,fp7,soon\n"
      ",,,,,,,,,,\n"
      "\"c\"\"\",s,1e308,1e308,1e308,H100,1e308,1e308,1e308,bf16,1e308\n"
      "d,s,32,4096,32,H100,8,1,1,bf16,1,too,many,cells\n"
      "e\n",
      "t", built_in_catalog());
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_GT(predict(rows[0]).predicted_s.value_or(0), 0);
  EXPECT_GT(predict(rows[4]).predicted_s.value_or(0), 0);
  for (const MeasuredRow& row : rows) EXPECT_NO_THROW(predict(row)) << row.id;
}

TEST(Rows, RejectsTextThatIsNotATable) {
  EXPECT_THROW(read_rows("", "t", built_in_catalog()), IoError);
  EXPECT_THROW(read_rows("one,two\n1,2\n", "t", built_in_catalog()), IoError);
}

}  // namespace
}  // namespace esp::plan
