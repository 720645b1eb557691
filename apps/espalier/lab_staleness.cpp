// espalier lab staleness: descent with gradients that are τ steps old, and the staleness of asynchronous ranks.
//
// x ← x − c·x with the x of τ steps before does not grow while c ≤ 2·sin(π/(2(2τ+1))): 2, 1, 0.618, 0.445 for τ = 0 to
// 3. Servers that apply each of W workers' pushes on arrival take steps of γ/W with gradients about W−1 pushes old.
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

struct StalenessLab {
  int most = 3, workers = 4;
  double seconds = 1, step_ms = 4;
  std::string json, out;
};

// The largest stable c, by bisection: whether |x| after many steps is below its start.
double tried_threshold(int delay) {
  double low = 0, high = 4;
  for (int i = 0; i < 60; ++i) {
    const double c = (low + high) / 2;
    (sync::delayed_descent(c, delay, 200000) <= 1.5 ? low : high) = c;
  }
  return low;
}

std::vector<Series> curves(int most) {
  std::vector<Series> series;
  for (int delay = 1; delay <= most; ++delay)
    for (const double part : {0.9, 1.1}) {
      Series one{fmt::format("τ = {}, {:g} of the threshold", delay, part), {}, part > 1};
      for (int64_t step = 1; step <= 128; ++step)
        one.points.emplace_back(static_cast<double>(step),
                                std::max(1e-6, sync::delayed_descent(part * sync::largest_stable(delay), delay, step)));
      series.push_back(std::move(one));
    }
  return series;
}

// Parses "pushes by staleness 0: 286, 1: 59, …": the mean staleness.
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
  return std::isfinite(error) ? fmt::format("{:.1e}", error) : "beyond all numbers";
}

struct Asynchronous {
  double lr = 0, of_threshold = 0, mean = 0;
  ModeRun run;
};

std::vector<Asynchronous> run_asynchronous(const StalenessLab& o) {
  std::vector<Asynchronous> all;
  for (const double part : {0.25, 0.5, 2.0}) {
    Asynchronous one;
    one.of_threshold = part;
    one.lr = part * o.workers * sync::largest_stable(o.workers - 1);
    PsLab lab;
    lab.workers = o.workers, lab.servers = 1, lab.slow = 1, lab.seconds = o.seconds, lab.step_ms = o.step_ms;
    lab.lr = one.lr, lab.noise = 0, lab.elements = 64;
    one.run.name = one.run.mode = "async";
    run_mode(lab, one.run);
    one.mean = mean_staleness(one.run.note);
    all.push_back(std::move(one));
  }
  return all;
}

int run_lab_staleness(const StalenessLab& o) {
  if (o.most < 1 || o.most > 8 || o.workers < 2 || o.workers > 32 || !(o.seconds > 0) || !(o.step_ms > 0))
    throw UsageError("expected --most from 1 to 8, --workers from 2 to 32, --seconds and --step-ms > 0");
  constexpr const char* kLecture[] = {"2", "1", "0.618", "0.445"};
  Findings findings;
  Json thresholds = Json::array(), rows = Json::array();
  for (int delay = 0; delay <= o.most; ++delay) {
    const double formula = sync::largest_stable(delay), tried = tried_threshold(delay);
    findings.within(fmt::format("largest γa with gradients {} steps old", delay), delay < 4 ? kLecture[delay] : "",
                    formula, tried, 1e-4);
    thresholds.push_back({{"delay", delay}, {"formula", formula}, {"tried", tried}});
  }
  std::vector<Cells> cells;
  for (const Asynchronous& one : run_asynchronous(o)) {
    cells.push_back({fmt::format("{:.2f}", one.lr), fmt::format("{:g}", one.of_threshold),
                     fmt::format("{:.0f}", one.run.steps_per_s()), fmt::format("{:.2f}", one.mean),
                     distance(one.run.error)});
    findings.show(fmt::format("{} asynchronous workers at {:g} of the threshold: distance from the minimum", o.workers,
                              one.of_threshold),
                  "", one.of_threshold < 1 ? "falls" : "grows", distance(one.run.error) + " (began at 1)");
    rows.push_back({{"lr", one.lr},
                    {"of_threshold", one.of_threshold},
                    {"mean_staleness", one.mean},
                    {"error", one.run.error},
                    {"note", one.run.note}});
  }
  const std::string text = fmt::format(
      "{} workers of equal pace push to one server, which applies each push as it comes; ½‖x − 1‖², {:g} s each\n\n{}"
      "The threshold is that of a constant delay of W − 1 = {}; the mean counts pushes between a pull and its push.\n",
      o.workers, o.seconds,
      text_table({"γ", "of the threshold", "steps/s", "staleness, mean", "distance² at the end"}, cells),
      o.workers - 1);
  const Json report = {{"thresholds", thresholds}, {"workers", o.workers}, {"asynchronous", rows}};
  return finish_lab(
      {o.json, o.out}, "staleness", text, report,
      draw_svg("Descent with old gradients, either side of the threshold", "steps", "|x|", curves(o.most), Axes::plain),
      findings);
}

}  // namespace

void define_lab_staleness(const Arguments& app, Chosen& chosen) {
  auto o = keep<StalenessLab>(app, chosen, run_lab_staleness);
  app.add_option("--most", o->most, "oldest gradients, in steps [3]").type_name("T");
  app.add_option("--workers", o->workers, "of the asynchronous runs [4]").type_name("W");
  app.add_option("--seconds", o->seconds, "of each of them [1]").type_name("S");
  app.add_option("--step-ms", o->step_ms, "what a step takes to compute [4]").type_name("MS");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
