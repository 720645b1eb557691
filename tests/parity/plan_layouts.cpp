#include "tests/parity/plan_layouts.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/plan/espalier_memory.h"
#include "esp/train/rank_partition.h"

namespace esp::parity {
namespace {

Overrides merge(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Puts "parallel." before every key that has no dot.
Overrides with_parallel_prefix(const Overrides& layout) {
  Overrides all;
  for (const std::string& one : layout) all.push_back(one.find('.') < one.find('=') ? one : "parallel." + one);
  return all;
}

// Blocks wide enough for activations to be a visible part of the memory.
const Overrides kWide = {
    "model.dim=48",        "model.ffn=120",      "model.seq_len=48",         "train.global_batch=8",
    "train.micro_batch=2", "sync.bucket_mb=0.1", "sync.first_bucket_mb=0.05"};

struct ExtraLayout {
  const char* name;
  const char* arch;
  int ranks;
  Overrides layout;
};
const ExtraLayout kExtraLayouts[] = {
    {"one", "gpt", 1, {}},
    {"one_llama", "llama", 1, {}},
    {"one_bf16", "gpt", 1, {"train.precision=bf16"}},
    {"one_selective", "gpt", 1, {"train.recompute=selective"}},
    {"one_full", "gpt", 1, {"train.recompute=full"}},
    {"one_selective_one_layer", "gpt", 1, {"train.recompute=selective", "train.recompute_layers=1"}},
    {"one_full_one_layer", "gpt", 1, {"train.recompute=full", "train.recompute_layers=1"}},
    {"one_bf16_split_master", "gpt", 1, {"train.precision=bf16", "sync.split_master=true"}},
    {"one_full_llama_bf16", "llama", 1, {"train.recompute=full", "train.precision=bf16"}},
    {"one_selective_llama", "llama", 1, {"train.recompute=selective"}},
    {"one_dropout", "gpt", 1, {"model.dropout=0.1"}},
    {"one_sgd", "gpt", 1, {"train.optimizer=sgd", "train.momentum=0.9"}},
    {"dp2_zero1", "gpt", 2, {"dp=2", "sync.method=zero1"}},
    {"dp2_zero1_bf16", "llama", 2, {"dp=2", "sync.method=zero1", "train.precision=bf16"}},
    {"dp2_zero2", "gpt", 2, {"dp=2", "sync.method=zero2"}},
    {"dp2_zero2_bf16", "llama", 2, {"dp=2", "sync.method=zero2", "train.precision=bf16"}},
    {"dp2_zero3", "gpt", 2, {"dp=2", "sync.method=zero3"}},
    {"dp2_zero3_bf16", "llama", 2, {"dp=2", "sync.method=zero3", "train.precision=bf16"}},
    {"dp4_zero3", "llama", 4, {"dp=4", "sync.method=zero3"}},
    {"dp4_zero3_full", "gpt", 4, {"dp=4", "sync.method=zero3", "train.recompute=full"}},
    {"dp2_zero3_kept", "gpt", 2, {"dp=2", "sync.method=zero3", "sync.keep_gathered=true"}},
    {"dp2_zero3_prefetch2", "gpt", 2, {"dp=2", "sync.method=zero3", "sync.prefetch=2"}},
    {"tp2_bf16", "gpt", 2, {"tp=2", "train.precision=bf16"}},
    {"tp2_sequence_bf16", "llama", 2, {"tp=2", "sequence=true", "train.precision=bf16"}},
    {"tp2_sequence_full", "gpt", 2, {"tp=2", "sequence=true", "train.recompute=full"}},
    {"tp2_wide", "gpt", 2, {"tp=2"}},
    {"tp4_wide_llama", "llama", 4, {"tp=4", "model.kv_heads=4"}},
    {"pp2_gpipe_wide", "gpt", 2, {"pp=2", "schedule=gpipe"}},
    {"pp2_zb_wide", "llama", 2, {"pp=2", "schedule=zb-h1"}},
    {"pp2_interleaved_wide", "gpt", 2, {"pp=2", "schedule=interleaved", "interleave=2"}},
    {"cp2_wide", "gpt", 2, {"cp=2"}},
    {"cp2_ulysses_wide", "llama", 2, {"cp=2", "context=ulysses"}},
    {"cp2_bf16", "llama", 2, {"cp=2", "train.precision=bf16"}},
};

plan::RecomputePolicy recompute_policy(const std::string& name) {
  return name == "full"        ? plan::RecomputePolicy::full
         : name == "selective" ? plan::RecomputePolicy::selective
                               : plan::RecomputePolicy::none;
}

void add_if_supported(std::vector<PlannedLayout>& all, const std::string& name, int ranks, const Overrides& overrides) {
  const train::RunConfig config = parse_config(overrides);
  if (config.sync.group != 0 || config.sync.offload != "none" || config.sync.quantise != "none" ||
      config.sync.buckets != "fixed" || config.sync.compress != "none" || config.sync.accumulate == "local")
    return;
  PlannedLayout one{name, ranks, overrides, plan::shape_of(train::model_config(config.model), name),
                    make_policy(config, ranks)};
  one.bucket_mb = config.sync.bucket_mb;
  one.first_bucket_mb = config.sync.first_bucket_mb;
  one.prefetch = config.sync.prefetch;
  if (plan::has_espalier_memory(one.shape, one.policy)) all.push_back(std::move(one));
}

}  // namespace

plan::Policy make_policy(const train::RunConfig& config, int ranks) {
  const parallel::Layout layout = train::layout_of(config, ranks);
  plan::Policy p;
  p.tp = layout.mesh.tp, p.pp = layout.mesh.pp, p.dp = layout.mesh.dp, p.cp = layout.mesh.cp, p.ep = layout.mesh.ep;
  p.sequence = layout.sequence;
  p.context = layout.context;
  p.schedule = layout.schedule;
  p.interleave = static_cast<int>(layout.interleave);
  p.global_batch = config.train.global_batch;
  p.micro_batch = config.train.micro_batch > 0 ? config.train.micro_batch : p.global_batch / p.dp;
  p.precision = config.train.precision;
  p.recompute = recompute_policy(config.train.recompute);
  p.recompute_layers = static_cast<int>(config.train.recompute_layers);
  p.dropout = config.model.dropout > 0;
  p.optimizer = config.train.optimizer;
  if (config.sync.split_master) p.master_bytes = 2;
  p.keep_gathered = config.sync.keep_gathered;
  p.zero = config.sync.method.starts_with("zero") ? config.sync.method.back() - '0' : 0;
  p.gradients_fp32 = false;
  p.software = "espalier";
  return p;
}

std::vector<PlannedLayout> planned_layouts() {
  std::vector<PlannedLayout> all;
  for (const LayoutRow& row : layout_rows()) {
    const std::string arch = row.arch;
    if (arch == "gpt" || arch == "llama")
      add_if_supported(all, row.name, row.ranks, small_model(arch, merge(with_parallel_prefix(row.layout), row.model)));
  }
  for (const ExtraLayout& row : kExtraLayouts)
    add_if_supported(all, row.name, row.ranks, small_model(row.arch, merge(kWide, with_parallel_prefix(row.layout))));
  return all;
}

}  // namespace esp::parity
