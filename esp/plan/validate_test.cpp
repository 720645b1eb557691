#include "esp/plan/validate.h"

#include <cmath>
#include <iterator>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace esp::plan {
namespace {

constexpr const char* kHead =
    "row_id,kind,source,model,arch,params_b,layers,hidden,heads,seq,vocab,gpu,gpus,gpus_per_node,net_gbps_per_node,"
    "precision,tp,pp,dp,zero,mbs,gbs,recompute,flash_attn,framework,step_time_s,mem_gb,mem_kind\n";

std::vector<MeasuredRow> rows(const std::string& cells) {
  return read_rows(kHead + cells, "test.csv", built_in_catalog());
}

// A table whose measured times are the predictions times the given factors, so that the errors are known.
std::string layouts(const std::vector<double>& factors) {
  const char* layout[] = {"1,1,8", "2,1,4", "4,1,2", "8,1,1"};
  std::string cells, made;
  for (size_t i = 0; i < 4; ++i)
    cells += std::string("r,step,s,m,llama,,16,2048,16,2048,32000,H100,8,8,3200,bf16,") + layout[i] +
             ",0,1,16,none,1,Megatron-Core,1,,\n";
  size_t i = 0;
  for (const MeasuredRow& row : rows(cells)) {
    const double time = predict(row).predicted_s.value() * factors[i];
    made += std::string("r,step,s,m,llama,,16,2048,16,2048,32000,H100,8,8,3200,bf16,") + layout[i++] +
            ",0,1,16,none,1,Megatron-Core," + std::to_string(time) + ",,\n";
  }
  return made;
}

TEST(Validate, ReportsRelativeErrorsBySource) {
  const Validation v = validate(rows(layouts({1, 1 / 1.1, 1 / 0.9, 1 / 1.2})), 0);
  EXPECT_NEAR(*v.rows[1].error(), 0.1, 1e-3);
  EXPECT_NEAR(*v.rows[2].error(), -0.1, 1e-3);
  ASSERT_EQ(v.sources.size(), 1u);
  const SourceResult& s = v.sources[0];
  EXPECT_EQ(s.n, 4);
  EXPECT_NEAR(s.mean, 0.1, 1e-3);
  EXPECT_NEAR(s.median, 0.1, 1e-3);
  EXPECT_NEAR(s.worst, 0.2, 1e-3);
  EXPECT_NEAR(s.p90, 0.17, 1e-3);
}

TEST(Validate, CorrectRankingHasTauOneAndNoRegret) {
  const Validation v = validate(rows(layouts({1, 1, 1, 1})), 0);
  EXPECT_EQ(v.sources[0].sweeps, 1);
  EXPECT_EQ(*v.sources[0].tau, 1);
  EXPECT_NEAR(*v.sources[0].regret, 0, 1e-4);
}

TEST(Validate, WrongBestPredictionHasRegret) {
  // The row predicted best gets twice its predicted time as measured time.
  std::vector<double> factors = {1, 1, 1, 1};
  const auto all = rows(layouts(factors));
  size_t best = 0;
  for (size_t i = 1; i < 4; ++i)
    if (*predict(all[i]).predicted_s < *predict(all[best]).predicted_s) best = i;
  factors[best] = 3;
  const Validation v = validate(rows(layouts(factors)), 0);
  EXPECT_LT(*v.sources[0].tau, 1);
  EXPECT_GT(*v.sources[0].regret, 0.05);
}

TEST(Validate, FitsOneFactorOnAFewRowsAndEvaluatesTheOthers) {
  const Validation v = validate(rows(layouts({1.3, 1.3, 1.3, 1.3})), 2);
  EXPECT_NEAR(v.sources[0].scale, 1.3, 1e-3);
  EXPECT_EQ(v.sources[0].n, 2);
  EXPECT_NEAR(v.sources[0].worst, 0, 1e-3);
  EXPECT_TRUE(v.rows[0].fitted_on);
  EXPECT_FALSE(v.rows[1].fitted_on);
}

TEST(Validate, ReproducesZeroPaperMemoryToPrintedDigit) {
  std::string cells;
  struct Printed {
    const char *params, *gpus, *values[3];
  };
  const Printed table[] = {
      {"7.5", "1", {"120", "120", "120"}},        {"7.5", "4", {"52.5", "41.3", "30"}},
      {"7.5", "16", {"35.6", "21.6", "7.5"}},     {"7.5", "64", {"31.4", "16.6", "1.88"}},
      {"7.5", "256", {"30.4", "15.4", "0.47"}},   {"7.5", "1024", {"30.1", "15.1", "0.12"}},
      {"128", "1", {"2048", "2048", "2048"}},     {"128", "4", {"896", "704", "512"}},
      {"128", "16", {"608", "368", "128"}},       {"128", "64", {"536", "284", "32"}},
      {"128", "256", {"518", "263", "8"}},        {"128", "1024", {"513", "257", "2"}},
      {"1000", "1", {"16000", "16000", "16000"}}, {"1000", "4", {"7000", "5500", "4000"}},
      {"1000", "16", {"4750", "2875", "1000"}},   {"1000", "64", {"4187", "2218", "250"}},
      {"1000", "256", {"4046", "2054", "62.5"}},  {"1000", "1024", {"4011", "2013", "15.6"}},
  };
  for (const Printed& row : table)
    for (int stage = 1; stage <= 3; ++stage)
      cells += std::string("z,memory,zero,") + row.params + "B,any," + row.params + ",,,,,,," + row.gpus +
               ",,,fp16,1,1," + row.gpus + "," + std::to_string(stage) + ",,,,,analytic,," + row.values[stage - 1] +
               ",\"model states only, GB=1e9\"\n";
  const Validation v = validate(rows(cells), 0);
  ASSERT_EQ(v.rows.size(), 54u);
  for (const RowResult& row : v.rows) {
    // The difference must be less than one unit of the last printed digit: the table prints 4046.9 as 4046, and 41.25
    // as 41.3.
    const double measured = *row.measured_gb;
    const double unit = measured >= 100 || measured == std::floor(measured) ? 1 : measured >= 2 ? 0.1 : 0.01;
    EXPECT_LT(std::abs(*row.predicted_gb - measured), unit) << measured << " against " << *row.predicted_gb;
  }
  EXPECT_EQ(v.sources[0].n, 54);
  EXPECT_LT(v.sources[0].worst, 0.03);
}

TEST(Validate, RejectsAndCountsRowsThatRanOutOfMemory) {
  const Validation v =
      validate(rows("o1,oom,s,m,llama,,80,8192,64,8192,128000,A100,8,8,1600,bf16,8,1,1,0,8,8,none,1,Megatron-Core,,,\n"
                    "o2,oom,s,m,llama,,2,256,4,128,1000,A100,8,8,1600,bf16,1,1,8,0,1,8,none,1,Megatron-Core,,,\n"),
               0);
  EXPECT_FALSE(v.rows[0].fits);
  EXPECT_TRUE(v.rows[1].fits);
  EXPECT_EQ(v.sources[0].oom, 2);
  EXPECT_EQ(*v.sources[0].oom_right, 0.5);
  EXPECT_EQ(v.sources[0].n, 0);
}

// Pairs of policies that differ by one change: one does not fit, the other does. The sizes are computed by hand from
// states, activations, attention scores and logits.
TEST(Validate, RejectsInfeasibleRowsButNotTheirNeighbours) {
  const std::string head =
      "row_id,kind,source,arch,layers,hidden,ffn,heads,kv_heads,seq,vocab,experts,topk,gpu,gpus,precision,tp,pp,dp,cp,"
      "ep,"
      "schedule,seq_par,zero,mbs,gbs,recompute,flash_attn,framework\n";
  struct Pair {
    const char *why, *too_large, *fits;
  };
  const Pair pairs[] = {
      {"7B: 16 bytes per parameter are 108 GB; sharded over 8 ranks 13 GB",
       "llama,32,4096,11008,32,32,2048,32000,,,A100,8,bf16,1,1,8,1,1,,,0,1,8,full,1,DeepSpeed",
       "llama,32,4096,11008,32,32,2048,32000,,,A100,8,bf16,1,1,8,1,1,,,3,1,8,full,1,DeepSpeed"},
      {"13B on 32 GB: ZeRO 2 keeps 26 GB of weights per rank; ZeRO 3 on 16 ranks keeps 13 GB of states",
       "llama,40,5120,13824,40,40,2048,32000,,,V100-32GB-SXM2,8,fp16,1,1,8,1,1,,,2,1,8,full,0,DeepSpeed",
       "llama,40,5120,13824,40,40,2048,32000,,,V100-32GB-SXM2,16,fp16,1,1,16,1,1,,,3,1,16,full,0,DeepSpeed"},
      {"70B sharded: 138 GB per rank on 8 ranks, 34 GB on 32",
       "llama,80,8192,28672,64,8,2048,32000,,,A100,8,bf16,1,1,8,1,1,,,3,1,8,full,1,PyTorch FSDP",
       "llama,80,8192,28672,64,8,2048,32000,,,A100,32,bf16,1,1,32,1,1,,,3,1,32,full,1,PyTorch FSDP"},
      {"175B: 49 GB of states and 34 GB of activations with attention scores; 10 GB without scores",
       "gpt,96,12288,49152,96,96,2048,51200,,,A100,64,fp16,8,8,1,1,1,1f1b,1,0,1,64,none,0,Megatron-LM",
       "gpt,96,12288,49152,96,96,2048,51200,,,A100,64,fp16,8,8,1,1,1,1f1b,1,0,1,64,selective,0,Megatron-LM"},
      {"405B: 228 GB of states per rank on 32 ranks; on 256 ranks optimizer states are also sharded over 2 replicas",
       "llama,126,16384,53248,128,8,8192,128256,,,H100,32,bf16,8,4,1,1,1,1f1b,1,1,1,32,full,1,Megatron-Core",
       "llama,126,16384,53248,128,8,8192,128256,,,H100,256,bf16,8,16,2,1,1,1f1b,1,1,1,64,full,1,Megatron-Core"},
      {"8B, 131,072 tokens: 700 GB of activations; with cp 8 and full recomputation only layer inputs of an eighth",
       "llama,32,4096,14336,32,8,131072,128256,,,H100,8,bf16,1,1,8,1,1,,,3,1,8,none,1,torchtitan",
       "llama,32,4096,14336,32,8,131072,128256,,,H100,8,bf16,1,1,1,8,1,,,3,1,1,full,1,torchtitan"},
      {"8192 tokens: 344 GB of stored attention scores; fused attention stores none",
       "gpt,32,2560,10240,32,32,8192,51200,,,A100,8,bf16,1,1,8,1,1,,,1,1,8,none,0,Megatron-LM",
       "gpt,32,2560,10240,32,32,8192,51200,,,A100,8,bf16,1,1,8,1,1,,,1,1,8,none,1,Megatron-LM"},
      {"GPipe keeps 64 live micro-batches, 1F1B two",
       "llama,32,4096,11008,32,32,4096,32000,,,A100,8,bf16,4,2,1,1,1,gpipe,1,0,1,64,none,1,Megatron-Core",
       "llama,32,4096,11008,32,32,4096,32000,,,A100,8,bf16,4,2,1,1,1,1f1b,1,0,1,64,none,1,Megatron-Core"},
      {"vocabulary 256,000, 32,768 tokens: 84 GB of logits; 10 GB per rank with tp 8",
       "llama,16,2048,8192,16,16,4096,256000,,,A100,8,bf16,1,1,8,1,1,,,1,8,64,full,1,Megatron-Core",
       "llama,16,2048,8192,16,16,4096,256000,,,A100,8,bf16,8,1,1,1,1,,1,1,8,8,full,1,Megatron-Core"},
      {"47B, 13B active: 840 GB per replica; with ep 8 experts and their states are sharded",
       "moe,32,4096,14336,32,8,4096,32000,8,2,H100,64,bf16,1,1,64,1,1,,,0,1,64,full,1,Megatron-Core",
       "moe,32,4096,14336,32,8,4096,32000,8,2,H100,64,bf16,1,1,64,1,8,,,1,1,64,full,1,Megatron-Core"},
  };
  std::string cells = head;
  for (const Pair& pair : pairs) {
    cells += std::string("o,oom,s,") + pair.too_large + "\n";
    cells += std::string("r,step,s,") + pair.fits + "\n";
  }
  const Validation v = validate(read_rows(cells, "test.csv", built_in_catalog()), 0);
  for (size_t i = 0; i < std::size(pairs); ++i) {
    EXPECT_FALSE(v.rows[2 * i].fits) << pairs[i].why << ": " << v.rows[2 * i].predicted_gb.value_or(0);
    EXPECT_TRUE(v.rows[2 * i + 1].fits) << pairs[i].why << ": " << v.rows[2 * i + 1].predicted_gb.value_or(0);
  }
  EXPECT_EQ(v.sources[0].oom, static_cast<int>(std::size(pairs)));
  EXPECT_EQ(*v.sources[0].oom_right, 1);
  EXPECT_EQ(v.sources[0].rejected, 0);
}

// A row may have a FLOP rate instead of a time; a column says which FLOPs the rate counts.
TEST(Validate, DerivesStepTimeFromFlopRate) {
  const std::string columns =
      "row_id,kind,source,arch,layers,hidden,heads,seq,vocab,gpu,gpus,precision,tp,pp,dp,mbs,gbs,recompute,flash_attn,"
      "framework,tflops_gpu,tflops_kind,mfu_pct,hfu_pct\n";
  const std::string row = "r,step,s,llama,32,4096,32,4096,32000,H100,8,bf16,1,1,8,1,64,full,1,Megatron-Core,";
  const auto read = [&](const std::string& rest) {
    return read_rows(columns + row + rest + "\n", "test.csv", built_in_catalog()).at(0);
  };
  const double model = read("400,model,,").measured_s;
  EXPECT_GT(model, 0);
  EXPECT_NEAR(read("400,hardware,,").measured_s / model, 4.0 / 3, 0.02);
  EXPECT_LT(read("400,model (causal),,").measured_s, model);
  EXPECT_NEAR(read(",,40.445,").measured_s, model, 0.001 * model);  // 40.445 % of the peak of 989 TFLOP/s
  EXPECT_NEAR(read(",,,40.445").measured_s, read("400,hardware,,").measured_s, 0.001 * model);
  EXPECT_NE(read(",,40,").assumed.back().find("utilisation"), std::string::npos);
}

TEST(Validate, LayerTimeIsCloseToStepTimeOverNumberOfLayers) {
  const std::string same = "s,m,llama,,16,4096,32,2048,32000,H100,8,8,3200,bf16,8,1,1,0,1,1,none,1,Megatron-Core,1,,\n";
  const Validation v = validate(rows("a,step," + same + "b,layer_time," + same), 0);
  EXPECT_GT(*v.rows[1].predicted_s, 0.02 * *v.rows[0].predicted_s);
  EXPECT_LT(16 * *v.rows[1].predicted_s, *v.rows[0].predicted_s);
}

TEST(Validate, JsonHasTheDocumentedKeys) {
  const Json json = to_json(validate(rows(layouts({1, 1.1, 1, 1})), 0));
  for (const char* key : {"row_id", "source", "predicted_s", "measured_s", "error", "predicted_mem_gb",
                          "measured_mem_gb", "fits", "interval_s", "assumed"})
    EXPECT_TRUE(json["rows"][0].contains(key)) << key;
  for (const char* key : {"source", "n", "mean", "median", "p90", "worst", "tau", "regret", "oom_right"})
    EXPECT_TRUE(json["sources"][0].contains(key)) << key;
  EXPECT_EQ(json["rows"][0]["interval_s"].size(), 2u);
}

}  // namespace
}  // namespace esp::plan
