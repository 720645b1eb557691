// espalier lab zero: memory per rank in each ZeRO stage, compared with the formulas. The bytes come from the allocators
// of ranks that train.
//
// The states of a model (weights, gradients, optimizer states) are compared after a step. A stage also uses temporary
// buffers: buckets in flight, and the gathered units of stage 3. Their peak is shown, but is not part of the formula.
// Activations are not part of it either: they depend on the batch.
#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_train_candidate.h"
#include "apps/espalier/command.h"
#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/device/memory.h"
#include "esp/model/counts.h"
#include "esp/model/model.h"
#include "esp/obs/temporary_folder.h"

namespace esp::app {
namespace {

using device::MemoryCategory;
using device::MemoryTier;

constexpr MemoryCategory kStates[] = {MemoryCategory::parameter, MemoryCategory::gradient, MemoryCategory::optimizer};

// Placement of one kind of state: whether it is sharded, and its memory tier.
struct StatePlacement {
  bool sharded = false;
  MemoryTier tier = MemoryTier::device;
};

// One row of the lab. If states are in host memory, a second bar shows it.
struct Stage {
  std::string_view name, method;
  std::string_view settings;             // additional settings, section.key=value, separated by spaces
  std::array<StatePlacement, 3> states;  // one entry per state, in the order of kStates
};

constexpr StatePlacement kWhole{false}, kSharded{true}, kOnHost{true, MemoryTier::host};
constexpr Stage kStages[] = {
    {"stage 0", "allreduce", "", {kWhole, kWhole, kWhole}},
    {"stage 1", "zero1", "", {kWhole, kWhole, kSharded}},
    {"stage 2", "zero2", "", {kWhole, kSharded, kSharded}},
    {"stage 3", "zero3", "", {kSharded, kSharded, kSharded}},
    {"offload", "zero2", "sync.offload=host", {kWhole, kOnHost, kOnHost}},
};

struct ZeroLabOptions {
  int nproc = 4;
  std::string model = "gpt-6x384", precision = "bf16", json, out;
  int64_t seq = 32;
  int steps = 2;
};

struct MemoryUse {
  uint64_t current = 0, peak = 0;
};
using RankMemory = std::map<std::string, MemoryUse>;  // keyed by tier and category: "device.parameter"

// Bytes per parameter of each state. The optimizer also keeps fp32 master weights if the weights have fewer bits or are
// in another tier.
std::array<int64_t, 3> bytes_of(const Stage& stage, const std::string& precision) {
  if (precision != "fp32") return {2, 2, 12};
  return {4, 4, stage.states[2].tier == MemoryTier::device ? 8 : 12};
}

struct Formula {
  std::string text;  // formula as text: "4Φ + 12Φ/N"
  double bytes = 0;
};

Formula formula_of(const Stage& stage, MemoryTier tier, const ZeroLabOptions& options, int64_t parameters) {
  int64_t whole = 0, sharded = 0;
  for (size_t i = 0; i < std::size(kStates); ++i)
    if (stage.states[i].tier == tier)
      (stage.states[i].sharded ? sharded : whole) += bytes_of(stage, options.precision)[i];
  Formula formula;
  if (whole > 0) formula.text = fmt::format("{}Φ", whole);
  if (sharded > 0) formula.text += fmt::format("{}{}Φ/N", whole > 0 ? " + " : "", sharded);
  formula.bytes = static_cast<double>(parameters) *
                  (static_cast<double>(whole) + static_cast<double>(sharded) / static_cast<double>(options.nproc));
  return formula;
}

std::string key_of(MemoryTier tier, MemoryCategory category) {
  return fmt::format("{}.{}", name_of(tier), name_of(category));
}

// Memory of one stage in one tier, on the rank that uses most of that tier.
struct StageResult {
  const Stage* stage = nullptr;
  MemoryTier tier = MemoryTier::device;
  Formula formula;
  std::array<uint64_t, 3> states{};
  uint64_t buffer_peak = 0, activation_peak = 0;
  std::vector<RankMemory> ranks;

  double sum() const {
    double results = 0;
    for (uint64_t bytes : states) results += static_cast<double>(bytes);
    return results;
  }
  double difference() const { return sum() / formula.bytes - 1; }
};

std::vector<RankMemory> parse_memory(const BenchCandidate& candidate) {
  std::vector<RankMemory> ranks;
  for (const bench::Words& words : candidate.answer) {
    RankMemory memory;
    for (const std::string& result : split(words.at("memory"), ',')) {
      const std::vector<std::string> parts = split(result, ':');
      memory[parts.at(0)] = {std::strtoull(parts.at(1).c_str(), nullptr, 10),
                             std::strtoull(parts.at(2).c_str(), nullptr, 10)};
    }
    ranks.push_back(std::move(memory));
  }
  return ranks;
}

StageResult fullest(const Stage& stage, MemoryTier tier, const Formula& formula, const std::vector<RankMemory>& ranks) {
  StageResult most{&stage, tier, formula, {}, 0, 0, ranks};
  for (const RankMemory& rank : ranks) {
    StageResult here{&stage, tier, formula, {}, 0, 0, {}};
    for (size_t i = 0; i < std::size(kStates); ++i) here.states[i] = rank.at(key_of(tier, kStates[i])).current;
    if (here.sum() > most.sum()) most.states = here.states;
    most.buffer_peak = std::max(most.buffer_peak, rank.at(key_of(tier, MemoryCategory::buffer)).peak);
    most.activation_peak = std::max(most.activation_peak, rank.at(key_of(tier, MemoryCategory::activation)).peak);
  }
  return most;
}

TrainCase case_of(const ZeroLabOptions& options, const Stage& stage) {
  TrainCase spec;
  spec.name = options.model;
  spec.model = model::preset(options.model).config;
  spec.seq = options.seq;
  spec.model.seq_len = options.seq;
  spec.batch = options.nproc;
  spec.ranks = options.nproc;
  spec.precision = options.precision;
  spec.sync = stage.method;
  if (!stage.settings.empty()) spec.settings = split(std::string(stage.settings), ' ');
  return spec;
}

// Measures the stages of ZeRO one after another. Each stage runs in separate processes, so that its memory can be
// measured.
std::vector<StageResult> measure(const ZeroLabOptions& options) {
  const obs::TemporaryFolder folder;
  std::vector<StageResult> results;
  for (const Stage& stage : kStages) {
    TrainCase spec = case_of(options, stage);
    spec.tokens = write_tokens(folder.path(), spec.model, spec.tokens_per_step());
    RankListener listener;
    BenchCandidate job = start_trainer("espalier", spec, listener);
    ask_steps(job, options.steps);
    const std::vector<RankMemory> ranks = parse_memory(job);
    for (MemoryTier tier : device::kAllTiers)
      if (const Formula formula = formula_of(stage, tier, options, model::parameter_count(spec.model));
          formula.bytes > 0)
        results.push_back(fullest(stage, tier, formula, ranks));
  }
  return results;
}

std::string name_of_row(const StageResult& result) {
  return result.tier == MemoryTier::device ? std::string(result.stage->name)
                                           : fmt::format("{}, {}", result.stage->name, name_of(result.tier));
}

std::string table_of(const std::vector<StageResult>& results) {
  Cells head = {"", "sync.method", "formula", "formula bytes", "measured bytes", "difference"};
  for (MemoryCategory category : kStates) head.emplace_back(name_of(category));
  head.insert(head.end(), {"buffers, peak", "activations, peak"});
  std::vector<Cells> rows;
  for (const StageResult& result : results) {
    Cells row = {name_of_row(result),
                 std::string(result.stage->method),
                 result.formula.text,
                 human_bytes(static_cast<uint64_t>(result.formula.bytes)),
                 human_bytes(static_cast<uint64_t>(result.sum())),
                 fmt::format("{:+.3f} %", 100 * result.difference())};
    for (uint64_t bytes : result.states) row.push_back(human_bytes(bytes));
    row.push_back(human_bytes(result.buffer_peak));
    row.push_back(human_bytes(result.activation_peak));
    rows.push_back(row);
  }
  return text_table(head, rows);
}

BarChart chart_of(const ZeroLabOptions& options, const std::vector<StageResult>& results, int64_t parameters) {
  BarChart chart{fmt::format("Memory per rank, N = {}, {}: Φ = {} parameters, {}", options.nproc, options.model,
                             parameters, options.precision),
                 {},
                 "formula",
                 {}};
  for (MemoryCategory category : kStates) chart.parts.emplace_back(name_of(category));
  chart.parts.emplace_back("buffers, peak");
  for (const StageResult& result : results) {
    Bar bar{name_of_row(result), {}, result.formula.bytes, ""};
    for (uint64_t bytes : result.states) bar.parts.push_back(static_cast<double>(bytes));
    bar.parts.push_back(static_cast<double>(result.buffer_peak));
    bar.note = fmt::format("{} = {}, {:+.2f} %", result.formula.text,
                           human_bytes(static_cast<uint64_t>(result.formula.bytes)), 100 * result.difference());
    chart.bars.push_back(std::move(bar));
  }
  return chart;
}

Json report_of(const ZeroLabOptions& options, const std::vector<StageResult>& results, int64_t parameters) {
  Json rows = Json::array();
  for (const StageResult& result : results) {
    Json ranks = Json::array();
    for (const RankMemory& rank : result.ranks) {
      Json memory;
      for (MemoryCategory category : device::kAllCategories) {
        const MemoryUse& use = rank.at(key_of(result.tier, category));
        memory[std::string(name_of(category))] = {{"current", use.current}, {"peak", use.peak}};
      }
      ranks.push_back(std::move(memory));
    }
    rows.push_back({{"stage", result.stage->name},
                    {"sync", result.stage->method},
                    {"tier", name_of(result.tier)},
                    {"formula", result.formula.text},
                    {"formula_bytes", result.formula.bytes},
                    {"measured_bytes", result.sum()},
                    {"difference", result.difference()},
                    {"ranks", std::move(ranks)}});
  }
  return {{"model", options.model},
          {"parameters", parameters},
          {"precision", options.precision},
          {"ranks", options.nproc},
          {"rows", std::move(rows)}};
}

void check(const ZeroLabOptions& options) {
  if (options.nproc < 1 || options.nproc > 64)
    throw UsageError(fmt::format("--nproc: got {}; expected 1 to 64 ranks", options.nproc));
  if (options.seq < 1 || options.steps < 1)
    throw UsageError(
        fmt::format("got --seq {}, --steps {}; expected --seq >= 1, --steps >= 1", options.seq, options.steps));
}

Findings findings_of(const ZeroLabOptions& options, const std::vector<StageResult>& results) {
  Findings findings;
  for (const StageResult& result : results)
    findings.within(fmt::format("{}: model states per rank, N = {}", name_of_row(result), options.nproc),
                    result.formula.text, result.formula.bytes, result.sum(), 0.01, "B");
  return findings;
}

int run_lab_zero(const ZeroLabOptions& options) {
  check(options);
  const std::vector<StageResult> results = measure(options);
  const int64_t parameters = model::parameter_count(case_of(options, kStages[0]).model);
  const BarChart chart = chart_of(options, results, parameters);
  std::string text = fmt::format(
      "{}\n"
      "{}\n"
      "From the allocators of {} ranks after {} steps: the rank with the most memory. Buffers "
      "(gradient buckets in flight,\n"
      "gathered units of stage 3) are temporary and not part of the formula. Activations depend on "
      "the batch.\n",
      bars_text(chart, 50), table_of(results), options.nproc, options.steps);
  return finish_lab({options.json, options.out}, "zero", text, report_of(options, results, parameters), bars_svg(chart),
                    findings_of(options, results));
}

}  // namespace

void define_lab_zero(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<ZeroLabOptions>(app, chosen, run_lab_zero);
  app.add_option("--nproc", o->nproc, "ranks on this machine [4]").type_name("N");
  app.add_option("--model", o->model, "preset [gpt-6x384]").type_name("NAME");
  app.add_option("--precision", o->precision, "storage type [bf16]")
      .type_name("fp32|bf16|fp16")
      .one_of({"fp32", "bf16", "fp16"});
  app.add_option("--seq", o->seq, "tokens per sequence; each rank has one sequence [32]").type_name("T");
  app.add_option("--steps", o->steps, "steps before memory is read [2]").type_name("N");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
