#include "apps/espalier/plan_inputs.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/model/model.h"
#include "esp/obs/file.h"
#include "esp/plan/compressed_bytes.h"
#include "esp/plan/hf_shape.h"
#include "esp/plan/software.h"

namespace esp::app {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMaxDescriptionBytes = size_t{1} << 20;

struct RecomputeName {
  std::string_view name;
  plan::RecomputePolicy value;
};
constexpr RecomputeName kRecomputes[] = {{"none", plan::RecomputePolicy::none},
                                         {"selective", plan::RecomputePolicy::selective},
                                         {"full", plan::RecomputePolicy::full}};
struct OffloadName {
  std::string_view name;
  plan::OffloadTarget value;
};
constexpr OffloadName kOffloads[] = {
    {"none", plan::OffloadTarget::none}, {"host", plan::OffloadTarget::host}, {"file", plan::OffloadTarget::file}};

void known(std::string_view what, const std::string& given, const std::vector<std::string_view>& names) {
  if (std::find(names.begin(), names.end(), given) == names.end()) unknown_name(what, given, names);
}

template <typename T, typename U>
void within(const char* option, const std::optional<T>& given, U low, U high, auto& to) {
  if (!given) return;
  // This form of the condition also rejects NaN.
  if (!(*given >= static_cast<T>(low) && *given <= static_cast<T>(high)))
    throw UsageError(fmt::format("{}: got {}; expected {} to {}", option, *given, low, high));
  to = *given;
}

// Parses whole numbers: "8,8,7,9".
std::vector<int> parse_list(const std::string& text) {
  std::vector<int> list;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    int value = 0;
    const auto [last, error] = std::from_chars(text.data() + at, text.data() + end, value);
    if (error != std::errc() || last != text.data() + end || value < 0)
      throw UsageError(
          fmt::format("--stage-layers: got {}; expected whole numbers separated by commas, for example 8,8,7,9", text));
    list.push_back(value);
    at = end + 1;
  }
  return list;
}

plan::ModelShape shape_of_file(const std::string& path, std::vector<std::string>& assumed) {
  const std::string file = fs::is_directory(path) ? path + "/config.json" : path;
  if (file != path && !fs::exists(file))
    throw IoError(fmt::format(
        "--model: got {}, a folder without config.json; expected a Hugging Face folder{}", path,
        fs::exists(path + "/run.toml") ? fmt::format(". It is a run folder: use --run {}/run.toml", path) : ""));
  const Json json = parse_json(obs::read_whole_file(file, kMaxDescriptionBytes), file);
  return plan::shape_from_hf(json, fs::path(path).filename().string(), assumed);
}

// The shape of a model, named by a catalog entry, a preset of the trainer, or a file that describes a model.
plan::ModelShape shape_named(const PlanInputs& o, std::vector<std::string>& assumed) {
  plan::Catalog catalog;
  if (!o.catalog.empty()) catalog.add(obs::read_whole_file(o.catalog, kMaxDescriptionBytes), o.catalog);
  std::string name = o.model;
  if (fs::exists(name)) {
    if (!name.ends_with(".toml")) return shape_of_file(name, assumed);
    name = catalog.add(obs::read_whole_file(name, kMaxDescriptionBytes), o.model);
    if (!catalog.find_model(name))
      throw UsageError(fmt::format(
          "{}: got a file without a [model] table; expected a model's name, or a file with [model]", o.model));
  }
  if (const plan::CatalogModel* row = catalog.find_model(name)) return row->shape;
  std::vector<std::string_view> names = names_of(catalog.models());
  for (const model::Preset& row : model::presets()) {
    if (row.name == name) return plan::shape_of(row.config, name);
    if (!catalog.find_model(row.name)) names.push_back(row.name);
  }
  unknown_name("model", name, names);
}

train::RunConfig run_of(const PlanInputs& o) {
  if (fs::is_directory(o.run))
    throw UsageError(fmt::format("--run: got {}, a folder; expected a run file{}", o.run,
                                 fs::exists(o.run + "/run.toml") ? fmt::format(": use --run {}/run.toml", o.run) : ""));
  return train::read_run_config(o.run, o.overrides);
}

void set_axes(const PlanInputs& o, plan::Policy& p) {
  constexpr int kMost = 1'000'000;
  within("--tp", o.tp, 1, kMost, p.tp);
  within("--pp", o.pp, 1, kMost, p.pp);
  within("--cp", o.cp, 1, kMost, p.cp);
  within("--ep", o.ep, 1, kMost, p.ep);
  within("--dp", o.dp, 0, kMost, p.dp);
  within("--expert-tp", o.expert_tp, 1, kMost, p.expert_tp);
  within("--expert-nodes", o.expert_nodes, 0, kMost, p.expert_nodes);
  within("--interleave", o.interleave, 1, 1024, p.interleave);
  within("--micro-batch", o.micro_batch, 1, 1 << 20, p.micro_batch);
  within("--global-batch", o.global_batch, 1, 1 << 30, p.global_batch);
  within("--zero", o.zero, 0, 3, p.zero);
  within("--shard-group", o.shard_group, 0, kMost, p.shard_group);
  within("--recompute-layers", o.recompute_layers, 0, 10'000, p.recompute_layers);
  within("--threads", o.threads, 1, 4096, p.threads);
}

void set_words(const PlanInputs& o, plan::Policy& p) {
  if (!o.schedule.empty()) {
    known("--schedule", o.schedule,
          {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe", "none"});
    p.schedule = o.schedule == "none" ? "1f1b" : o.schedule;
  }
  if (p.interleave > 1 && p.schedule == "1f1b") p.schedule = "interleaved";
  if (!o.context.empty()) {
    known("--context", o.context, {"ring", "ulysses", "allgather"});
    p.context = o.context;
  }
  if (!o.precision.empty()) {
    known("--precision", o.precision, {"fp32", "tf32", "fp16", "bf16", "fp8", "fp4"});
    p.precision = o.precision;
  }
  if (!o.recompute.empty()) p.recompute = find_row("--recompute", kRecomputes, o.recompute).value;
  if (!o.offload.empty()) p.offload = find_row("--offload", kOffloads, o.offload).value;
  if (!o.software.empty()) p.software = plan::software_row(o.software).name;
  if (!o.optimizer.empty()) {
    known("--optimizer", o.optimizer, {"adam", "adamw", "sgd"});
    p.optimizer = o.optimizer;
  }
  if (!o.compress.empty()) {
    plan::compressed_value_bytes(o.compress, {}, 4);  // throws if the name is unknown
    p.compress = o.compress;
  }
  if (!o.stage_layers.empty()) p.stage_layers = parse_list(o.stage_layers);
  p.sequence = p.sequence || o.sequence;
  if (o.no_flash) p.flash = false;
  if (o.no_overlap) p.overlap_dp = p.overlap_pp = p.overlap_cp = false;
  p.overlap_tp = p.overlap_tp || o.overlap_tp;
  p.dropout = p.dropout || o.dropout;
  p.keep_gathered = p.keep_gathered || o.keep_gathered;
  if (o.quantised) p.quantised_weights = p.secondary_shard = p.quantised_gradients = true;
  p.vocab_parallel_pipeline = o.vocab_parallel;
}

// Sets axes that are not given, so that the layout fills the cluster: dp takes the remaining devices.
void fill_axes(const PlanInputs& o, const plan::Cluster& cluster, plan::Policy& p, std::vector<std::string>& assumed) {
  const int64_t within_copy = int64_t{p.tp} * p.pp * p.cp;
  if (!o.dp || *o.dp == 0) {
    if (within_copy > cluster.size() || cluster.size() % within_copy != 0) {
      int64_t fitting = 1;  // the largest tp, up to the given one, for which the product divides the cluster
      for (int64_t t = 1; t <= p.tp; ++t)
        if (cluster.size() % (t * p.pp * p.cp) == 0) fitting = t;
      throw UsageError(
          fmt::format("tp x pp x cp: got {} x {} x {} = {}; expected a divisor of the {} devices of {}. "
                      "Try tp {}{}",
                      p.tp, p.pp, p.cp, within_copy, cluster.size(), cluster.name, fitting,
                      cluster.size() % (int64_t{p.pp} * p.cp) != 0 ? " with pp 1 and cp 1" : ""));
    }
    p.dp = static_cast<int>(cluster.size() / within_copy);
    if (p.dp > 1 || o.dp) assumed.push_back(fmt::format("dp = {}", p.dp));
  } else if (within_copy * p.dp != cluster.size()) {
    throw UsageError(
        fmt::format("tp x pp x dp x cp: got {} x {} x {} x {} = {}; expected the {} devices of {}. Try --dp {} or "
                    "--gpus {}",
                    p.tp, p.pp, p.dp, p.cp, within_copy * p.dp, cluster.size(), cluster.name,
                    std::max<int64_t>(1, cluster.size() / within_copy), within_copy * p.dp));
  }
}

// Rejects options that have no effect: the user expects an effect that the estimate would not show.
void check_used(const PlanInputs& o, const ResolvedPlan& planned) {
  const plan::Policy& p = planned.policy;
  const bool experts = planned.shape.experts > 0, cpu = planned.cluster.processor.kind == "cpu";
  const struct {
    const char* option;
    bool given, used;
    const char* expected;
  } rows[] = {
      {"--set", !o.overrides.empty(), !o.run.empty(), "--run RUN.toml, whose keys it overrides"},
      {"--recompute-layers", o.recompute_layers.has_value(), p.recompute != plan::RecomputePolicy::none,
       "--recompute full"},
      {"--threads", o.threads.has_value(), cpu, "a cluster of CPUs"},
      {"--shard-group", o.shard_group.value_or(0) > 0, p.zero > 0, "--zero 1, 2 or 3"},
      {"--keep-gathered", o.keep_gathered, p.zero == 3, "--zero 3"},
      {"--quantised", o.quantised, p.zero == 3, "--zero 3"},
      {"--expert-tp", o.expert_tp.has_value(), experts, "a model with experts"},
      {"--expert-nodes", o.expert_nodes.has_value(), experts, "a model with experts"},
  };
  for (const auto& row : rows)
    if (row.given && !row.used)
      throw UsageError(fmt::format("{}: has no effect without {}. Leave it out", row.option, row.expected));
}

}  // namespace

plan::ModelShape plan_shape(const PlanInputs& o, std::vector<std::string>& assumed) {
  if (o.model.empty() && o.run.empty())
    throw UsageError("--model: not given; expected a preset, a config.json or its folder, or --run RUN.toml instead");
  plan::ModelShape shape;
  if (!o.model.empty()) {
    shape = shape_named(o, assumed);
  } else {
    shape = shape_of_run(run_of(o));
  }
  within("--seq", o.seq, 1, 1 << 26, shape.seq);
  within("--vocab", o.vocab, 1, 1 << 24, shape.vocab);
  return shape;
}

plan::Cluster plan_cluster(const PlanInputs& o, std::vector<std::string>& assumed) {
  plan::Catalog catalog;
  if (!o.catalog.empty()) catalog.add(obs::read_whole_file(o.catalog, kMaxDescriptionBytes), o.catalog);
  int gpus = 0, per_node = 0;
  double gbps = 0;
  within("--gpus", o.gpus, 1, 1'000'000, gpus);
  within("--per-node", o.per_node, 1, 4096, per_node);
  within("--net-gbps", o.net_gbps, 0.001, 1e6, gbps);
  if (!o.cluster.empty() && !o.processor.empty())
    throw UsageError("--cluster and --processor: got both; expected one of them");
  if (!o.processor.empty()) {
    const plan::ProcessorRow* row = nullptr;
    if (fs::exists(o.processor)) {
      row = &catalog.processor(catalog.add(obs::read_whole_file(o.processor, kMaxDescriptionBytes), o.processor));
    } else {
      row = &catalog.processor(o.processor);
    }
    if (gpus == 0) gpus = row->per_node;
    return plan::make_cluster(catalog, *row, {gpus, per_node, gbps, 0}, &assumed);
  }
  if (o.cluster.empty())
    throw UsageError(
        "--cluster: not given; expected --cluster NAME or FILE.toml, or --processor NAME --gpus N. "
        "plan estimate --list lists the names");
  std::string name = o.cluster;
  if (fs::exists(name)) name = catalog.add(obs::read_whole_file(name, kMaxDescriptionBytes), name);
  plan::Cluster cluster = catalog.cluster(name);
  if (per_node > 0) cluster.per_node = per_node;
  if (gbps > 0) cluster.across.bandwidth = gbps * 1e9 / 8 / cluster.per_node;
  if (gpus > 0) {
    if (gpus > cluster.size())
      throw UsageError(fmt::format("--gpus: got {}; expected at most {}, the number of devices of {}", gpus,
                                   cluster.size(), cluster.name));
    if (gpus > cluster.per_node && gpus % cluster.per_node != 0)
      throw UsageError(fmt::format("--gpus: got {}; expected a multiple of {} (whole nodes): {} or {}", gpus,
                                   cluster.per_node, gpus / cluster.per_node * cluster.per_node,
                                   (gpus / cluster.per_node + 1) * cluster.per_node));
    // A part of a node keeps all network cards of the node.
    if (gpus < cluster.per_node) cluster.across.bandwidth *= static_cast<double>(cluster.per_node) / gpus;
    cluster.per_node = std::min(cluster.per_node, gpus);
    cluster.num_nodes = gpus / cluster.per_node;
    cluster.domain = std::min(cluster.domain, cluster.size());
  }
  return cluster;
}

ResolvedPlan read_plan_inputs(const PlanInputs& o) {
  ResolvedPlan planned;
  planned.shape = plan_shape(o, planned.assumed);
  planned.cluster = plan_cluster(o, planned.assumed);
  plan::Policy& p = planned.policy;
  if (!o.run.empty()) {
    // Axes come from the run file unless options set them. If options do, dp takes the remaining devices.
    train::RunConfig config = run_of(o);
    for (const auto& [given, key] : {std::pair{o.tp, &config.parallel.tp},
                                     {o.pp, &config.parallel.pp},
                                     {o.cp, &config.parallel.cp},
                                     {o.ep, &config.parallel.ep},
                                     {o.dp, &config.parallel.dp}})
      if (given) *key = *given;
    p = policy_of_run(config, planned.cluster.size());
    if (!config.parallel.layout.empty())
      planned.assumed.push_back(
          "the axes of the run file, although its parallel.layout is auto (plan search finds a layout)");
  } else if (planned.cluster.processor.bf16_flops <= 0) {
    p.precision = planned.cluster.processor.fp16_flops > 0 ? "fp16" : "fp32";
  }
  set_axes(o, p);
  set_words(o, p);
  fill_axes(o, planned.cluster, p, planned.assumed);
  if (o.run.empty() && !o.global_batch) {
    p.global_batch = p.micro_batch * p.dp * std::max(1, 4 * (p.pp > 1 ? p.pp : 1));
    planned.assumed.push_back(fmt::format("global batch = {} sequences", p.global_batch));
  }
  check_used(o, planned);
  return planned;
}

void add_plan_inputs(const Arguments& app, PlanInputs& o, bool policy) {
  app.add_option("--model", o.model, "a preset, a Hugging Face config.json or a folder with one")
      .type_name("NAME|FILE");
  app.add_option("--run", o.run, "run file with model and policy").type_name("RUN.toml");
  app.add_option("--set", o.overrides, "override a key of the run file").type_name("S.K=V");
  app.add_option("--seq", o.seq, "tokens per sequence").type_name("T");
  app.add_option("--vocab", o.vocab, "vocabulary size").type_name("V");
  app.add_option("--cluster", o.cluster, "shipped cluster or cluster file").type_name("NAME|FILE.toml");
  app.add_option("--processor", o.processor, "device type, instead of a cluster; with --gpus")
      .type_name("NAME|FILE.toml");
  app.add_option("--gpus", o.gpus, "number of devices to use").type_name("N");
  app.add_option("--per-node", o.per_node, "devices per node").type_name("N");
  app.add_option("--net-gbps", o.net_gbps, "network bandwidth per node, Gb/s").type_name("G");
  app.add_option("--catalog", o.catalog, "file with more devices, links and clusters").type_name("FILE.toml");
  app.add_option("--global-batch", o.global_batch, "sequences per step").type_name("B");
  app.add_option("--precision", o.precision, "precision of GEMMs: fp32, tf32, fp16, bf16, fp8").type_name("P");
  app.add_option("--software", o.software, "training software: megatron-core, fsdp, deepspeed, espalier …")
      .type_name("NAME");
  app.add_option("--optimizer", o.optimizer, "optimizer: adam, adamw or sgd").type_name("NAME");
  app.add_option("--threads", o.threads, "threads per rank, CPU clusters only").type_name("N");
  app.add_flag("--no-flash", o.no_flash, "assume no FlashAttention: attention scores are stored");
  app.add_flag("--no-overlap", o.no_overlap, "do not overlap communication and compute");
  app.add_flag("--dropout", o.dropout, "count the memory of dropout masks");
  if (!policy) return;
  app.add_option("--tp", o.tp, "tensor-parallel size").type_name("N");
  app.add_option("--pp", o.pp, "pipeline stages").type_name("N");
  app.add_option("--dp", o.dp, "data-parallel size [fills the cluster]").type_name("N");
  app.add_option("--cp", o.cp, "context-parallel size").type_name("N");
  app.add_option("--ep", o.ep, "expert-parallel size").type_name("N");
  app.add_option("--expert-tp", o.expert_tp, "tensor-parallel size of an expert").type_name("N");
  app.add_option("--expert-nodes", o.expert_nodes, "maximum number of nodes for the experts of one token; 0: any")
      .type_name("N");
  app.add_flag("--sequence", o.sequence, "sequence parallelism within tp");
  app.add_option("--context", o.context, "context-parallel attention: ring, ulysses or allgather").type_name("NAME");
  app.add_option("--schedule", o.schedule,
                 "schedule: gpipe, 1f1b, interleaved, zb-h1, zb-2p, zb-v, v-half, v-min or dualpipe")
      .type_name("NAME");
  app.add_option("--interleave", o.interleave, "model chunks per stage").type_name("V");
  app.add_option("--stage-layers", o.stage_layers, "layers of each model chunk").type_name("N,N,N");
  app.add_flag("--vocab-parallel", o.vocab_parallel, "shard the vocabulary of the head over the stages");
  app.add_option("--micro-batch", o.micro_batch, "sequences per forward pass").type_name("B");
  app.add_option("--zero", o.zero, "ZeRO stage, 0 to 3").type_name("Z");
  app.add_option("--shard-group", o.shard_group, "ranks per sharding group; 0: all replicas").type_name("N");
  app.add_flag("--keep-gathered", o.keep_gathered, "zero 3: keep gathered weights after forward");
  app.add_flag("--quantised", o.quantised, "zero 3: ZeRO++ (qwZ, hpZ and qgZ)");
  app.add_option("--offload", o.offload, "location of the optimizer state: none (device), host or file")
      .type_name("TIER");
  app.add_option("--compress", o.compress, "gradient compression, as sync.compress").type_name("NAME");
  app.add_option("--recompute", o.recompute, "activation recomputation: none, selective or full").type_name("NAME");
  app.add_option("--recompute-layers", o.recompute_layers, "recomputed layers per stage, with --recompute full")
      .type_name("N");
  app.add_flag("--overlap-tp", o.overlap_tp, "overlap tensor-parallel collectives with GEMMs");
}

}  // namespace esp::app
