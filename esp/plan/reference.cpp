#include "esp/plan/reference.h"

#include <cmath>

#include <fmt/format.h>

#include "esp/model/model.h"
#include "esp/plan/activations.h"
#include "esp/plan/catalog.h"
#include "esp/plan/estimate.h"
#include "esp/plan/network.h"

namespace esp::plan {
namespace {

constexpr double kDay = 86400, kMonth = 30 * kDay;
using Numbers = std::vector<ReferenceNumber>;

ReferenceNumber& add(Numbers& to, std::string item, std::string printed, double value, const char* format,
                     std::string unit, std::string remark = "") {
  return to.emplace_back(ReferenceNumber{std::move(item),
                                         std::move(printed),
                                         value,
                                         std::move(unit),
                                         fmt::format(fmt::runtime(format), value),
                                         std::move(remark),
                                         0,
                                         {}});
}

ModelShape preset_shape(const char* name) {
  return shape_of(model::preset(name).config, name);
}

ModelShape count_alone(double parameters) {
  ModelShape s;
  s.arch = "any";
  s.given_parameters = parameters;
  return s;
}

// Memory of states by ZeRO's formula: 16 bytes per parameter; no slack, no context.
Memory states(double parameters, int zero, int dp) {
  Policy p;
  p.zero = zero;
  p.dp = dp;
  p.global_batch = dp;
  p.gradients_fp32 = false;
  p.software = "analytic";
  const Catalog& catalog = built_in_catalog();
  return memory_of(count_alone(parameters), make_cluster(catalog, catalog.processor("A100"), {dp, 8, 0, 0}), p);
}

// FLOPs of a training: 6 per parameter and token, or 8 with full recomputation.
double training_flops(double parameters, double tokens, bool recomputed) {
  return (recomputed ? 8 : 6) * parameters * tokens;
}

void counts(Numbers& to) {
  const ModelShape gpt3 = preset_shape("gpt3-175b");
  const double h = static_cast<double>(gpt3.hidden), layers = static_cast<double>(gpt3.layers);
  const double matrices = 12 * layers * h * h + static_cast<double>(gpt3.vocab) * h;
  add(to, "GPT-3, matrices alone: 12 L d² + V d", "", matrices, "{:.0f}", "");
  add(to, "GPT-3 as the slide counts: 12 d² + 5 d a layer", "175B", matrices + 5 * layers * h, "{:.0f}", "",
      "5 d counts the two feed-forward biases, although the slide says that biases are excluded");
  add(to, "GPT-3, all parameters", "175B", gpt3.parameters(), "{:.0f}", "",
      "V d + s d + L (12 d² + 13 d) + 2 d, equal to the count of the built model");
  struct Row {
    const char *name, *printed, *remark = "";
  };
  for (const Row row : {Row{"gpt3-125m", "125M"},
                        {"gpt3-350m", "350M", "the paper's rounded name; 24 layers of width 1024 have 356 M"},
                        {"gpt3-760m", "760M"},
                        {"gpt3-1.3b", "1.3B", "16 heads of dimension 128; the printed 24 heads do not divide 2048"},
                        {"gpt3-2.7b", "2.7B"},
                        {"gpt3-6.7b", "6.7B"},
                        {"gpt3-13b", "13B", "d = 5120; the printed 5140 is not a multiple of the number of heads"},
                        {"gpt3-175b", "175B"}})
    add(to, fmt::format("GPT-3 family: {}", row.name), row.printed, preset_shape(row.name).parameters() / 1e9, "{:.3f}",
        "billion", row.remark);
  for (const Row row :
       {Row{"llama-7b", "6.7B"}, {"llama-13b", "13.0B"}, {"llama-33b", "32.5B"}, {"llama-65b", "65.2B"}}) {
    ReferenceNumber& added = add(to, fmt::format("LLaMA: {}", row.name), row.printed,
                                 preset_shape(row.name).parameters() / 1e9, "{:.3f}", "billion");
    if (std::string_view(row.name) == "llama-65b") {
      added.remark = "convention: the paper truncates and does not round (65.286 becomes 65.2)";
      added.convention = std::floor(10 * added.value) / 10;
    }
  }
  for (const MegatronRow& row : megatron_table()) {
    ModelShape s;
    s.layers = row.layers;
    s.hidden = row.hidden;
    s.ffn = 4 * s.hidden;
    s.heads = s.kv_heads = row.heads;
    s.vocab = 51200;
    s.seq = 2048;
    add(to, fmt::format("Megatron's table, {} layers of {}", row.layers, row.hidden),
        fmt::format("{:.1f}B", row.billions), s.parameters() / 1e9, "{:.1f}", "billion",
        fmt::format("dp = {} of {} processors", row.dp(), row.gpus));
  }
}

void memory(Numbers& to) {
  const Memory gpt3 = states(175e9, 0, 1);
  add(to, "GPT-3's master weights, 32 bits", "700 GB", gpt3.optimizer / 3 / 1e9, "{:.0f}", "GB");
  add(to, "GPT-3's first moments, 32 bits", "700 GB", gpt3.optimizer / 3 / 1e9, "{:.0f}", "GB");
  add(to, "GPT-3's second moments, 32 bits", "700 GB", gpt3.optimizer / 3 / 1e9, "{:.0f}", "GB");
  add(to, "GPT-3's weights, 16 bits", "350 GB", gpt3.parameter / 1e9, "{:.0f}", "GB");
  add(to, "GPT-3's gradients, 16 bits", "350 GB", gpt3.gradient / 1e9, "{:.0f}", "GB");
  add(to, "data parallel, everything in 16 bits: 8 bytes per parameter", "2[4Φ + …) bytes",
      4 * states(175e9, 0, 1).parameter / 1e9, "{:.0f}", "GB",
      "the brackets do not balance; mixed-precision Adam has 16 bytes per parameter");
  add(to, "data parallel, mixed-precision Adam: 16 bytes per parameter", "", gpt3.states() / 1e9, "{:.0f}", "GB");
  struct Row {
    int zero;
    const char* printed;
  };
  for (const Row row : {Row{0, "120 GB"}, {1, "31.4 GB"}, {2, "16.6 GB"}, {3, "1.9 GB"}})
    add(to, fmt::format("7.5 B parameters on 64 ranks, ZeRO {}", row.zero), row.printed,
        states(7.5e9, row.zero, 64).states() / 1e9,
        row.zero == 0   ? "{:.0f}"
        : row.zero == 3 ? "{:.2f}"
                        : "{:.1f}",
        "GB", row.zero == 2 ? "2Φ + 14Φ/N; half of stage 1 only for large N" : "");
  add(to, "70 B weights in 16 bits", "140 GB", states(70e9, 0, 1).parameter / 1e9, "{:.0f}", "GB");
  const Memory whole = states(70e9, 0, 1), divided = states(70e9, 3, 80);
  constexpr const char* kFourBytes =
      "convention: the slide counts 4 bytes per parameter (16-bit weights and gradients): {}; with Adam's states there "
      "are 16";
  add(to, "70 B, all states", "280 GB", whole.states() / 1e9, "{:.0f}", "GB",
      fmt::format(fmt::runtime(kFourBytes), "280 GB"))
      .convention = (whole.parameter + whole.gradient) / 1e9;
  add(to, "70 B, ZeRO 3 on 80 ranks", "3.5 GB", divided.states() / 1e9, "{:.0f}", "GB",
      fmt::format(fmt::runtime(kFourBytes), "280 GB / 80"))
      .convention = (divided.parameter + divided.gradient) / 1e9;
  for (const auto& [name, printed] : {std::pair{"P100", "16 GB"},
                                      {"V100", "32 GB"},
                                      {"A100-40GB", "40 GB"},
                                      {"A100", "80 GB"},
                                      {"A800", "80 GB"},
                                      {"H100", "80 GB"},
                                      {"H800", "80 GB"}})
    add(to, fmt::format("memory of {}", name), printed, built_in_catalog().processor(name).nominal_gb, "{:.0f}", "GB");
}

// Activation memory of GPT-3's layers.
void activations(Numbers& to) {
  ModelShape s = preset_shape("gpt3-175b");
  Policy p;
  p.flash = false;
  p.dropout = true;
  p.software = "analytic";
  const ActivationBytes kept = layer_activations(s, p, false);
  const double per_token = 1 / static_cast<double>(s.seq), batch = 3.2e6, layers = static_cast<double>(s.layers);
  add(to, "activations of a layer, GPT-3, one sequence: 34 s b h + 5 a b s²", "34sbh + 5abs² \"in total\"",
      kept.sum() / 1e9, "{:.3f}", "GB", "bytes of one layer, not of the model");
  add(to, "activations of GPT-3, 3.2 M tokens, nothing recomputed", "?", kept.sum() * per_token * batch * layers / 1e12,
      "{:.1f}", "TB");
  add(to, "… attention recomputed (selective)", "?",
      kept_bytes(kept, RecomputePolicy::selective) * per_token * batch * layers / 1e12, "{:.1f}", "TB");
  add(to, "… everything recomputed", "?", kept_bytes(kept, RecomputePolicy::full) * per_token * batch * layers / 1e12,
      "{:.2f}", "TB");
}

void times(Numbers& to) {
  const Processor& a100 = built_in_catalog().processor("A100").processor;
  const Processor& h100 = built_in_catalog().processor("H100").processor;
  const double gpt3 = 175e9, tokens = 300e9;
  add(to, "A100s for GPT-3 in 30 days at 160 TFLOP/s, 6TP", "800",
      training_flops(gpt3, tokens, false) / 160e12 / kMonth, "{:.1f}", "",
      "the slide rounds 759.5 up by 5 %; it must divide by (3600·24·30), but as printed it multiplies by 24·30; "
      "160 TFLOP/s is the achieved rate, the peak is 312");
  add(to, "… with recomputation, 8TP", "", training_flops(gpt3, tokens, true) / 160e12 / kMonth, "{:.1f}", "");
  const auto utilisation = [&](double parameters, double trained_on, double devices, double days, bool again) {
    return training_flops(parameters, trained_on, again) / (devices * a100.bf16_flops * days * kDay);
  };
  add(to, "utilisation of GPT-3 on 1024 A100 in 35 days, 8TP (HFU)", "0.44", utilisation(gpt3, tokens, 1024, 35, true),
      "{:.4f}", "", "0.4347 rounds to 0.43; the estimate is Megatron-LM's; OpenAI used V100s");
  add(to, "… 6TP (MFU)", "", utilisation(gpt3, tokens, 1024, 35, false), "{:.4f}", "");
  add(to, "days of GPT-3 on 1024 A100 at a utilisation of 0.44, 8TP", "35 days",
      training_flops(gpt3, tokens, true) / (1024 * a100.bf16_flops * 0.44) / kDay, "{:.1f}", "days");
  add(to, "utilisation of LLaMA-65B on 2048 A100 in 21 days, 8TP", "0.3", utilisation(65e9, 1.4e12, 2048, 21, true),
      "{:.3f}", "", "the slide's own inputs give 0.628; 0.3 needs 1.0 T tokens and 6TP (0.34)");
  add(to, "… 6TP (MFU)", "", utilisation(65e9, 1.4e12, 2048, 21, false), "{:.3f}", "");
  add(to, "Llama 3's 400 TFLOP/s on H100, of the peak", "", 400e12 / h100.bf16_flops, "{:.3f}", "");
  add(to, "DeepSeek-V3: 2.664 M hours on 2048 H800", "", 2.664e6 / 2048 / 24, "{:.1f}", "days");
  add(to, "Llama 3.1 405B: 30.84 M hours on 16,000 H100", "", 30.84e6 / 16000 / 24, "{:.1f}", "days");
  add(to, "Chinchilla's tokens for 70 B parameters", "20 a parameter", 20 * 70e9 / 1e12, "{:.1f}", "T tokens");
  const double hours = 1024 * 35 * 24;
  add(to, "processor-hours of GPT-3 on 1024 A100 in 35 days", "", hours, "{:.0f}", "h");
  add(to, "… in dollars", "O(1-10) M$", hours * a100.price_per_hour / 1e6, "{:.2f}", "M$",
      fmt::format("at ${:.2f} an hour", a100.price_per_hour));
  add(to, "LLaMA-65B on 2048 A100 for 21 days, in dollars", "$5M", 2048 * 21 * 24 * a100.price_per_hour / 1e6, "{:.2f}",
      "M$", fmt::format("at ${:.2f} an hour; $5M is $4.84 an hour", a100.price_per_hour));
  for (const MegatronRow& row : megatron_table())
    add(to, fmt::format("Megatron's table, {} processors at {:.0f} TFLOP/s", row.gpus, row.tflops),
        fmt::format("{:.1f} PFLOP/s", row.pflops), row.gpus * row.tflops / 1e3, "{:.1f}", "PFLOP/s")
        .tolerance = 0.5 / row.tflops;  // the table prints TFLOP/s without decimals
}

void traffic(Numbers& to) {
  const Catalog& catalog = built_in_catalog();
  const double payload = states(175e9, 0, 1).gradient;
  add(to, "GPT-3's gradients of an iteration", "350 GB", payload / 1e9, "{:.0f}", "GB",
      "the payload; the next row has the bytes that a ring sends");
  const Cluster cluster = make_cluster(catalog, catalog.processor("A100"), {1024, 8, 0, 0});
  add(to, "… sent by each of 1024 ranks in a ring", "",
      all_reduce(cluster, group_of(cluster, 1024, 1), payload).bytes / 1e9, "{:.1f}", "GB",
      "2 (N−1)/N times the payload");
  for (const auto& [name, printed] :
       {std::pair{"nvlink3", "600 GB/s"}, {"nvlink4", "900 GB/s"}, {"nvlink5", "1800 GB/s"}, {"nvlink6", "3600 GB/s"}})
    add(to, fmt::format("{}, both directions", name), printed, 2 * catalog.link(name).bandwidth / 1e9, "{:.0f}", "GB/s",
        "half of it in each direction");
  add(to, "InfiniBand NDR, one direction", "400 Gb/s", catalog.link("infiniband-ndr").bandwidth / 1e9, "{:.0f}",
      "GB/s");
  const double pcie = catalog.link("pcie5-x16").bandwidth / 1e9, b300 = catalog.processor("B300").processor.fp8_flops;
  add(to, "PCIe 5 x16, one direction", "128 GB/s, 63 GB/s", pcie, "{:.0f}", "GB/s",
      "convention: 128 counts both directions before the 128b/130b line code; 63 is one direction after it")
      .convention = std::round(2 * pcie * 130 / 128);
  add(to, "B300, 8-bit GEMM", "72 PFLOPS", b300 / 1e15, "{:.1f}", "PFLOP/s",
      "convention: 72 is a machine of 8 chips with 2:4 sparsity (× 2); 4.5 is one chip, dense")
      .convention = 8 * 2 * b300 / 1e15;
}

}  // namespace

const std::vector<MegatronRow>& megatron_table() {
  static const std::vector<MegatronRow> rows = {{1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 4.4},
                                                {3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 8.8},
                                                {7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 18.2},
                                                {18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 34.6},
                                                {39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 70.8},
                                                {76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 143.8},
                                                {145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 227.1},
                                                {310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 297.4},
                                                {529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 410.2},
                                                {1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 502.0}};
  return rows;
}

std::vector<ReferenceNumber> reference_numbers() {
  Numbers all;
  counts(all);
  memory(all);
  activations(all);
  times(all);
  traffic(all);
  return all;
}

}  // namespace esp::plan
