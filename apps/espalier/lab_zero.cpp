// espalier lab zero: memory of a rank in each stage of ZeRO, from the allocator of ranks that really train, compared
// with the formulas.
//
// The states of a model (weights, gradients, optimizer states) are compared after a step. Buffers are temporary memory
// of a stage (buckets in flight, stage 3's window of gathered units): their peak is shown and is not part of the
// formula, nor are activations, which depend on the batch.
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

// One kind of state in a stage: whole on every rank or sharded, and its memory tier.
struct Placed {
  bool shared = false;
  MemoryTier tier = MemoryTier::device;
};

// A row of the lab. Where states are off the device a second bar shows the host's memory.
struct Stage {
  std::string_view name, method;
  std::string_view settings;     // further section.key=value, separated by spaces
  std::array<Placed, 3> states;  // in the order of kStates
};

constexpr Placed kWhole{false}, kShared{true}, kOnHost{true, MemoryTier::host};
constexpr Stage kStages[] = {
    {"stage 0", "allreduce", "", {kWhole, kWhole, kWhole}},
    {"stage 1", "zero1", "", {kWhole, kWhole, kShared}},
    {"stage 2", "zero2", "", {kWhole, kShared, kShared}},
    {"stage 3", "zero3", "", {kShared, kShared, kShared}},
    {"offload", "zero2", "sync.offload=host", {kWhole, kOnHost, kOnHost}},
};

struct ZeroLab {
  int nproc = 4;
  std::string model = "gpt-6x384", precision = "bf16", json, out;
  int64_t seq = 32;
  int steps = 2;
};

struct Use {
  uint64_t current = 0, peak = 0;
};
using RankMemory = std::map<std::string, Use>;  // "device.parameter" and so on

// Bytes per parameter of each state. The optimizer keeps fp32 master weights where the weights have fewer bits, or are
// in another tier.
std::array<int64_t, 3> bytes_of(const Stage& stage, const std::string& precision) {
  if (precision != "fp32") return {2, 2, 12};
  return {4, 4, stage.states[2].tier == MemoryTier::device ? 8 : 12};
}

struct Formula {
  std::string text;  // "4Φ + 12Φ/N"
  double bytes = 0;
};

Formula formula_of(const Stage& stage, MemoryTier tier, const ZeroLab& options, int64_t parameters) {
  int64_t whole = 0, shared = 0;
  for (size_t i = 0; i < std::size(kStates); ++i)
    if (stage.states[i].tier == tier)
      (stage.states[i].shared ? shared : whole) += bytes_of(stage, options.precision)[i];
  Formula formula;
  if (whole > 0) formula.text = fmt::format("{}Φ", whole);
  if (shared > 0) formula.text += fmt::format("{}{}Φ/N", whole > 0 ? " + " : "", shared);
  formula.bytes = static_cast<double>(parameters) *
                  (static_cast<double>(whole) + static_cast<double>(shared) / static_cast<double>(options.nproc));
  return formula;
}

std::string key_of(MemoryTier tier, MemoryCategory category) {
  return fmt::format("{}.{}", name_of(tier), name_of(category));
}

// One tier of a stage, of the rank with the most memory there.
struct Measured {
  const Stage* stage = nullptr;
  MemoryTier tier = MemoryTier::device;
  Formula formula;
  std::array<uint64_t, 3> states{};
  uint64_t buffer_peak = 0, activation_peak = 0;
  std::vector<RankMemory> ranks;

  double sum() const {
    double all = 0;
    for (uint64_t bytes : states) all += static_cast<double>(bytes);
    return all;
  }
  double difference() const { return sum() / formula.bytes - 1; }
};

std::vector<RankMemory> parse_memory(const Candidate& candidate) {
  std::vector<RankMemory> ranks;
  for (const bench::Words& words : candidate.answer) {
    RankMemory memory;
    for (const std::string& one : split(words.at("memory"), ',')) {
      const std::vector<std::string> parts = split(one, ':');
      memory[parts.at(0)] = {std::strtoull(parts.at(1).c_str(), nullptr, 10),
                             std::strtoull(parts.at(2).c_str(), nullptr, 10)};
    }
    ranks.push_back(std::move(memory));
  }
  return ranks;
}

Measured fullest(const Stage& stage, MemoryTier tier, const Formula& formula, const std::vector<RankMemory>& ranks) {
  Measured most{&stage, tier, formula, {}, 0, 0, ranks};
  for (const RankMemory& rank : ranks) {
    Measured here{&stage, tier, formula, {}, 0, 0, {}};
    for (size_t i = 0; i < std::size(kStates); ++i) here.states[i] = rank.at(key_of(tier, kStates[i])).current;
    if (here.sum() > most.sum()) most.states = here.states;
    most.buffer_peak = std::max(most.buffer_peak, rank.at(key_of(tier, MemoryCategory::buffer)).peak);
    most.activation_peak = std::max(most.activation_peak, rank.at(key_of(tier, MemoryCategory::activation)).peak);
  }
  return most;
}

TrainCase case_of(const ZeroLab& options, const Stage& stage) {
  TrainCase it;
  it.name = options.model;
  it.model = model::preset(options.model).config;
  it.seq = options.seq;
  it.model.seq_len = options.seq;
  it.batch = options.nproc;
  it.ranks = options.nproc;
  it.precision = options.precision;
  it.sync = stage.method;
  if (!stage.settings.empty()) it.settings = split(std::string(stage.settings), ' ');
  return it;
}

// One stage after the other, each with separate processes, so that a rank's memory is that of one stage.
std::vector<Measured> measure(const ZeroLab& options) {
  const obs::TemporaryFolder folder;
  std::vector<Measured> all;
  for (const Stage& stage : kStages) {
    TrainCase it = case_of(options, stage);
    it.tokens = write_tokens(folder.path(), it.model, it.tokens_per_step());
    Switchboard board;
    Candidate job = start_trainer("espalier", it, board);
    ask_steps(job, options.steps);
    const std::vector<RankMemory> ranks = parse_memory(job);
    for (MemoryTier tier : device::kAllTiers)
      if (const Formula formula = formula_of(stage, tier, options, model::parameter_count(it.model)); formula.bytes > 0)
        all.push_back(fullest(stage, tier, formula, ranks));
  }
  return all;
}

std::string name_of_row(const Measured& one) {
  return one.tier == MemoryTier::device ? std::string(one.stage->name)
                                        : fmt::format("{}, {}", one.stage->name, name_of(one.tier));
}

std::string table_of(const std::vector<Measured>& all) {
  Cells head = {"", "sync.method", "formula", "formula bytes", "measured bytes", "difference"};
  for (MemoryCategory category : kStates) head.emplace_back(name_of(category));
  head.insert(head.end(), {"buffers, peak", "activations, peak"});
  std::vector<Cells> rows;
  for (const Measured& one : all) {
    Cells row = {name_of_row(one),
                 std::string(one.stage->method),
                 one.formula.text,
                 human_bytes(static_cast<uint64_t>(one.formula.bytes)),
                 human_bytes(static_cast<uint64_t>(one.sum())),
                 fmt::format("{:+.3f} %", 100 * one.difference())};
    for (uint64_t bytes : one.states) row.push_back(human_bytes(bytes));
    row.push_back(human_bytes(one.buffer_peak));
    row.push_back(human_bytes(one.activation_peak));
    rows.push_back(row);
  }
  return text_table(head, rows);
}

BarChart chart_of(const ZeroLab& options, const std::vector<Measured>& all, int64_t parameters) {
  BarChart chart{fmt::format("Memory of a rank, N = {}, {}: Φ = {} parameters, {}", options.nproc, options.model,
                             parameters, options.precision),
                 {},
                 "formula",
                 {}};
  for (MemoryCategory category : kStates) chart.parts.emplace_back(name_of(category));
  chart.parts.emplace_back("buffers, peak");
  for (const Measured& one : all) {
    Bar bar{name_of_row(one), {}, one.formula.bytes, ""};
    for (uint64_t bytes : one.states) bar.parts.push_back(static_cast<double>(bytes));
    bar.parts.push_back(static_cast<double>(one.buffer_peak));
    bar.note = fmt::format("{} = {}, {:+.2f} %", one.formula.text,
                           human_bytes(static_cast<uint64_t>(one.formula.bytes)), 100 * one.difference());
    chart.bars.push_back(std::move(bar));
  }
  return chart;
}

Json report_of(const ZeroLab& options, const std::vector<Measured>& all, int64_t parameters) {
  Json rows = Json::array();
  for (const Measured& one : all) {
    Json ranks = Json::array();
    for (const RankMemory& rank : one.ranks) {
      Json memory;
      for (MemoryCategory category : device::kAllCategories) {
        const Use& use = rank.at(key_of(one.tier, category));
        memory[std::string(name_of(category))] = {{"current", use.current}, {"peak", use.peak}};
      }
      ranks.push_back(std::move(memory));
    }
    rows.push_back({{"stage", one.stage->name},
                    {"sync", one.stage->method},
                    {"tier", name_of(one.tier)},
                    {"formula", one.formula.text},
                    {"formula_bytes", one.formula.bytes},
                    {"measured_bytes", one.sum()},
                    {"difference", one.difference()},
                    {"ranks", std::move(ranks)}});
  }
  return {{"model", options.model},
          {"parameters", parameters},
          {"precision", options.precision},
          {"ranks", options.nproc},
          {"rows", std::move(rows)}};
}

void check(const ZeroLab& options) {
  if (options.nproc < 1 || options.nproc > 64)
    throw UsageError(fmt::format("--nproc {}: between 1 and 64 ranks", options.nproc));
  if (options.seq < 1 || options.steps < 1) throw UsageError("expected --seq and --steps >= 1");
}

Findings findings_of(const ZeroLab& options, const std::vector<Measured>& all) {
  Findings findings;
  for (const Measured& one : all)
    findings.within(fmt::format("{}: states of a rank, N = {}", name_of_row(one), options.nproc), one.formula.text,
                    one.formula.bytes, one.sum(), 0.01, "B");
  return findings;
}

int run_lab_zero(const ZeroLab& options) {
  check(options);
  const std::vector<Measured> all = measure(options);
  const int64_t parameters = model::parameter_count(case_of(options, kStages[0]).model);
  const BarChart chart = chart_of(options, all, parameters);
  std::string text = fmt::format(
      "{}\n{}\nFrom the allocators of {} ranks after {} steps, the rank that holds most. Buffers (buckets on their "
      "way, "
      "stage 3's\nwindow of gathered units) come on top of the formula for a while; activations depend on the batch.\n",
      bars_text(chart, 50), table_of(all), options.nproc, options.steps);
  return finish_lab({options.json, options.out}, "zero", text, report_of(options, all, parameters), bars_svg(chart),
                    findings_of(options, all));
}

}  // namespace

void define_lab_zero(const Arguments& app, Chosen& chosen) {
  auto o = keep<ZeroLab>(app, chosen, run_lab_zero);
  app.add_option("--nproc", o->nproc, "ranks on this machine [4]").type_name("N");
  app.add_option("--model", o->model, "preset [gpt-6x384]").type_name("NAME");
  app.add_option("--precision", o->precision, "storage type [bf16]")
      .type_name("fp32|bf16|fp16")
      .one_of({"fp32", "bf16", "fp16"});
  app.add_option("--seq", o->seq, "tokens of each rank's one sequence [32]").type_name("T");
  app.add_option("--steps", o->steps, "steps before looking [2]").type_name("N");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
