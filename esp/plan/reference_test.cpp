#include "esp/plan/reference.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "esp/model/model.h"
#include "esp/plan/activations.h"

namespace esp::plan {
namespace {

std::map<std::string, std::string> shown() {
  std::map<std::string, std::string> all;
  for (const ReferenceNumber& one : reference_numbers()) all[one.item] = one.shown;
  return all;
}

TEST(Reference, ReproducesParameterCounts) {
  auto all = shown();
  EXPECT_EQ(all["GPT-3, matrices alone: 12 L d² + V d"], "174563733504");
  EXPECT_EQ(all["GPT-3 as the slide counts: 12 d² + 5 d a layer"], "174569631744");
  EXPECT_EQ(all["GPT-3, all parameters"], "174604259328");
  for (const auto& [name, count] : {std::pair{"gpt3-125m", "0.125"},
                                    {"gpt3-350m", "0.356"},
                                    {"gpt3-760m", "0.760"},
                                    {"gpt3-1.3b", "1.316"},
                                    {"gpt3-2.7b", "2.652"},
                                    {"gpt3-6.7b", "6.658"},
                                    {"gpt3-13b", "12.853"},
                                    {"gpt3-175b", "174.604"}})
    EXPECT_EQ(all[std::string("GPT-3 family: ") + name], count);
  for (const auto& [name, count] :
       {std::pair{"llama-7b", "6.738"}, {"llama-13b", "13.016"}, {"llama-33b", "32.529"}, {"llama-65b", "65.286"}})
    EXPECT_EQ(all[std::string("LLaMA: ") + name], count);
}

TEST(Reference, ReproducesMegatronsTableToThePrintedDigit) {
  const int dp[] = {32, 32, 32, 32, 32, 32, 24, 15, 9, 6};
  size_t i = 0;
  for (const MegatronRow& row : megatron_table()) EXPECT_EQ(row.dp(), dp[i++]);
  for (const ReferenceNumber& one : reference_numbers())
    if (one.item.starts_with("Megatron's table") && one.unit == "billion") {
      EXPECT_EQ(one.shown + "B", one.printed) << one.item;
    } else if (one.item.starts_with("Megatron's table")) {
      EXPECT_NEAR(one.value, std::stod(one.printed), one.tolerance * one.value + 0.05) << one.item;
    }
}

TEST(Reference, ReproducesMemoryOfStates) {
  auto all = shown();
  EXPECT_EQ(all["GPT-3's master weights, 32 bits"], "700");
  EXPECT_EQ(all["GPT-3's first moments, 32 bits"], "700");
  EXPECT_EQ(all["GPT-3's second moments, 32 bits"], "700");
  EXPECT_EQ(all["GPT-3's weights, 16 bits"], "350");
  EXPECT_EQ(all["GPT-3's gradients, 16 bits"], "350");
  EXPECT_EQ(all["data parallel, everything in 16 bits: 8 bytes per parameter"], "1400");
  EXPECT_EQ(all["data parallel, mixed-precision Adam: 16 bytes per parameter"], "2800");
  EXPECT_EQ(all["7.5 B parameters on 64 ranks, ZeRO 0"], "120");
  EXPECT_EQ(all["7.5 B parameters on 64 ranks, ZeRO 1"], "31.4");
  EXPECT_EQ(all["7.5 B parameters on 64 ranks, ZeRO 2"], "16.6");
  EXPECT_EQ(all["7.5 B parameters on 64 ranks, ZeRO 3"], "1.88");
  EXPECT_EQ(all["70 B weights in 16 bits"], "140");
  EXPECT_EQ(all["70 B, all states"], "1120");
  EXPECT_EQ(all["70 B, ZeRO 3 on 80 ranks"], "14");
}

TEST(Reference, ReproducesActivationFormulas) {
  auto all = shown();
  EXPECT_EQ(all["activations of GPT-3, 3.2 M tokens, nothing recomputed"], "430.3");
  EXPECT_EQ(all["… attention recomputed (selective)"], "128.3");
  EXPECT_EQ(all["… everything recomputed"], "7.55");
  const ModelShape shape = shape_of(model::preset("gpt3-175b").config, "gpt3");
  Policy policy;
  policy.flash = false;
  policy.dropout = true;
  policy.micro_batch = 3;
  const double s = 2048, b = 3, h = 12288, a = 96;
  EXPECT_DOUBLE_EQ(layer_activations(shape, policy, false).sum(), 34 * s * b * h + 5 * a * b * s * s);
}

TEST(Reference, ReproducesTimesAndUtilisation) {
  auto all = shown();
  EXPECT_EQ(all["A100s for GPT-3 in 30 days at 160 TFLOP/s, 6TP"], "759.5");
  EXPECT_EQ(all["… with recomputation, 8TP"], "1012.7");
  EXPECT_EQ(all["utilisation of GPT-3 on 1024 A100 in 35 days, 8TP (HFU)"], "0.4347");
  EXPECT_EQ(all["utilisation of LLaMA-65B on 2048 A100 in 21 days, 8TP"], "0.628");
  EXPECT_EQ(all["days of GPT-3 on 1024 A100 at a utilisation of 0.44, 8TP"], "34.6");
  EXPECT_EQ(all["Llama 3's 400 TFLOP/s on H100, of the peak"], "0.404");
  EXPECT_EQ(all["DeepSeek-V3: 2.664 M hours on 2048 H800"], "54.2");
  EXPECT_EQ(all["Llama 3.1 405B: 30.84 M hours on 16,000 H100"], "80.3");
  std::vector<std::string> mfu;
  for (const ReferenceNumber& one : reference_numbers())
    if (one.item == "… 6TP (MFU)") mfu.push_back(one.shown);
  EXPECT_EQ(mfu, (std::vector<std::string>{"0.3260", "0.471"}));
}

// A convention is the slide's own way of counting. Computed that way, the value must equal the printed figure.
TEST(Reference, OtherCountingConventionsReproduceThePrintedFigure) {
  std::map<std::string, double> by_item;
  for (const ReferenceNumber& one : reference_numbers())
    if (one.convention) {
      EXPECT_TRUE(one.remark.starts_with("convention: ")) << one.item;
      by_item[one.item] = *one.convention;
    }
  EXPECT_EQ(by_item.size(), 5u);
  EXPECT_DOUBLE_EQ(by_item["70 B, all states"], 280);
  EXPECT_DOUBLE_EQ(by_item["70 B, ZeRO 3 on 80 ranks"], 3.5);
  EXPECT_DOUBLE_EQ(by_item["LLaMA: llama-65b"], 65.2);
  EXPECT_DOUBLE_EQ(by_item["PCIe 5 x16, one direction"], 128);
  EXPECT_DOUBLE_EQ(by_item["B300, 8-bit GEMM"], 72);
}

TEST(Reference, ReproducesTrafficAndLinks) {
  auto all = shown();
  EXPECT_EQ(all["GPT-3's gradients of an iteration"], "350");
  EXPECT_EQ(all["… sent by each of 1024 ranks in a ring"], "699.3");
  EXPECT_EQ(all["nvlink6, both directions"], "3600");
  EXPECT_EQ(all["B300, 8-bit GEMM"], "4.5");
}

}  // namespace
}  // namespace esp::plan
