// espalier lab ps: parameter servers with a straggler, run by real ranks, and the order of pushes in virtual time.
//
// Workers and servers are threads of this process. They minimise a quadratic with a known minimum. A worker sleeps
// instead of computing, so its speed does not depend on the number of cores. All modes run for the same time.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_ps.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/sync/ps/virtual_time.h"

namespace esp::app {
namespace {

std::vector<ModeRun> run_modes(const PsLabOptions& o) {
  std::vector<ModeRun> runs(3);
  runs[0].name = runs[0].mode = "sync";
  runs[1].mode = "ssp";
  runs[1].staleness = o.staleness;
  runs[1].name = fmt::format("ssp, bound {}", o.staleness);
  runs[2].name = runs[2].mode = "async";
  for (ModeRun& run : runs) run_mode(o, run);
  return runs;
}

// Steps per second if all workers were as fast as the fast ones.
double ideal(const PsLabOptions& o) {
  return o.workers * 1e3 / o.step_ms;
}

double expected(const PsLabOptions& o, const ModeRun& run) {
  std::vector<double> times(static_cast<size_t>(o.workers), o.step_ms);
  times.back() *= o.slow;
  const sync::ClockMode pace = run.mode == "sync"  ? sync::ClockMode::sync
                               : run.mode == "ssp" ? sync::ClockMode::ssp
                                                   : sync::ClockMode::async;
  const sync::ClockResult simulated = sync::simulate_clocks(times, o.seconds * 1e3, pace, run.staleness);
  int64_t sum = 0;
  for (const int64_t one : simulated.steps) sum += one;
  return static_cast<double>(sum) / o.seconds;
}

const std::vector<sync::PsLayerCost> kThreeLayers = {{1, 1, 0.5, 0.5}, {1, 1, 0.5, 0.5}, {1, 1, 2, 2}};

sync::PushResult pushes(bool by_priority) {
  sync::PushPlan plan;
  plan.by_priority = by_priority;
  return sync::simulate_pushes(kThreeLayers, plan);
}

std::string schedule_text(const char* name, const sync::PushResult& run) {
  std::string link(static_cast<size_t>(run.time), '.'), compute = link;
  for (int t = 0; t < 3; ++t) compute[static_cast<size_t>(t)] = static_cast<char>('3' - t);
  for (size_t l = 0; l < 3; ++l) compute[static_cast<size_t>(run.forward_begins[l])] = static_cast<char>('1' + l);
  for (const sync::ScheduledTransfer& one : run.transfers)
    link[static_cast<size_t>(one.begin)] = static_cast<char>('1' + one.layer);
  return fmt::format("  {:<9} computes  {}\n  {:<9} link      {}   {} units\n", name, compute, "", link, run.time);
}

std::string table_of(const PsLabOptions& o, const std::vector<ModeRun>& runs) {
  std::vector<Cells> rows;
  for (const ModeRun& run : runs)
    rows.push_back({run.name, fmt::format("{:.0f}", run.steps_per_s()), fmt::format("{:.0f}", expected(o, run)),
                    fmt::format("{:.0f} %", 100 * run.steps_per_s() / ideal(o)), std::to_string(run.steps.front()),
                    std::to_string(run.steps.back()), fmt::format("{:.2e}", run.error)});
  return text_table(
      {"mode", "steps/s", "virtual time", "vs all workers fast", "steps, fast worker", "steps, slow worker", "error"},
      rows);
}

BarChart chart_of(const PsLabOptions& o, const std::vector<ModeRun>& runs) {
  BarChart chart{fmt::format("Worker steps per second, one of {} workers {:g} times slower", o.workers, o.slow),
                 {"steps/s"},
                 "virtual time",
                 {}};
  for (const ModeRun& run : runs)
    chart.bars.push_back({run.name, {run.steps_per_s()}, expected(o, run), fmt::format("error {:.1e}", run.error)});
  return chart;
}

Json report_of(const PsLabOptions& o, const std::vector<ModeRun>& runs) {
  Json rows = Json::array();
  for (const ModeRun& run : runs)
    rows.push_back({{"mode", run.mode},
                    {"staleness", run.staleness},
                    {"steps", run.steps},
                    {"steps_per_s", run.steps_per_s()},
                    {"virtual_steps_per_s", expected(o, run)},
                    {"of_ideal", run.steps_per_s() / ideal(o)},
                    {"error", run.error},
                    {"note", run.note}});
  Json thresholds = Json::array();
  for (int delay = 0; delay < 4; ++delay) thresholds.push_back(sync::largest_stable(delay));
  return {{"workers", o.workers},
          {"servers", o.servers},
          {"slow", o.slow},
          {"rows", rows},
          {"fifo_units", pushes(false).time},
          {"priority_units", pushes(true).time},
          {"largest_stable", thresholds}};
}

void check(const PsLabOptions& o) {
  if (o.workers < 2 || o.workers > 64) throw UsageError(fmt::format("--workers: got {}; expected 2 to 64", o.workers));
  if (o.servers < 1 || o.servers > o.workers)
    throw UsageError(fmt::format("--servers: got {}; expected 1 to {}, the number of workers", o.servers, o.workers));
  if (!(o.step_ms > 0 && o.slow >= 1 && o.seconds > 0 && o.seconds <= 600))
    throw UsageError(fmt::format(
        "got --step-ms {}, --slow {}, --seconds {}; expected --step-ms > 0, --slow >= 1, --seconds in (0, 600]",
        o.step_ms, o.slow, o.seconds));
  if (o.staleness < 1)
    throw UsageError(fmt::format(
        "--staleness: got {}; expected a bound of at least 1 step; a bound of 0 is the mode sync", o.staleness));
}

Findings findings_of(const PsLabOptions& o, const std::vector<ModeRun>& runs) {
  Findings findings;
  findings.exact("three layers, FIFO order of pushes", "10 units", 10, pushes(false).time, "units");
  findings.exact("three layers, priority order of pushes", "8 units", 8, pushes(true).time, "units");
  for (const ModeRun& run : runs)
    findings.show(fmt::format("{}: worker steps per second, one of {} workers slower", run.name, o.workers),
                  run.mode == "sync" ? "pace of the slowest" : "", fmt::format("{:.0f}", expected(o, run)),
                  fmt::format("{:.0f}", run.steps_per_s()));
  return findings;
}

int run_lab_ps(const PsLabOptions& o) {
  check(o);
  const std::vector<ModeRun> runs = run_modes(o);
  const BarChart chart = chart_of(o, runs);
  std::string text = fmt::format(
      "{} workers, {} of which are also servers; a step takes {:g} ms, on the last worker {:g} ms; {:g} s per "
      "mode\n\n{}",
      o.workers, o.servers, o.step_ms, o.step_ms * o.slow, o.seconds, table_of(o, runs));
  text +=
      "The error is the mean squared distance from the minimum at the end. Virtual time excludes communication.\n\n";
  text += bars_text(chart, 50) + "\n";
  for (const ModeRun& run : runs)
    if (!run.note.empty()) text += fmt::format("  {}: {}\n", run.name, run.note);
  text += fmt::format(
      "\nThree layers; forward and backward take 1 unit each, push plus pull 1, 1 and 4 units over one link:\n{}{}",
      schedule_text("fifo", pushes(false)), schedule_text("priority", pushes(true)));
  text += "\nLargest stable γa of gradient descent with gradients delayed by τ steps:";
  for (int delay = 0; delay < 4; ++delay) text += fmt::format("  τ = {}: {:.3f}", delay, sync::largest_stable(delay));
  text += "\n";
  return finish_lab({o.json, o.out}, "ps", text, report_of(o, runs), bars_svg(chart), findings_of(o, runs));
}

}  // namespace

void define_lab_ps(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<PsLabOptions>(app, chosen, run_lab_ps);
  app.add_option("--workers", o->workers, "number of workers [4]").type_name("W");
  app.add_option("--servers", o->servers, "workers that are also servers [2]").type_name("K");
  app.add_option("--step-ms", o->step_ms, "compute time of a step [10]").type_name("MS");
  app.add_option("--slow", o->slow, "slowdown of the last worker [4]").type_name("F");
  app.add_option("--seconds", o->seconds, "seconds per mode [2]").type_name("S");
  app.add_option("--staleness", o->staleness, "staleness bound of the mode ssp [3]").type_name("S");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
