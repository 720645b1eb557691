// Reads the policy of a row from its columns: axes, batch, states, recomputation and overlap.
#include <algorithm>

#include <fmt/format.h>

#include "esp/plan/normalise.h"
#include "esp/plan/rows.h"
#include "esp/plan/software.h"
#include "esp/plan/states.h"

namespace esp::plan {
namespace {

// Figures above these are treated as errors in the table.
constexpr double kMaxRanks = 1e6, kMaxInGroup = 4096, kMaxSequences = 1e8;

int axis(const CsvRow& cells, const char* name) {
  return static_cast<int>(cells.number(name, 1, kMaxInGroup).value_or(1));
}

void set_axes(const CsvRow& cells, Policy& p, int gpus, std::vector<std::string>& assumed) {
  p.tp = axis(cells, "tp");
  p.pp = axis(cells, "pp");
  p.cp = axis(cells, "cp");
  p.ep = axis(cells, "ep");
  if (double{1} * p.tp * p.pp * p.cp > kMaxRanks) {
    p.tp = p.pp = p.cp = 1;
    assumed.push_back("tp = pp = cp = 1, because the given axes exceed any cluster");
  }
  const auto given = cells.number("dp", 1, kMaxRanks / (double{1} * p.tp * p.pp * p.cp));
  p.dp = static_cast<int>(given.value_or(0));
  const int64_t within = int64_t{p.tp} * p.pp * p.cp;
  if (given && within * p.dp == gpus) return;
  if (given && int64_t{p.tp} * p.pp * p.dp == gpus && p.dp % p.cp == 0) {  // in this table dp includes cp
    p.dp /= p.cp;
    assumed.push_back(fmt::format("dp = {}, because the dp of the table includes cp", p.dp));
    return;
  }
  const int left = std::max<int>(1, static_cast<int>(gpus / within));
  if (given && within * left != gpus) return;  // the axes do not multiply to `gpus`: keeps the axes as given
  p.dp = left;
  assumed.push_back(fmt::format("dp = {}, from {} processors and the other axes", p.dp, gpus));
}

void set_batch(const CsvRow& cells, const ModelShape& shape, Policy& p, MissingFields& open,
               std::vector<std::string>& assumed) {
  const auto micro = cells.number("mbs", 1, 1 << 20), whole = cells.number("gbs", 1, kMaxSequences * 1e6),
             steps = cells.number("grad_accum", 1, 1e7);
  const auto replicas = static_cast<double>(p.dp);
  if (whole) {
    // A gbs above 262,144 counts tokens, not sequences.
    double sequences = *whole;
    if (sequences > 262144 && shape.seq > 0) {
      sequences = std::max(1.0, sequences / static_cast<double>(shape.seq));
      assumed.push_back(fmt::format("a global batch of {:.0f} sequences, because gbs counts tokens", sequences));
    }
    p.global_batch = static_cast<int64_t>(std::min(sequences, kMaxSequences));
  } else {
    p.global_batch = static_cast<int64_t>(std::min(micro.value_or(1) * steps.value_or(1) * replicas, kMaxSequences));
    if (!micro || !steps) assumed.push_back(fmt::format("a global batch of {} sequences", p.global_batch));
  }
  const int64_t share = std::max<int64_t>(1, p.global_batch / p.dp);
  if (micro) {
    p.micro_batch = std::min(static_cast<int64_t>(*micro), share);
    // Some rows give a rank's whole batch as the micro-batch. It is then split into one micro-batch per stage, as
    // PyTorch's pipelines do.
    if (p.pp > 1 && p.micro_batch == share && share % p.pp == 0 && software_row(p.software).gathered_in_pipeline) {
      p.micro_batch = share / p.pp;
      assumed.push_back(
          fmt::format("micro-batches of {} sequences: a rank's batch split over {} stages", p.micro_batch, p.pp));
    }
  } else if (steps) {
    p.micro_batch = std::max<int64_t>(1, share / static_cast<int64_t>(*steps));
  } else {
    p.micro_batch = 1;
    open.micro_batch = share > 1;
  }
  p.global_batch = std::max(p.global_batch, p.micro_batch * p.dp);
}

void set_recompute(const CsvRow& cells, const ModelShape& shape, Policy& p, MissingFields& open) {
  const std::string words = cells.words("recompute");
  open.recompute = words.empty();
  if (words.empty() || words.starts_with("no") || words == "0" || words == "off" || words == "false" ||
      has(words, "disab"))
    return;
  const bool selective = has(words, "select") || has(words, "attn") || has(words, "attention") || has(words, "core") ||
                         has(words, "mla") || has(words, "norm") || has(words, "act") || has(words, "sac") ||
                         has(words, "mlp") || has(words, "module");
  p.recompute = selective && !has(words, "full") ? RecomputePolicy::selective : RecomputePolicy::full;
  p.checkpoint_sharded = has(words, "distribut") || has(words, "shard");
  // "full 12 layers", "block 4" and "every 2nd layer" recompute only some layers. "Uniform" recomputes all layers, for
  // any group size.
  const size_t digit = words.find_first_of("0123456789");
  if (digit == std::string::npos || !(has(words, "layer") || has(words, "block")) || has(words, "uniform")) return;
  const int number = std::atoi(words.c_str() + digit);
  if (number < 1) return;
  const int mine = static_cast<int>(shape.layers) / std::max(1, p.pp);
  p.recompute = RecomputePolicy::full;
  p.recompute_layers = has(words, "every") ? mine / number : std::min(number, mine);
}

void set_states(const CsvRow& cells, const std::string& framework, Policy& p, std::vector<std::string>& assumed) {
  const int per_node = static_cast<int>(cells.number("gpus_per_node", 1, 4096).value_or(8));
  const std::string words = cells.words("zero");
  const size_t digit = words.find_first_of("0123");
  // the cell starts with the ZeRO stage: "3 (FSDP2)". A digit elsewhere ("FSDP2") is not a stage
  const bool first = digit == 0;
  const bool hybrid = has(words, "hsdp") || has(words, "hybrid");
  if (has(words, "grad_op") || has(words, "grad op")) {
    p.zero = 2;
  } else if (!first && (has(words, "fsdp") || has(words, "full") || hybrid)) {
    p.zero = 3;
  } else if (digit != std::string::npos) {
    p.zero = words[digit] - '0';
  } else if (has(words, "++")) {
    p.zero = 3;
  } else if (has(words, "dist") || has(words, "optim")) {
    p.zero = 1;
  } else if (words.empty() && has(framework, "fsdp")) {
    p.zero = 3;
    assumed.push_back("zero 3");
  } else if (!words.empty() && !words.starts_with("no") && !has(words, "ddp")) {
    assumed.push_back(fmt::format("zero 0 (unknown \"{}\")", words));
  }
  if (has(words, "++")) p.quantised_weights = p.secondary_shard = p.quantised_gradients = true;
  const auto group = cells.number("shard_group", 1, kMaxRanks);
  p.shard_group = static_cast<int>(group.value_or(0));
  if (hybrid && !group) {
    p.shard_group = std::max(1, per_node / std::max(1, p.tp));
    assumed.push_back(fmt::format("shards over the {} ranks of a node", p.shard_group));
  }
  if (p.shard_group >= p.dp * p.cp) p.shard_group = 0;
  const std::string offload = cells.words("offload");
  if (offload.empty() || offload.starts_with("no") || offload == "0" || offload == "false") return;
  if (has(offload, "activ") && !has(offload, "optim") && !has(offload, "param")) {
    assumed.push_back("activations are not offloaded, because this is not modelled");
    return;
  }
  p.offload =
      has(offload, "nvme") || has(offload, "ssd") || has(offload, "file") ? OffloadTarget::file : OffloadTarget::host;
  const size_t percent = offload.find('%');
  if (percent != std::string::npos) {
    size_t begin = percent;
    while (begin > 0 && std::isdigit(static_cast<unsigned char>(offload[begin - 1]))) --begin;
    const int part = std::atoi(offload.substr(begin, percent - begin).c_str());
    if (part >= 1 && part <= 100) p.offload_fraction = part / 100.0;
  }
}

void set_overlap(const CsvRow& cells, Policy& p) {
  const std::string words = cells.words("comm_overlap");
  const bool old = p.software.starts_with("megatron-20");
  p.overlap_dp = !old;
  // In software with blocking sends, 1F1B and GPipe wait for messages. Interleaved and zero-bubble schedules overlap
  // them.
  p.overlap_pp = !software_row(p.software).blocking_sends || (p.schedule != "1f1b" && p.schedule != "gpipe");
  if (words.empty()) return;
  const bool none = words.starts_with("none") || words.starts_with("no ") || words == "no" || words == "0" ||
                    words.starts_with("off") || words.starts_with("false");
  p.overlap_dp = !none && !has(words, "no dp") && !has(words, "no grad");
  p.overlap_tp = !none && !has(words, "no tp") && !has(words, "tp not") && (has(words, "tp") || has(words, "userbuf"));
  if (has(words, "pp overlap") || has(words, "p2p")) p.overlap_pp = !none && !has(words, "no p2p");
  p.overlap_ep = !none && (has(words, "ep ") || has(words, "a2a") || has(words, "all-to-all") || has(words, "moe"));
}

// Reads, if the row has them: the communication method of context and expert groups, and the type of Adam's moments.
void set_exchanges(const std::string& given, const ModelShape& shape, Policy& p) {
  const bool swaps = has(given, "a2a") || has(given, "all-to-all") || has(given, "alltoall");
  if (has(given, "ulysses") || (swaps && shape.experts == 0)) p.context = "ulysses";
  // These kernels send a token once per node and forward it inside the node to its experts (DeepEP, 2025).
  if (shape.experts > 0 && (has(given, "deepep") || has(given, "hybridep") || has(given, "megatron-bridge") ||
                            has(given, "megatron bridge")))
    p.expert_nodes = p.ep;
  if (shape.experts > 0 && p.software == "hai-llm") p.expert_nodes = 4;  // DeepSeek's routing is limited to 4 nodes
  if (has(given, "bf16 moments") || has(given, "bf16 optimizer") || has(given, "precision-aware")) p.moment_bytes = 4;
}

}  // namespace

Policy row_policy(const CsvRow& cells, const ModelShape& shape, const Processor& processor, int gpus,
                  MissingFields& open, std::vector<std::string>& assumed) {
  Policy p;
  const std::string framework = cells.words("framework"), flash = cells.words("flash_attn");
  // Default: fused attention on chips from 2020 on. It did not exist before 2022 and never ran on V100.
  p.flash = parse_flag(flash, processor.year == 0 || processor.year >= 2020) && !has(flash, "unfused") &&
            flash != "torch" && flash != "native" && flash != "megatron" && flash != "math";
  p.software = recognise_software(framework, p.flash);
  // On Hopper and later chips Megatron-LM uses TransformerEngine, so its constants are those of Megatron-Core.
  if (p.software == "megatron-2023" && processor.fp8_flops > 0) p.software = "megatron-core";
  p.moment_bytes = software_row(p.software).moment_bytes;
  const std::string given = framework + " " + cells.words("notes") + " " + cells.words("comm_overlap");
  if (p.software == "torchtitan" && (has(given, "eager") || has(given, "no compile") || has(given, "without compile") ||
                                     has(given, "no torch.compile") || has(given, "compile off")))
    p.software = "torchtitan-eager";
  if (flash.empty() && shape.layers > 0)
    assumed.push_back(p.flash ? "attention without stored scores" : "attention with stored scores");
  if (framework.empty() && shape.layers > 0) assumed.push_back("software " + p.software);
  set_axes(cells, p, gpus, assumed);
  set_batch(cells, shape, p, open, assumed);
  const auto chunks = cells.number("vpp", 1, 1024);
  p.interleave = p.pp > 1 ? static_cast<int>(chunks.value_or(1)) : 1;
  if (int64_t{p.interleave} * p.pp > std::max<int64_t>(shape.layers, p.pp)) {
    p.interleave = std::max(1, static_cast<int>(shape.layers) / p.pp);
    assumed.push_back(fmt::format("{} chunks per stage, because there are too few layers for more", p.interleave));
  }
  const ScheduleWords schedule = parse_schedule(cells.words("schedule"), p.interleave, assumed);
  open.interleave = !chunks && p.pp > 1 && (cells.words("schedule").empty() || schedule.schedule == "interleaved");
  p.schedule = schedule.schedule;
  p.vocab_parallel_pipeline = schedule.vocabulary;
  if (schedule.balanced && p.pp > 1 && shape.layers > 0) p.stage_layers = balanced_layers(shape, p);
  const bool modern = p.software == "megatron-core" || p.software == "nemo" || p.software.starts_with("torchtitan");
  p.sequence = parse_flag(cells.words("seq_par"), modern && p.tp > 1) && p.tp > 1;
  p.precision = parse_precision(cells.words("precision"), processor, assumed);
  set_states(cells, framework, p, assumed);
  if (p.zero == 3 && p.pp > 1 && software_row(p.software).gathered_in_pipeline) {
    p.zero = 1;  // the pipeline keeps whole weights and gradients, so only the optimizer states are sharded
    assumed.push_back("ZeRO 3 with a pipeline: weights stay gathered during the step, gradients are reduced once");
  }
  set_recompute(cells, shape, p, open);
  set_overlap(cells, p);
  set_exchanges(given, shape, p);
  // GPT models of the time before fused attention were trained with dropout; later models were not.
  p.dropout = shape.arch != "llama" && shape.layers > 0 && !p.flash;
  // Gradients are accumulated in fp32 by Megatron and by software with fp32 shards, in 16 bits by others.
  const bool megatron = p.software.starts_with("megatron") && (has(framework, "megatron") || has(framework, "mcore"));
  const bool shards = p.software == "fsdp" || p.software == "llm-foundry" || p.software.starts_with("torchtitan");
  // DeepSpeed accumulates in fp32 if it trains in bf16.
  const bool brain = p.software == "deepspeed" && p.precision == "bf16" && p.zero <= 1;
  p.gradients_fp32 = megatron || brain || p.software == "hai-llm" ||
                     (shards && (p.zero >= 3 || software_row(p.software).gathered_in_pipeline));
  return p;
}

}  // namespace esp::plan
