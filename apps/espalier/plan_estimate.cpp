// espalier plan estimate: memory, time and traffic of one policy on one cluster.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/output_file.h"
#include "apps/espalier/plan.h"
#include "apps/espalier/plan_inputs.h"
#include "apps/espalier/plan_page.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/model/model.h"
#include "esp/plan/report.h"
#include "esp/plan/simulate/step.h"
#include "esp/plan/software.h"
#include "esp/plan/suggestions.h"

namespace esp::app {
namespace {

using plan::gigabytes;
using plan::seconds;

struct EstimateOptions {
  PlanInputs inputs;
  std::string tokens, json, html;
  bool list = false;
};

// Parses a number of tokens: "300e9", "1.4T", "15T", or "chinchilla", which means twenty tokens per parameter (Hoffmann
// et al. 2022).
double parse_tokens(const std::string& text, double parameters) {
  if (text == "chinchilla") return 20 * parameters;
  size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  for (const auto& [name, scale] : {std::pair{"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}, {"", 1.0}})
    if (used > 0 && unit == name && value > 0 && value * scale < 1e18) return value * scale;
  throw UsageError(
      fmt::format("--tokens: got {}; expected a number above 0 such as 300B or 1.4T, or chinchilla", text));
}

std::vector<Cells> memory_rows(const std::vector<plan::Memory>& stages, int worst) {
  std::vector<Cells> rows;
  for (size_t i = 0; i < stages.size(); ++i) {
    const plan::Memory& m = stages[i];
    const bool listed = stages.size() <= 16 || i < 2 || i + 2 >= stages.size() || m.stage == worst;
    if (!listed) continue;
    rows.push_back({fmt::format("stage {}{}", m.stage, m.stage == worst ? " (fullest)" : ""), gigabytes(m.parameter),
                    gigabytes(m.gradient), gigabytes(m.optimizer), gigabytes(m.activation), gigabytes(m.buffer),
                    gigabytes(m.slack), gigabytes(m.other), gigabytes(m.total())});
    if (m.host + m.file > 0)
      rows.back().push_back(fmt::format("{} on {}", gigabytes(m.host + m.file), m.file > 0 ? "disk" : "the host"));
  }
  return rows;
}

const Cells kMemoryHead = {"memory per device", "parameters",    "gradients", "optimizer", "activations",
                           "buffers",           "fragmentation", "context",   "total"};

std::vector<Cells> time_rows(const plan::Estimate& e) {
  std::vector<Cells> rows;
  for (const auto& [name, time] : {std::pair{"compute", e.compute_s},
                                   {"bubble", e.bubble_s},
                                   {"exposed communication", e.exposed_s},
                                   {"optimizer", e.optimizer_s},
                                   {"offload", e.offload_s},
                                   {"step", e.step_s}})
    if (time > 0) rows.push_back({name, seconds(time), fmt::format("{:.1f} %", 100 * time / e.step_s)});
  return rows;
}

std::vector<Cells> traffic_rows(const plan::Estimate& e) {
  std::vector<Cells> rows;
  for (const plan::GroupTraffic& t : e.traffic)
    rows.push_back({t.group, t.op, t.tier == "inside" ? "inside a node" : "across nodes", gigabytes(t.bytes),
                    seconds(t.time_s), seconds(t.exposed_s)});
  return rows;
}

const Cells kTrafficHead = {"communication per step", "operation", "where", "sent per device", "time", "exposed"};

// One line: whether the run fits in memory, step time, tokens/s, MFU.
std::string memory_fit_line(const plan::Estimate& e, const ResolvedPlan& p) {
  const plan::MemoryFit fit = plan::memory_fit(e.memory, p.cluster, p.policy);
  const std::string memory = fit.capacity > 0 ? fmt::format("{} of {}", gigabytes(fit.needed), gigabytes(fit.capacity))
                                              : gigabytes(fit.needed);
  return fmt::format("{}: {} {}; step {}, {} tokens/s, MFU {:.1f} %{}", e.fits ? "fits" : "does not fit", memory,
                     fit.whole_machine ? fmt::format("for all {} ranks", p.policy.world()) : "per device",
                     seconds(e.step_s), plan::grouped(e.tokens_per_s), 100 * e.mfu,
                     e.fits ? "" : " with enough memory");
}

// One line: the software and the cluster that the estimate is for, and which of these are defaults.
std::string profile_line(const ResolvedPlan& p, const PlanInputs& inputs) {
  const plan::Software& software = plan::software_row(p.policy.software);
  const auto origin = [](bool given, const char* option) {
    return given ? std::string() : fmt::format(" (default; {} changes it)", option);
  };
  return fmt::format("assumes: software {}{}: {}; cluster {}: {} x {} {}; precision {}{}", software.name,
                     origin(!inputs.software.empty() || !inputs.run.empty(), "--software"), software.help,
                     p.cluster.name, p.cluster.num_nodes, p.cluster.per_node, p.cluster.processor.name,
                     p.policy.precision, origin(!inputs.precision.empty() || !inputs.run.empty(), "--precision"));
}

Json profile_json(const ResolvedPlan& p) {
  return {{"software", plan::software_row(p.policy.software).name},
          {"cluster", p.cluster.name},
          {"nodes", p.cluster.num_nodes},
          {"per_node", p.cluster.per_node},
          {"processor", p.cluster.processor.name},
          {"precision", p.policy.precision}};
}

std::vector<std::string> rates(const plan::Estimate& e, const ResolvedPlan& p) {
  return {
      fmt::format("step {}: 80 % of such predictions lie within {} to {}", seconds(e.step_s), seconds(e.low_s),
                  seconds(e.high_s)),
      fmt::format("{} tokens/s, {:.1f} per device", plan::grouped(e.tokens_per_s), e.tokens_per_s / p.policy.world()),
      fmt::format("{:.1f} TFLOP/s per device; MFU {:.1f} %, HFU {:.1f} % (MFU: model FLOPs, half of attention under "
                  "a causal mask; HFU: includes recomputed FLOPs)",
                  e.tflops_per_gpu, 100 * e.mfu, 100 * e.hfu)};
}

std::string cost_line(const plan::TrainingCost& c, double tokens, const plan::Cluster& cluster) {
  using plan::grouped;
  return fmt::format("{:.3g} tokens: {} steps, {:.1f} days, {} device-hours{}{}{}", tokens, grouped(c.steps),
                     c.hours / 24, grouped(c.gpu_hours), c.price > 0 ? fmt::format(", ${}", grouped(c.price)) : "",
                     c.energy_kwh > 0 ? fmt::format(", {} MWh", grouped(c.energy_kwh / 1e3)) : "",
                     cluster.mtbf_hours > 0 ? fmt::format(", goodput {:.3f}", c.goodput) : "");
}

std::string head_line(const ResolvedPlan& p, const plan::Estimate& e) {
  return fmt::format(
      "{}: {} parameters{}, sequences of {}; {}", p.shape.name, plan::short_count(e.parameters),
      e.active_parameters < e.parameters ? fmt::format(" ({} active)", plan::short_count(e.active_parameters)) : "",
      p.shape.seq, plan::describe(p.policy));
}

// Picture of the simulated step as HTML. If the schedule cannot be simulated, the text gives the reason.
std::string timeline_of(const ResolvedPlan& p) {
  constexpr int64_t kMostActions = 2000;
  if (p.policy.num_micro_batches() * p.policy.pp * p.policy.interleave * 2 > kMostActions)
    return "<p>Too many micro-batches to draw; <code>plan simulate --trace</code> writes them for Perfetto.</p>";
  try {
    Json trace;
    plan::simulate_step(plan::step_input(p.shape, p.cluster, p.policy), &trace);
    return timeline_picture(trace) +
           "<p>One simulated step. Forward is blue, backward orange; messages and reductions are below.</p>";
  } catch (const UsageError& error) {
    return fmt::format("<p>No timeline: {}</p>", error.what());
  }
}

std::string page_of(const ResolvedPlan& p, const plan::Estimate& e, const std::vector<std::string>& summary) {
  std::vector<PageSection> sections;
  sections.push_back({"Summary", html_list(summary) + html_list(e.reasons)});
  sections.push_back({"Memory", memory_picture(e.stages, p.cluster.processor.memory_bytes) +
                                    html_table(kMemoryHead, memory_rows(e.stages, e.memory.stage))});
  sections.push_back({"Time", time_picture(e) + html_table({"part", "time", "share of the step"}, time_rows(e))});
  sections.push_back({"Timeline of the pipeline", timeline_of(p)});
  sections.push_back({"Communication", html_table(kTrafficHead, traffic_rows(e))});
  if (!e.assumed.empty()) sections.push_back({"Assumed", html_list(e.assumed)});
  return html_page(fmt::format("{} on {}", p.shape.name, p.cluster.name), sections);
}

void list_all() {
  std::vector<Cells> rows;
  for (const plan::ClusterRow& row : plan::built_in_catalog().clusters())
    rows.push_back({row.name, std::to_string(row.cluster.size()), row.help});
  fmt::print("{}\n", text_table({"cluster", "devices", "description"}, rows));
  rows.clear();
  for (const plan::ProcessorRow& row : plan::built_in_catalog().processors()) {
    const plan::Processor& p = row.processor;
    rows.push_back({row.name, fmt::format("{:.1f}", std::max({p.bf16_flops, p.fp16_flops, p.fp32_flops}) / 1e12),
                    fmt::format("{:.1f}", p.memory_bytes / (1 << 30)), fmt::format("{:.0f}", p.memory_bandwidth / 1e9),
                    row.inside, fmt::format("{:.0f}", row.across_gbps)});
  }
  fmt::print(
      "{}\n",
      text_table({"device", "16-bit TFLOP/s", "memory GiB", "memory GB/s", "link in a node", "network Gb/s"}, rows));
  rows.clear();
  for (const plan::Software& row : plan::software()) rows.push_back({std::string(row.name), std::string(row.help)});
  fmt::print("{}", text_table({"software", "description"}, rows));
  std::vector<std::string_view> presets;
  for (const plan::CatalogModel& row : plan::built_in_catalog().models()) presets.push_back(row.name);
  for (const model::Preset& row : model::presets())
    if (!plan::built_in_catalog().find_model(row.name)) presets.push_back(row.name);
  fmt::print("\nmodels: {}\n", fmt::join(presets, ", "));
}

int run_plan_estimate(const EstimateOptions& o) {
  if (o.list) {
    list_all();
    return static_cast<int>(ExitCode::done);
  }
  const ResolvedPlan p = read_plan_inputs(o.inputs);
  plan::check(p.shape, p.cluster, p.policy);
  plan::Estimate e = plan::estimate(p.shape, p.cluster, p.policy);
  e.stages = plan::stage_memories(p.shape, p.cluster, p.policy);
  if (!e.fits)
    for (const plan::Suggestion& one : plan::suggestions(p.shape, p.cluster, p.policy))
      e.reasons.push_back(
          fmt::format("{} would fit: {}, step time {}", one.change, gigabytes(one.memory_bytes), seconds(one.step_s)));
  e.assumed.insert(e.assumed.begin(), p.assumed.begin(), p.assumed.end());
  std::vector<std::string> summary = {memory_fit_line(e, p), profile_line(p, o.inputs), head_line(p, e)};
  const size_t num_head = summary.size();
  for (const std::string& line : rates(e, p)) summary.push_back(line);
  Json report = to_json(e);
  report["layout"] = to_json(p.policy);
  report["profile"] = profile_json(p);
  if (!o.tokens.empty()) {
    const double tokens = parse_tokens(o.tokens, e.parameters);
    const plan::TrainingCost cost = plan::cost_of(e, p.cluster, p.policy, p.shape, tokens);
    report["cost"] = to_json(cost);
    report["cost"]["tokens"] = tokens;
    summary.push_back(cost_line(cost, tokens, p.cluster));
  }
  if (!o.json.empty()) write_file(o.json, report.dump(1) + "\n");
  if (!o.html.empty()) write_file(o.html, page_of(p, e, summary));
  if (o.json == "-" || o.html == "-") return static_cast<int>(ExitCode::done);
  for (size_t i = 0; i < num_head; ++i) fmt::print("{}\n", summary[i]);
  for (const std::string& reason : e.reasons) fmt::print("  {}\n", reason);
  fmt::print("\n{}\n", text_table(kMemoryHead, memory_rows(e.stages, e.memory.stage)));
  fmt::print("{}\n", text_table({"time per step", "", "share"}, time_rows(e)));
  if (!e.traffic.empty()) fmt::print("{}\n", text_table(kTrafficHead, traffic_rows(e)));
  for (size_t i = num_head; i < summary.size(); ++i) fmt::print("{}\n", summary[i]);
  if (!e.assumed.empty()) fmt::print("assumed: {}\n", fmt::join(e.assumed, "; "));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_plan_estimate(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<EstimateOptions>(app, chosen, run_plan_estimate);
  add_plan_inputs(app, o->inputs);
  app.add_option("--tokens", o->tokens,
                 "also estimate the cost of training on N tokens, for example 300B or chinchilla")
      .type_name("N");
  app.add_flag("--list", o->list, "list clusters, devices, software and models");
  app.add_option("--json", o->json, "write the report as JSON; - is stdout").type_name("FILE");
  app.add_option("--html", o->html, "write an HTML page: memory, timeline, traffic").type_name("FILE");
}

}  // namespace esp::app
