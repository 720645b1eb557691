// espalier lab ps: parameter servers with a straggler, run by real ranks, and the order of pushes in virtual time.
//
// Workers are threads of this process with servers beside them, over a quadratic whose minimum is known; a worker
// computes by sleeping, so that its pace does not depend on how many cores there are. All modes run for the same time.
#include <atomic>
#include <cmath>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/text_table.h"
#include "esp/autograd/functions/weights.h"
#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/comm/over.h"
#include "esp/device/pool.h"
#include "esp/net/inproc/threads.h"
#include "esp/sync/ps/virtual_time.h"
#include "esp/sync/strategy.h"

namespace esp::app {
namespace {

struct LabOptions {
  int workers = 4, servers = 2;
  double step_ms = 10, slow = 4, seconds = 2, lr = 0.2, noise = 0.5;
  int64_t elements = 4096, staleness = 3;
  std::string json, out;
};

struct ModeRun {
  std::string name, mode;
  int64_t staleness = 0;
  std::vector<int64_t> steps;  // by worker
  double wall_s = 0, error = 0;
  std::string note;
  double steps_per_s() const {
    int64_t sum = 0;
    for (const int64_t one : steps) sum += one;
    return static_cast<double>(sum) / wall_s;
  }
};

// One worker's memory and its copy of the problem ½‖x − 1‖² with noise in its gradients.
struct Worker {
  device::MemoryAccount account;
  device::Pool pool{account};
  tensor::Context context{{}, &pool};
  nn::ParameterList list;
  std::unique_ptr<sync::Strategy> strategy;
  std::unique_ptr<optim::Optimizer> optimizer;

  Worker(const LabOptions& o, const ModeRun& run, comm::Communicator* ranks) {
    for (int layer = 0; layer < 4; ++layer) {
      list.begin_unit("layer" + std::to_string(layer));
      list.add("w" + std::to_string(layer), {o.elements / 4}, nn::Init::zeros(), false);
    }
    sync::Setup setup;
    setup.ranks = ranks;
    setup.parameters = &list;
    setup.context = context;
    setup.timeout = std::chrono::minutes(1);
    setup.options.method = "ps";
    setup.options.ps.mode = run.mode;
    setup.options.ps.staleness = run.staleness;
    setup.options.ps.servers = o.servers;
    strategy = sync::make_strategy(setup);
    optim::OptimizerOptions sgd;
    sgd.name = "sgd";
    sgd.momentum = 0;
    optimizer = strategy->make_optimizer(sgd);
  }

  void step(const LabOptions& o, int rank, int64_t step) {
    const bool slow = rank == o.workers - 1;
    strategy->begin_step();
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(o.step_ms * (slow ? o.slow : 1)));
    strategy->begin_pass({});
    auto& all = list.all();
    // Synchronous servers add up W gradients; others apply each by itself, at a W-th of the rate.
    const double share = strategy->clocks()->lockstep() ? 1.0 / o.workers : 1;
    for (auto p = all.rbegin(); p != all.rend(); ++p) {
      const auto* x = p->weight.value.as<float>();
      auto* g = static_cast<float*>(autograd::gradient_to_add_to(&p->weight, context.stream));
      for (int64_t i = 0; i < p->count(); ++i) {
        const auto at = static_cast<uint64_t>((step * 64 + p->index) * p->count() + i);
        const double noise = static_cast<double>(random_bits(7, static_cast<uint64_t>(rank), at) >> 11) * 0x1p-53 - 0.5;
        g[i] += static_cast<float>(share * (x[i] - 1 + o.noise * noise));
      }
      if (p->weight.on_ready) p->weight.on_ready();
    }
    strategy->end_pass();
    strategy->finish();
    strategy->sums_of_squares();
    optimizer->step(o.lr, 1);
    strategy->after_step();
  }

  double error() const {
    double sum = 0;
    for (const nn::Parameter& p : list.all())
      for (int64_t i = 0; i < p.count(); ++i) sum += std::pow(p.weight.value.as<float>()[i] - 1, 2);
    return sum / static_cast<double>(list.count());
  }
};

// Whoever runs freely ends by the clock; those who must agree on the last step take as many as the slowest can.
void run_mode(const LabOptions& o, ModeRun& run) {
  run.steps.assign(static_cast<size_t>(o.workers), 0);
  std::atomic<int64_t> last{0};  // all go on to this step once the time is over
  const int64_t begun = now_ns();
  const auto until = begun + static_cast<int64_t>(o.seconds * 1e9);
  std::vector<int64_t> in_time(run.steps.size());
  net::run_threads(o.workers, [&](net::World& world) {
    const auto comm = comm::make_communicator(world, world.everyone(), comm::over("inproc"));
    Worker worker(o, run, comm.get());
    const auto me = static_cast<size_t>(world.rank);
    const bool lockstep = worker.strategy->clocks()->lockstep();
    int64_t step = 0;
    for (bool over = false; !over; ++step) {
      worker.step(o, world.rank, step);
      if (now_ns() < until) in_time[me] = step + 1;
      double wish = now_ns() >= until ? 1 : 0;
      if (lockstep) {
        comm->all_reduce(&wish, &wish, 1, DType::f64, comm::ReduceOp::max);
        over = wish > 0;
        continue;
      }
      if (wish > 0) worker.strategy->clocks()->wish_stop();
      over = worker.strategy->clocks()->stops_before(step + 1);
    }
    worker.strategy->clocks()->meet();
    if (world.rank == 0) {
      run.error = worker.error();
      for (const std::string& note : worker.strategy->take_notes()) run.note = note;
    }
  });
  run.steps = in_time;
  run.wall_s = o.seconds;
}

std::vector<ModeRun> run_modes(const LabOptions& o) {
  std::vector<ModeRun> runs(3);
  runs[0].name = runs[0].mode = "sync";
  runs[1].mode = "ssp";
  runs[1].staleness = o.staleness;
  runs[1].name = fmt::format("ssp, bound {}", o.staleness);
  runs[2].name = runs[2].mode = "async";
  for (ModeRun& run : runs) run_mode(o, run);
  return runs;
}

// All as fast as the fast ones.
double ideal(const LabOptions& o) {
  return o.workers * 1e3 / o.step_ms;
}

double expected(const LabOptions& o, const ModeRun& run) {
  std::vector<double> times(static_cast<size_t>(o.workers), o.step_ms);
  times.back() *= o.slow;
  const sync::Pace pace = run.mode == "sync"  ? sync::Pace::sync
                          : run.mode == "ssp" ? sync::Pace::ssp
                                              : sync::Pace::async;
  const sync::PaceRun simulated = sync::run_paces(times, o.seconds * 1e3, pace, run.staleness);
  int64_t sum = 0;
  for (const int64_t one : simulated.steps) sum += one;
  return static_cast<double>(sum) / o.seconds;
}

const std::vector<sync::LayerCost> kThreeLayers = {{1, 1, 0.5, 0.5}, {1, 1, 0.5, 0.5}, {1, 1, 2, 2}};

sync::PushRun pushes(bool by_priority) {
  sync::PushPlan plan;
  plan.by_priority = by_priority;
  return sync::run_pushes(kThreeLayers, plan);
}

std::string schedule_text(const char* name, const sync::PushRun& run) {
  std::string link(static_cast<size_t>(run.time), '.'), compute = link;
  for (int t = 0; t < 3; ++t) compute[static_cast<size_t>(t)] = static_cast<char>('3' - t);
  for (size_t l = 0; l < 3; ++l) compute[static_cast<size_t>(run.forward_begins[l])] = static_cast<char>('1' + l);
  for (const sync::Transfer& one : run.transfers)
    link[static_cast<size_t>(one.begin)] = static_cast<char>('1' + one.layer);
  return fmt::format("  {:<9} computes  {}\n  {:<9} link      {}   {} units\n", name, compute, "", link, run.time);
}

std::string table_of(const LabOptions& o, const std::vector<ModeRun>& runs) {
  std::vector<Cells> rows;
  for (const ModeRun& run : runs)
    rows.push_back({run.name, fmt::format("{:.0f}", run.steps_per_s()), fmt::format("{:.0f}", expected(o, run)),
                    fmt::format("{:.0f} %", 100 * run.steps_per_s() / ideal(o)), std::to_string(run.steps.front()),
                    std::to_string(run.steps.back()), fmt::format("{:.2e}", run.error)});
  return text_table({"mode", "steps/s", "in virtual time", "of all fast", "a fast worker", "the slow one", "error"},
                    rows);
}

BarChart chart_of(const LabOptions& o, const std::vector<ModeRun>& runs) {
  BarChart chart{fmt::format("Worker steps a second, one of {} workers {:g} times slower", o.workers, o.slow),
                 {"steps/s"},
                 "virtual time",
                 {}};
  for (const ModeRun& run : runs)
    chart.bars.push_back({run.name, {run.steps_per_s()}, expected(o, run), fmt::format("error {:.1e}", run.error)});
  return chart;
}

Json report_of(const LabOptions& o, const std::vector<ModeRun>& runs) {
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

void check(const LabOptions& o) {
  if (o.workers < 2 || o.workers > 64) throw UsageError(fmt::format("--workers {}: between 2 and 64", o.workers));
  if (o.servers < 1 || o.servers > o.workers)
    throw UsageError(fmt::format("--servers {}: between 1 and the {} workers", o.servers, o.workers));
  if (!(o.step_ms > 0 && o.slow >= 1 && o.seconds > 0 && o.seconds <= 600))
    throw UsageError("--step-ms more than 0, --slow at least 1, --seconds up to 600");
  if (o.staleness < 1) throw UsageError(fmt::format("--staleness {}: at least 1 clock; 0 is sync", o.staleness));
}

int run_lab_ps(const LabOptions& o) {
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
  fmt::print("{}", text);
  write_lab({o.json, o.out}, "ps", text, report_of(o, runs), bars_svg(chart));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_lab_ps(CLI::App& app, Chosen& chosen) {
  auto o = keep<LabOptions>(app, chosen, run_lab_ps);
  app.add_option("--workers", o->workers, "how many [4]")->type_name("W");
  app.add_option("--servers", o->servers, "of them, that serve too [2]")->type_name("K");
  app.add_option("--step-ms", o->step_ms, "what a step takes to compute [10]")->type_name("MS");
  app.add_option("--slow", o->slow, "times longer on the last worker [4]")->type_name("F");
  app.add_option("--seconds", o->seconds, "of each mode [2]")->type_name("S");
  app.add_option("--staleness", o->staleness, "bound of ssp [3]")->type_name("S");
  app.add_option("--json", o->json, "write the figures as JSON")->type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture")->type_name("DIR");
}

}  // namespace esp::app
