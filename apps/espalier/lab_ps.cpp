// espalier lab ps: parameter servers with a straggler, run by real ranks, and the order of pushes in virtual time.
//
// Workers are threads of this process with servers beside them, over a quadratic with known minimum; a worker computes
// by sleeping, so its pace is independent of the number of cores. All modes run for the same time.
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

std::vector<ModeRun> run_modes(const PsLab& o) {
  std::vector<ModeRun> runs(3);
  runs[0].name = runs[0].mode = "sync";
  runs[1].mode = "ssp";
  runs[1].staleness = o.staleness;
  runs[1].name = fmt::format("ssp, bound {}", o.staleness);
  runs[2].name = runs[2].mode = "async";
  for (ModeRun& run : runs) run_mode(o, run);
  return runs;
}

// All workers at the speed of the fast ones.
double ideal(const PsLab& o) {
  return o.workers * 1e3 / o.step_ms;
}

double expected(const PsLab& o, const ModeRun& run) {
  std::vector<double> times(static_cast<size_t>(o.workers), o.step_ms);
  times.back() *= o.slow;
  const sync::Pace pace = run.mode == "sync"  ? sync::Pace::sync
                          : run.mode == "ssp" ? sync::Pace::ssp
                                              : sync::Pace::async;
  const sync::PaceResult simulated = sync::run_paces(times, o.seconds * 1e3, pace, run.staleness);
  int64_t sum = 0;
  for (const int64_t one : simulated.steps) sum += one;
  return static_cast<double>(sum) / o.seconds;
}

const std::vector<sync::PsLayerCost> kThreeLayers = {{1, 1, 0.5, 0.5}, {1, 1, 0.5, 0.5}, {1, 1, 2, 2}};

sync::PushResult pushes(bool by_priority) {
  sync::PushPlan plan;
  plan.by_priority = by_priority;
  return sync::run_pushes(kThreeLayers, plan);
}

std::string schedule_text(const char* name, const sync::PushResult& run) {
  std::string link(static_cast<size_t>(run.time), '.'), compute = link;
  for (int t = 0; t < 3; ++t) compute[static_cast<size_t>(t)] = static_cast<char>('3' - t);
  for (size_t l = 0; l < 3; ++l) compute[static_cast<size_t>(run.forward_begins[l])] = static_cast<char>('1' + l);
  for (const sync::ScheduledTransfer& one : run.transfers)
    link[static_cast<size_t>(one.begin)] = static_cast<char>('1' + one.layer);
  return fmt::format("  {:<9} computes  {}\n  {:<9} link      {}   {} units\n", name, compute, "", link, run.time);
}

std::string table_of(const PsLab& o, const std::vector<ModeRun>& runs) {
  std::vector<Cells> rows;
  for (const ModeRun& run : runs)
    rows.push_back({run.name, fmt::format("{:.0f}", run.steps_per_s()), fmt::format("{:.0f}", expected(o, run)),
                    fmt::format("{:.0f} %", 100 * run.steps_per_s() / ideal(o)), std::to_string(run.steps.front()),
                    std::to_string(run.steps.back()), fmt::format("{:.2e}", run.error)});
  return text_table({"mode", "steps/s", "in virtual time", "of all fast", "a fast worker", "the slow one", "error"},
                    rows);
}

BarChart chart_of(const PsLab& o, const std::vector<ModeRun>& runs) {
  BarChart chart{fmt::format("Worker steps a second, one of {} workers {:g} times slower", o.workers, o.slow),
                 {"steps/s"},
                 "virtual time",
                 {}};
  for (const ModeRun& run : runs)
    chart.bars.push_back({run.name, {run.steps_per_s()}, expected(o, run), fmt::format("error {:.1e}", run.error)});
  return chart;
}

Json report_of(const PsLab& o, const std::vector<ModeRun>& runs) {
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

void check(const PsLab& o) {
  if (o.workers < 2 || o.workers > 64) throw UsageError(fmt::format("--workers: got {}; expected 2 to 64", o.workers));
  if (o.servers < 1 || o.servers > o.workers)
    throw UsageError(fmt::format("--servers: got {}; expected 1 to {}, the number of workers", o.servers, o.workers));
  if (!(o.step_ms > 0 && o.slow >= 1 && o.seconds > 0 && o.seconds <= 600))
    throw UsageError("expected --step-ms > 0, --slow >= 1, --seconds up to 600");
  if (o.staleness < 1)
    throw UsageError(fmt::format("--staleness: got {}; expected at least 1 clock (0 is sync)", o.staleness));
}

Findings findings_of(const PsLab& o, const std::vector<ModeRun>& runs) {
  Findings findings;
  findings.exact("three layers, pushed as they come", "10 units", 10, pushes(false).time, "units");
  findings.exact("three layers, what forward needs first", "8 units", 8, pushes(true).time, "units");
  for (const ModeRun& run : runs)
    findings.show(fmt::format("{}: worker steps a second, one of {} slower", run.name, o.workers),
                  run.mode == "sync" ? "pace of the slowest" : "", fmt::format("{:.0f}", expected(o, run)),
                  fmt::format("{:.0f}", run.steps_per_s()));
  return findings;
}

int run_lab_ps(const PsLab& o) {
  check(o);
  const std::vector<ModeRun> runs = run_modes(o);
  const BarChart chart = chart_of(o, runs);
  std::string text = fmt::format(
      "{} workers, {} of them serving too; a step takes {:g} ms, on the last worker {:g} ms; {:g} s each\n\n{}",
      o.workers, o.servers, o.step_ms, o.step_ms * o.slow, o.seconds, table_of(o, runs));
  text += "The error is the mean square distance from the minimum at the end. Virtual time knows no communication.\n\n";
  text += bars_text(chart, 50) + "\n";
  for (const ModeRun& run : runs)
    if (!run.note.empty()) text += fmt::format("  {}: {}\n", run.name, run.note);
  text += fmt::format(
      "\nThree layers, forward and backward 1 unit each, pushed and pulled in 1, 1 and 4 units over one link:\n{}{}",
      schedule_text("fifo", pushes(false)), schedule_text("priority", pushes(true)));
  text += "\nLargest γa for which descent with gradients τ steps old does not grow:";
  for (int delay = 0; delay < 4; ++delay) text += fmt::format("  τ = {}: {:.3f}", delay, sync::largest_stable(delay));
  text += "\n";
  return finish_lab({o.json, o.out}, "ps", text, report_of(o, runs), bars_svg(chart), findings_of(o, runs));
}

}  // namespace

void define_lab_ps(const Arguments& app, Chosen& chosen) {
  auto o = keep<PsLab>(app, chosen, run_lab_ps);
  app.add_option("--workers", o->workers, "how many [4]").type_name("W");
  app.add_option("--servers", o->servers, "of them, that serve too [2]").type_name("K");
  app.add_option("--step-ms", o->step_ms, "what a step takes to compute [10]").type_name("MS");
  app.add_option("--slow", o->slow, "times longer on the last worker [4]").type_name("F");
  app.add_option("--seconds", o->seconds, "of each mode [2]").type_name("S");
  app.add_option("--staleness", o->staleness, "bound of ssp [3]").type_name("S");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
