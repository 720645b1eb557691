// espalier lab staleness: gradient descent with gradients delayed by τ steps, and the staleness of asynchronous ranks.
//
// The iteration x ← x − c·x′, where x′ is the value of x τ steps earlier, is stable for c ≤ 2·sin(π/(2(2τ+1))). That is
// 2, 1, 0.618, 0.445 for τ = 0 to 3. A server that applies every push of W workers on arrival takes steps of size γ/W
// with gradients that are about W−1 pushes old.
#include <cmath>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_picture.h"
#include "apps/espalier/lab_ps.h"
#include "apps/espalier/lab_table.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/sync/ps/virtual_time.h"

namespace esp::app {
namespace {

struct StalenessLabOptions {
  int most = 3, workers = 4;
  double seconds = 1, step_ms = 4;
  std::string json, out;
};

// The largest stable c, by bisection. Stable means that |x| does not grow over many steps.
double measured_threshold(int delay) {
  double low = 0, high = 4;
  for (int i = 0; i < 60; ++i) {
    const double c = (low + high) / 2;
    (sync::delayed_descent(c, delay, 200000) <= 1.5 ? low : high) = c;
  }
  return low;
}

std::vector<PictureSeries> curves(int most) {
  std::vector<PictureSeries> series;
  for (int delay = 1; delay <= most; ++delay)
    for (const double part : {0.9, 1.1}) {
      PictureSeries run{fmt::format("τ = {}, {:g} × threshold", delay, part), {}, part > 1};
      for (int64_t step = 1; step <= 128; ++step)
        run.points.emplace_back(static_cast<double>(step),
                                std::max(1e-6, sync::delayed_descent(part * sync::largest_stable(delay), delay, step)));
      series.push_back(std::move(run));
    }
  return series;
}

// Mean staleness in a text such as "pushes by staleness 0: 286, 1: 59, …".
double mean_staleness(const std::string& note) {
  const size_t at = note.find("staleness ");
  if (at == note.npos) return 0;
  std::istringstream words(note.substr(at + 10));
  double sum = 0, count = 0, age = 0, times = 0;
  char colon = 0, comma = ',';
  while (comma == ',' && words >> age >> colon >> times) {
    sum += age * times, count += times;
    if (!(words >> comma)) break;
  }
  return count > 0 ? sum / count : 0;
}

std::string distance(double error) {
  return std::isfinite(error) ? fmt::format("{:.1e}", error) : "overflow";
}

struct AsyncRun {
  double lr = 0, of_threshold = 0, mean = 0;
  ModeRun run;
};

std::vector<AsyncRun> run_asynchronous(const StalenessLabOptions& o) {
  std::vector<AsyncRun> all;
  for (const double part : {0.25, 0.5, 2.0}) {
    AsyncRun run;
    run.of_threshold = part;
    run.lr = part * o.workers * sync::largest_stable(o.workers - 1);
    PsLabOptions lab;
    lab.workers = o.workers, lab.servers = 1, lab.slow = 1, lab.seconds = o.seconds, lab.step_ms = o.step_ms;
    lab.lr = run.lr, lab.noise = 0, lab.elements = 64;
    run.run.name = run.run.mode = "async";
    run_mode(lab, run.run);
    run.mean = mean_staleness(run.run.note);
    all.push_back(std::move(run));
  }
  return all;
}

int run_lab_staleness(const StalenessLabOptions& o) {
  if (o.most < 1 || o.most > 8 || o.workers < 2 || o.workers > 32 || !(o.seconds > 0) || !(o.step_ms > 0))
    throw UsageError(fmt::format(
        "got --most {}, --workers {}, --seconds {}, --step-ms {}; expected --most from 1 to 8, --workers from 2 to "
        "32, --seconds and --step-ms > 0",
        o.most, o.workers, o.seconds, o.step_ms));
  constexpr const char* kLecture[] = {"2", "1", "0.618", "0.445"};
  Findings findings;
  Json thresholds = Json::array(), rows = Json::array();
  for (int delay = 0; delay <= o.most; ++delay) {
    const double formula = sync::largest_stable(delay), tried = measured_threshold(delay);
    findings.within(fmt::format("largest stable γa, gradients delayed by {} steps", delay),
                    delay < 4 ? kLecture[delay] : "", formula, tried, 1e-4);
    thresholds.push_back({{"delay", delay}, {"formula", formula}, {"tried", tried}});
  }
  std::vector<Cells> cells;
  for (const AsyncRun& run : run_asynchronous(o)) {
    cells.push_back({fmt::format("{:.2f}", run.lr), fmt::format("{:g}", run.of_threshold),
                     fmt::format("{:.0f}", run.run.steps_per_s()), fmt::format("{:.2f}", run.mean),
                     distance(run.run.error)});
    findings.show(fmt::format("{} asynchronous workers at {:g} × threshold: distance from the minimum", o.workers,
                              run.of_threshold),
                  "", run.of_threshold < 1 ? "falls" : "grows", distance(run.run.error) + " (initially 1)");
    rows.push_back({{"lr", run.lr},
                    {"of_threshold", run.of_threshold},
                    {"mean_staleness", run.mean},
                    {"error", run.run.error},
                    {"note", run.run.note}});
  }
  const std::string text = fmt::format(
      "{} equally fast workers push to one server, which applies each push on arrival; ½‖x − 1‖², {:g} s per row\n\n{}"
      "The threshold is that of a constant delay of W − 1 = {}. Staleness: pushes applied between a worker's pull and "
      "push.\n",
      o.workers, o.seconds, text_table({"γ", "γ / threshold", "steps/s", "mean staleness", "final distance²"}, cells),
      o.workers - 1);
  const Json report = {{"thresholds", thresholds}, {"workers", o.workers}, {"asynchronous", rows}};
  return finish_lab({o.json, o.out}, "staleness", text, report,
                    draw_svg("Gradient descent with delayed gradients, below and above the threshold", "steps", "|x|",
                             curves(o.most), Axes::plain),
                    findings);
}

}  // namespace

void define_lab_staleness(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<StalenessLabOptions>(app, chosen, run_lab_staleness);
  app.add_option("--most", o->most, "largest gradient delay, in steps [3]").type_name("T");
  app.add_option("--workers", o->workers, "workers of the asynchronous runs [4]").type_name("W");
  app.add_option("--seconds", o->seconds, "seconds per asynchronous run [1]").type_name("S");
  app.add_option("--step-ms", o->step_ms, "compute time of a step [4]").type_name("MS");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
