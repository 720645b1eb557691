// espalier lab ddp: trains one model on an increasing number of ranks, with equal work per rank (weak scaling).
//
// Jobs of all sizes are started first. They are measured in turn, round after round, so that disturbances of the
// machine affect all of them. Each rank computes with one thread. With more ranks than cores, ranks share the cores;
// the table therefore also shows the efficiency relative to the number of cores.
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

struct DdpLabOptions {
  std::string model = "gpt-6x384", sync = "allreduce", json, out;
  std::vector<int> ranks = {1, 2, 4, 8};
  int64_t batch = 1, seq = 0;
  int steps = 3, rounds = 3;
};

struct ScalingPoint {
  int ranks = 1;
  double tokens_per_s = 0, step_ms = 0;
  double efficiency = 0;  // tokens/s relative to N times one rank
  double of_cores = 0;    // tokens/s relative to min(N, cores) times one rank
  std::vector<double> exposed_by_round, waited_by_round;
  double exposed_ms = 0, waited_ms = 0;  // ms per step
  std::map<int, int> slowest;            // rank → number of steps in which it was the slowest

  std::pair<int, int> most_often_slowest() const {
    const auto most = std::max_element(slowest.begin(), slowest.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == slowest.end() ? std::pair<int, int>{0, 0} : std::pair<int, int>(*most);
  }
};

TrainCase case_of(const DdpLabOptions& options, int ranks, const std::string& tokens) {
  TrainCase spec;
  spec.name = options.model;
  spec.model = model::preset(options.model).config;
  spec.seq = options.seq > 0 ? options.seq : spec.model.seq_len;
  spec.model.seq_len = spec.seq;
  spec.batch = options.batch * ranks;
  spec.ranks = ranks;
  spec.sync = options.sync;
  spec.tokens = tokens;
  return spec;
}

void note_round(ScalingPoint& point, const BenchCandidate& candidate) {
  point.exposed_by_round.push_back(candidate.mean_of("exposed"));
  point.waited_by_round.push_back(candidate.mean_of("waited"));
  for (double rank : parse_times(candidate.answer[0].at("slowest"))) ++point.slowest[static_cast<int>(rank)];
}

std::vector<ScalingPoint> measure(const DdpLabOptions& options) {
  const obs::TemporaryFolder folder;
  const TrainCase largest = case_of(options, options.ranks.back(), "");
  const std::string tokens = write_tokens(folder.path(), largest.model, largest.tokens_per_step());
  RankListener listener;
  std::vector<BenchCandidate> jobs;
  for (int ranks : options.ranks) jobs.push_back(start_trainer("espalier", case_of(options, ranks, tokens), listener));
  for (BenchCandidate& job : jobs) ask_steps(job, 1);
  std::vector<ScalingPoint> points(jobs.size());
  for (int round = 0; round < options.rounds; ++round)
    for (size_t i = 0; i < jobs.size(); ++i) {
      const size_t turn = (i + static_cast<size_t>(round)) % jobs.size();
      visit(jobs[turn], options.steps);
      note_round(points[turn], jobs[turn]);
    }
  for (size_t i = 0; i < jobs.size(); ++i) {
    ScalingPoint& point = points[i];
    const double step_s = median(jobs[i].step_s);
    point.ranks = jobs[i].spec.ranks;
    point.step_ms = step_s * 1e3;
    point.tokens_per_s = static_cast<double>(jobs[i].spec.tokens_per_step()) / step_s;
    const double speed = speed_ratio(jobs[i], jobs[0]);
    point.efficiency = speed / point.ranks;
    point.of_cores = speed / std::min(point.ranks, usable_cores());
    point.exposed_ms = median(point.exposed_by_round);
    point.waited_ms = median(point.waited_by_round);
  }
  return points;
}

std::string table_of(const std::vector<ScalingPoint>& points) {
  std::vector<Cells> rows;
  for (const ScalingPoint& p : points)
    rows.push_back({std::to_string(p.ranks), fmt::format("{:.0f}", p.tokens_per_s), fmt::format("{:.1f}", p.step_ms),
                    fmt::format("{:.1f} %", 100 * p.efficiency), fmt::format("{:.1f} %", 100 * p.of_cores),
                    fmt::format("{:.1f}", p.exposed_ms), fmt::format("{:.1f} %", 100 * p.exposed_ms / p.step_ms)});
  return text_table(
      {"ranks", "tokens/s", "step ms", "vs N × one rank", "vs cores × one rank", "exposed ms", "exposed / step"}, rows);
}

std::string stragglers(const std::vector<ScalingPoint>& points) {
  std::string text;
  for (const ScalingPoint& p : points) {
    if (p.ranks == 1) continue;
    int steps = 0;
    for (const auto& [rank, times] : p.slowest) steps += times;
    const auto [rank, times] = p.most_often_slowest();
    text += fmt::format("  {} ranks: rank {} was slowest in {} of {} steps; the others waited {:.1f} ms per step\n",
                        p.ranks, rank, times, steps, p.waited_ms);
  }
  return text;
}

BarChart chart_of(const DdpLabOptions& options, const std::vector<ScalingPoint>& points) {
  BarChart chart{fmt::format("A step of {} on N ranks of this machine, ms", options.model),
                 {"computing", "waiting for communication"},
                 "",
                 {}};
  for (const ScalingPoint& p : points) {
    const double exposed = std::min(p.exposed_ms, p.step_ms);
    chart.bars.push_back(
        {fmt::format("{} rank{}", p.ranks, p.ranks == 1 ? "" : "s"),
         {p.step_ms - exposed, exposed},
         0,
         fmt::format("{:.0f} tokens/s, {:.0f} % of cores × one rank", p.tokens_per_s, 100 * p.of_cores)});
  }
  return chart;
}

Json report_of(const DdpLabOptions& options, const std::vector<ScalingPoint>& points) {
  Json rows = Json::array();
  for (const ScalingPoint& p : points)
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

void check(DdpLabOptions& options) {
  options.sync = sync::strategy_name(options.sync);
  find_row("--sync", sync::strategies(), options.sync);
  if (options.batch < 1 || options.seq < 0 || options.steps < 1 || options.rounds < 1)
    throw UsageError(fmt::format(
        "got --batch {}, --steps {}, --rounds {}, --seq {}; expected --batch, --steps and --rounds >= 1, --seq "
        ">= 0",
        options.batch, options.steps, options.rounds, options.seq));
  for (int ranks : options.ranks)
    if (ranks < 1 || ranks > 64) throw UsageError(fmt::format("--ranks: got {}; expected 1 to 64", ranks));
  options.ranks.push_back(1);  // one rank is the baseline
  std::sort(options.ranks.begin(), options.ranks.end());
  options.ranks.erase(std::unique(options.ranks.begin(), options.ranks.end()), options.ranks.end());
}

Findings findings_of(const std::vector<ScalingPoint>& points) {
  Findings findings;
  for (const ScalingPoint& p : points)
    findings.show(
        fmt::format("{} rank{}: tokens/s vs N × one rank, vs cores × one rank", p.ranks, p.ranks == 1 ? "" : "s"),
        p.ranks == 1 ? "" : "falls with communication", p.ranks <= usable_cores() ? "100 %" : "cores shared",
        fmt::format("{:.0f} %, {:.0f} %", 100 * p.efficiency, 100 * p.of_cores));
  return findings;
}

int run_lab_ddp(const DdpLabOptions& asked) {
  DdpLabOptions options = asked;
  check(options);
  const CoreState state = probe_cores();
  const std::vector<ScalingPoint> points = measure(options);
  const BarChart chart = chart_of(options, points);
  const TrainCase one = case_of(options, 1, "");
  std::string text = fmt::format(
      "{} with sync.method = {}: every rank has one thread and {} × {} tokens; {} cores (core-to-core latency "
      "{})\n\n{}",
      options.model, options.sync, options.batch, one.seq, usable_cores(), state.name(), table_of(points));
  if (points.back().ranks > usable_cores())
    text += fmt::format(
        "More ranks than the {} cores: ranks share cores. Compare with `vs cores × one rank`; "
        "ranks wait mostly for a free core.\n",
        usable_cores());
  text += "Exposed: time in which a rank only waits for communication, mean over ranks.\n\n";
  text += bars_text(chart, 50);
  if (points.size() > 1) text += "\nStragglers:\n" + stragglers(points);
  return finish_lab({options.json, options.out}, "ddp", text, report_of(options, points), bars_svg(chart),
                    findings_of(points));
}

}  // namespace

void define_lab_ddp(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<DdpLabOptions>(app, chosen, run_lab_ddp);
  app.add_option("--ranks", o->ranks, "numbers of ranks to measure [1,2,4,8]").delimiter(',').type_name("N");
  app.add_option("--model", o->model, "preset [gpt-6x384]").type_name("NAME");
  app.add_option("--batch", o->batch, "sequences per rank [1]").type_name("B");
  app.add_option("--seq", o->seq, "tokens per sequence [the model's]").type_name("T");
  app.add_option("--sync", o->sync, "sync method [allreduce]").type_name("METHOD");
  app.add_option("--steps", o->steps, "steps per round [3]").type_name("N");
  app.add_option("--rounds", o->rounds, "rounds; each measures every job once [3]").type_name("N");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
