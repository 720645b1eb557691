#include "esp/plan/software.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "esp/base/table.h"

namespace esp::plan {
namespace {

constexpr double kMiB = 1024.0 * 1024.0, kGB = 1e9;

// Bytes moved by an update, per parameter, with 32-bit gradients: norm 4, clip 8, Adam 28 (reads g m v w, writes m v
// w), the 16-bit copy 6, zeroing 4. A loss scale adds a pass that looks for overflow: 8.
constexpr double kUpdate = 50, kScaledUpdate = 58;
// Bytes moved per logit: made wide (6), maximum and subtraction (12), exponential and sum (12), division (8), then the
// gradient (8) and its narrow form (6). Compiled or fused losses read the logits twice and write their gradient once.
constexpr double kPlainLoss = 52, kFusedLoss = 20;

constexpr Software kSoftware[] = {
    {.name = "megatron-core",
     .help = "Megatron-Core and NeMo: distributed optimizer, fused kernels, grouped products",
     .host_us = 5,
     .step_s = 0.01,
     .gradient_bytes = 4,
     .fused_gradients = true,
     .loss_bytes = kPlainLoss,
     .optimizer_bytes = kUpdate,
     .bucket_bytes = 160 * kMiB,
     .shard_call_s = 0,
     .divided_messages = true,
     .tensor_async = true,
     .tensor_pipelined = false,
     .every_other = false,
     .attention = 0.9,
     .passes = 1.1,
     .slack = 0.04,
     .other_bytes = 3 * kGB,
     .step_bytes = 0,
     .keep = 1,
     .logit_bytes = 10},
    {.name = "nemo",
     .help = "NeMo on Megatron-Core: gradients in 16 bits on the wire, TransformerEngine",
     .host_us = 5,
     .step_s = 0.01,
     .gradient_bytes = 2,
     .fused_gradients = true,
     .loss_bytes = kFusedLoss,
     .optimizer_bytes = kUpdate,
     .bucket_bytes = 160 * kMiB,
     .shard_call_s = 0,
     .divided_messages = true,
     .tensor_async = true,
     .tensor_pipelined = true,
     .every_other = false,
     .attention = 1,
     .passes = 1.1,
     .slack = 0.04,
     .other_bytes = 3 * kGB,
     .step_bytes = 0,
     .keep = 1,
     .logit_bytes = 10},
    {.name = "megatron-2022",
     .help = "Megatron-LM of 2022 and 2023: sequence parallelism, tensor all-reduce behind weight gradients",
     .host_us = 6,
     .step_s = 0.02,
     .gradient_bytes = 2,
     .fused_gradients = true,
     .loss_bytes = kPlainLoss,
     .optimizer_bytes = kScaledUpdate,
     .bucket_bytes = 1024 * kMiB,
     .shard_call_s = 0,
     .divided_messages = true,
     .tensor_async = true,
     .tensor_pipelined = false,
     .every_other = false,
     .attention = 0.9,
     .passes = 1.3,
     .slack = 0.06,
     .other_bytes = 3 * kGB,
     .step_bytes = 0,
     .keep = 1,
     .logit_bytes = 10},
    {.name = "megatron-2021",
     .help = "Megatron-LM of early 2021: fused softmax and GELU, collectives in line with the products",
     .host_us = 6,
     .step_s = 0.02,
     .gradient_bytes = 2,
     .fused_gradients = false,
     .loss_bytes = kPlainLoss,
     .optimizer_bytes = kScaledUpdate,
     .bucket_bytes = 1024 * kMiB,
     .shard_call_s = 0,
     .divided_messages = true,
     .tensor_async = false,
     .tensor_pipelined = false,
     .every_other = false,
     .attention = 0.65,
     .passes = 1.5,
     .slack = 0.06,
     .other_bytes = 3 * kGB,
     .step_bytes = 0,
     .keep = 1,
     .logit_bytes = 10},
    {.name = "internevo",
     .help = "InternEvo of 2023: ZeRO 1 by broadcasts of each owner's share, FlashAttention",
     .host_us = 8,
     .step_s = 0.15,
     .gradient_bytes = 2,
     .fused_gradients = false,
     .loss_bytes = kPlainLoss,
     .optimizer_bytes = kScaledUpdate + 20,
     .bucket_bytes = 512 * kMiB,
     .shard_call_s = 2.3e-3,
     .divided_messages = true,
     .tensor_async = false,
     .tensor_pipelined = false,
     .every_other = false,
     .attention = 0.65,
     .passes = 2.0,
     .slack = 0.06,
     .other_bytes = 3 * kGB,
     .step_bytes = 14,
     .keep = 1,
     .logit_bytes = 14},
    {.name = "torchtitan",
     .help = "PyTorch FSDP 2 with compiled blocks: every other product kept under selective recomputation",
     .host_us = 6,
     .step_s = 0.02,
     .gradient_bytes = 4,
     .fused_gradients = true,
     .loss_bytes = kFusedLoss,
     .optimizer_bytes = 40,
     .bucket_bytes = 25 * kMiB,
     .shard_call_s = 0,
     .divided_messages = false,
     .tensor_async = false,
     .tensor_pipelined = false,
     .every_other = true,
     .attention = 0.8,
     .passes = 1.2,
     .slack = 0.06,
     .other_bytes = 3 * kGB,
     .step_bytes = 4,
     .keep = 1.05,
     .logit_bytes = 12},
    {.name = "fsdp",
     .help = "PyTorch FSDP with blocks run one operation at a time (llm-foundry, fms)",
     .host_us = 8,
     .step_s = 0.02,
     .gradient_bytes = 4,
     .fused_gradients = true,
     .loss_bytes = kPlainLoss,
     .optimizer_bytes = 40,
     .bucket_bytes = 25 * kMiB,
     .shard_call_s = 0,
     .divided_messages = false,
     .tensor_async = false,
     .tensor_pipelined = false,
     .every_other = false,
     .attention = 0.8,
     .passes = 2.0,
     .slack = 0.06,
     .other_bytes = 3 * kGB,
     .step_bytes = 4,
     .keep = 1.05,
     .logit_bytes = 12},
    {.name = "deepspeed",
     .help = "DeepSpeed ZeRO, also below Megatron's layers",
     .host_us = 8,
     .step_s = 0.03,
     .gradient_bytes = 2,
     .fused_gradients = false,
     .loss_bytes = kPlainLoss,
     .optimizer_bytes = kScaledUpdate,
     .bucket_bytes = 500e6,
     .shard_call_s = 0,
     .divided_messages = false,
     .tensor_async = false,
     .tensor_pipelined = false,
     .every_other = false,
     .attention = 0.8,
     .passes = 1.5,
     .slack = 0.08,
     .other_bytes = 3 * kGB,
     .step_bytes = 4,
     .keep = 1.05,
     .logit_bytes = 14},
    {.name = "espalier",
     .help = "this program's own runtime",
     .host_us = 0,
     .step_s = 0,
     .gradient_bytes = 4,
     .fused_gradients = true,
     .loss_bytes = kFusedLoss,
     .optimizer_bytes = 40,
     .bucket_bytes = 25 * kMiB,
     .shard_call_s = 0,
     .divided_messages = true,
     .tensor_async = false,
     .tensor_pipelined = false,
     .every_other = false,
     .attention = 1,
     .passes = 1,
     .slack = 0,
     .other_bytes = 0,
     .step_bytes = 0,
     .keep = 1,
     .logit_bytes = 8},
    {.name = "analytic",
     .help = "formulas alone: no slack, no context, no temporaries",
     .host_us = 0,
     .step_s = 0,
     .gradient_bytes = 2,
     .fused_gradients = true,
     .loss_bytes = kFusedLoss,
     .optimizer_bytes = kUpdate,
     .bucket_bytes = 0,
     .shard_call_s = 0,
     .divided_messages = true,
     .tensor_async = false,
     .tensor_pipelined = false,
     .every_other = false,
     .attention = 1,
     .passes = 1,
     .slack = 0,
     .other_bytes = 0,
     .step_bytes = 0,
     .keep = 1,
     .logit_bytes = 4},
};

struct Spelling {
  std::string_view part, row;
};
// In this order: the more particular first.
constexpr Spelling kSpellings[] = {
    {"analytic", "analytic"},
    {"espalier", "espalier"},
    {"internevo", "internevo"},
    {"internlm", "internevo"},
    {"nemo", "nemo"},
    {"megatron-bridge", "nemo"},
    {"megatron bridge", "nemo"},
    {"megatron-core", "megatron-core"},
    {"megatron core", "megatron-core"},
    {"mcore", "megatron-core"},
    {"simumax", "megatron-core"},
    {"6985e589", "megatron-2021"},
    {"2021", "megatron-2021"},
    {"megatron-deepspeed", "deepspeed"},
    {"deepspeed", "deepspeed"},
    {"zero", "megatron-2022"},
    {"torchtitan", "torchtitan"},
    {"fsdp", "fsdp"},
    {"foundry", "fsdp"},
    {"mosaic", "fsdp"},
    {"composer", "fsdp"},
    {"pytorch", "fsdp"},
    {"torch", "fsdp"},
    {"megatron", "megatron-2022"},
};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

}  // namespace

std::span<const Software> software() {
  return kSoftware;
}

const Software& software_row(std::string_view name) {
  return name.empty() ? kSoftware[0] : find_row("software", kSoftware, name);
}

std::string_view software_of(std::string_view framework, bool flash) {
  const std::string text = lower(framework);
  for (const Spelling& spelling : kSpellings)
    if (text.find(spelling.part) != std::string::npos) {
      // Nobody's Megatron had fused attention before 2023.
      if (spelling.row == "megatron-2022" && flash) return "megatron-core";
      return spelling.row;
    }
  return kSoftware[0].name;
}

}  // namespace esp::plan
