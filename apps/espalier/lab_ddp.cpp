// espalier lab ddp: one model on an increasing number of ranks, with equal work per rank (weak scaling).
//
// Jobs of all sizes are started first and measured in turn, round after round, so that disturbances of the machine
// affect all of them. Each rank computes with one thread. More ranks than cores are allowed: they share the cores, and
// the table also relates them to the cores.
#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_comm.h"
#include "apps/espalier/bench_train_candidate.h"
#include "apps/espalier/command.h"
#include "apps/espalier/core_state.h"
#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/model/model.h"
#include "esp/obs/temporary_folder.h"
#include "esp/sync/strategy.h"
#include "esp/sync/strategy_names.h"

namespace esp::app {
namespace {

struct DdpLab {
  std::string model = "gpt-6x384", sync = "allreduce", json, out;
  std::vector<int> ranks = {1, 2, 4, 8};
  int64_t batch = 1, seq = 0;
  int steps = 3, rounds = 3;
};

struct Point {
  int ranks = 1;
  double tokens_per_s = 0, step_ms = 0;
  double efficiency = 0;  // relative to the same multiple of one rank
  double of_cores = 0;    // the same, relative to the number of cores
  std::vector<double> exposed_by_round, waited_by_round;
  double exposed_ms = 0, waited_ms = 0;  // per step
  std::map<int, int> slowest;            // rank: steps in which it was the slowest

  std::pair<int, int> most_often_slowest() const {
    const auto most = std::max_element(slowest.begin(), slowest.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == slowest.end() ? std::pair<int, int>{0, 0} : std::pair<int, int>(*most);
  }
};

TrainCase case_of(const DdpLab& options, int ranks, const std::string& tokens) {
  TrainCase it;
  it.name = options.model;
  it.model = model::preset(options.model).config;
  it.seq = options.seq > 0 ? options.seq : it.model.seq_len;
  it.model.seq_len = it.seq;
  it.batch = options.batch * ranks;
  it.ranks = ranks;
  it.sync = options.sync;
  it.tokens = tokens;
  return it;
}

void note_round(Point& point, const Candidate& candidate) {
  point.exposed_by_round.push_back(candidate.mean_of("exposed"));
  point.waited_by_round.push_back(candidate.mean_of("waited"));
  for (double rank : parse_times(candidate.answer[0].at("slowest"))) ++point.slowest[static_cast<int>(rank)];
}

std::vector<Point> measure(const DdpLab& options) {
  const obs::TemporaryFolder folder;
  const TrainCase largest = case_of(options, options.ranks.back(), "");
  const std::string tokens = write_tokens(folder.path(), largest.model, largest.tokens_per_step());
  Switchboard board;
  std::vector<Candidate> jobs;
  for (int ranks : options.ranks) jobs.push_back(start_trainer("espalier", case_of(options, ranks, tokens), board));
  for (Candidate& job : jobs) ask_steps(job, 1);
  std::vector<Point> points(jobs.size());
  for (int round = 0; round < options.rounds; ++round)
    for (size_t i = 0; i < jobs.size(); ++i) {
      const size_t turn = (i + static_cast<size_t>(round)) % jobs.size();
      visit(jobs[turn], options.steps);
      note_round(points[turn], jobs[turn]);
    }
  for (size_t i = 0; i < jobs.size(); ++i) {
    Point& point = points[i];
    const double step_s = median(jobs[i].step_s);
    point.ranks = jobs[i].it.ranks;
    point.step_ms = step_s * 1e3;
    point.tokens_per_s = static_cast<double>(jobs[i].it.tokens_per_step()) / step_s;
    const double speed = speed_ratio(jobs[i], jobs[0]);
    point.efficiency = speed / point.ranks;
    point.of_cores = speed / std::min(point.ranks, usable_cores());
    point.exposed_ms = median(point.exposed_by_round);
    point.waited_ms = median(point.waited_by_round);
  }
  return points;
}

std::string table_of(const std::vector<Point>& points) {
  std::vector<Cells> rows;
  for (const Point& p : points)
    rows.push_back({std::to_string(p.ranks), fmt::format("{:.0f}", p.tokens_per_s), fmt::format("{:.1f}", p.step_ms),
                    fmt::format("{:.1f} %", 100 * p.efficiency), fmt::format("{:.1f} %", 100 * p.of_cores),
                    fmt::format("{:.1f}", p.exposed_ms), fmt::format("{:.1f} %", 100 * p.exposed_ms / p.step_ms)});
  return text_table({"ranks", "tokens/s", "step ms", "of N × one rank", "of the cores", "exposed ms", "of the step"},
                    rows);
}

std::string stragglers(const std::vector<Point>& points) {
  std::string text;
  for (const Point& p : points) {
    if (p.ranks == 1) continue;
    int steps = 0;
    for (const auto& [rank, times] : p.slowest) steps += times;
    const auto [rank, times] = p.most_often_slowest();
    text += fmt::format("  {} ranks: rank {} was slowest in {} of {} steps; the others waited {:.1f} ms per step\n",
                        p.ranks, rank, times, steps, p.waited_ms);
  }
  return text;
}

BarChart chart_of(const DdpLab& options, const std::vector<Point>& points) {
  BarChart chart{fmt::format("A step of {} on N ranks of this machine, ms", options.model),
                 {"computing", "waiting for communication"},
                 "",
                 {}};
  for (const Point& p : points) {
    const double exposed = std::min(p.exposed_ms, p.step_ms);
    chart.bars.push_back({fmt::format("{} rank{}", p.ranks, p.ranks == 1 ? "" : "s"),
                          {p.step_ms - exposed, exposed},
                          0,
                          fmt::format("{:.0f} tokens/s, {:.0f} % of the cores", p.tokens_per_s, 100 * p.of_cores)});
  }
  return chart;
}

Json report_of(const DdpLab& options, const std::vector<Point>& points) {
  Json rows = Json::array();
  for (const Point& p : points)
    rows.push_back({{"ranks", p.ranks},
                    {"tokens_per_s", p.tokens_per_s},
                    {"step_ms_median", p.step_ms},
                    {"efficiency", p.efficiency},
                    {"efficiency_of_cores", p.of_cores},
                    {"exposed_ms", p.exposed_ms},
                    {"waited_ms", p.waited_ms},
                    {"slowest_rank", p.most_often_slowest().first}});
  return {{"model", options.model},
          {"sync", options.sync},
          {"sequences_per_rank", options.batch},
          {"cores", usable_cores()},
          {"rows", rows}};
}

void check(DdpLab& options) {
  options.sync = sync::strategy_name(options.sync);
  find_row("--sync", sync::strategies(), options.sync);
  if (options.batch < 1 || options.seq < 0 || options.steps < 1 || options.rounds < 1)
    throw UsageError("expected --batch, --seq, --steps and --rounds >= 1");
  for (int ranks : options.ranks)
    if (ranks < 1 || ranks > 64) throw UsageError(fmt::format("--ranks {}: between 1 and 64", ranks));
  options.ranks.push_back(1);  // the baseline of the others
  std::sort(options.ranks.begin(), options.ranks.end());
  options.ranks.erase(std::unique(options.ranks.begin(), options.ranks.end()), options.ranks.end());
}

Findings findings_of(const std::vector<Point>& points) {
  Findings findings;
  for (const Point& p : points)
    findings.show(
        fmt::format("{} rank{}: of N times one rank's tokens/s, of the cores'", p.ranks, p.ranks == 1 ? "" : "s"),
        p.ranks == 1 ? "" : "falls with communication", p.ranks <= usable_cores() ? "100 %" : "cores shared",
        fmt::format("{:.0f} %, {:.0f} %", 100 * p.efficiency, 100 * p.of_cores));
  return findings;
}

int run_lab_ddp(const DdpLab& asked) {
  DdpLab options = asked;
  check(options);
  const CoreState state = probe_cores();
  const std::vector<Point> points = measure(options);
  const BarChart chart = chart_of(options, points);
  const TrainCase one = case_of(options, 1, "");
  std::string text = fmt::format(
      "{} with sync.method = {}: every rank has one thread and {} × {} tokens; {} cores (hand-over {})\n\n{}",
      options.model, options.sync, options.batch, one.seq, usable_cores(), state.name(), table_of(points));
  if (points.back().ranks > usable_cores())
    text += fmt::format(
        "More ranks than the {} cores take turns on them: `of the cores` is then the figure to read, and what they "
        "wait\n"
        "for is mostly each other's turns.\n",
        usable_cores());
  text += "Exposed is the time in which a rank only waited for communication, the mean over ranks.\n\n";
  text += bars_text(chart, 50);
  if (points.size() > 1) text += "\nStragglers:\n" + stragglers(points);
  return finish_lab({options.json, options.out}, "ddp", text, report_of(options, points), bars_svg(chart),
                    findings_of(points));
}

}  // namespace

void define_lab_ddp(const Arguments& app, Chosen& chosen) {
  auto o = keep<DdpLab>(app, chosen, run_lab_ddp);
  app.add_option("--ranks", o->ranks, "how many, one after the other [1,2,4,8]").delimiter(',').type_name("N");
  app.add_option("--model", o->model, "preset [gpt-6x384]").type_name("NAME");
  app.add_option("--batch", o->batch, "sequences of each rank [1]").type_name("B");
  app.add_option("--seq", o->seq, "tokens per sequence [the model's]").type_name("T");
  app.add_option("--sync", o->sync, "how the ranks agree [allreduce]").type_name("METHOD");
  app.add_option("--steps", o->steps, "steps per round [3]").type_name("N");
  app.add_option("--rounds", o->rounds, "visits to each job [3]").type_name("N");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
