// espalier plan simulate: discrete-event simulation of a step. Shows its timeline, the effect of stragglers, and the
// goodput under failures.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/output_file.h"
#include "apps/espalier/plan.h"
#include "apps/espalier/plan_inputs.h"
#include "apps/espalier/text_table.h"
#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/comm/algo/table.h"
#include "esp/obs/spans.h"
#include "esp/plan/espalier_time.h"
#include "esp/plan/simulate/collective.h"
#include "esp/plan/simulate/failures.h"
#include "esp/plan/simulate/step.h"

namespace esp::app {
namespace {

struct SimulateOptions {
  PlanInputs inputs;
  std::vector<std::string> stragglers;
  std::string trace, json;
  double mtbf_hours = 0, checkpoint_s = 60, restart_s = 300, interval_s = 0;
  double days = 365;
  uint64_t seed = 1;
  bool bench = false;
};

std::vector<plan::SlowRank> stragglers_of(const SimulateOptions& o) {
  std::vector<plan::SlowRank> all;
  for (const std::string& text : o.stragglers) {
    plan::SlowRank one;
    const size_t colon = text.find(':');
    char *end = nullptr, *last = nullptr;
    const auto same_rank = [&](const plan::SlowRank& other) { return other.rank == one.rank; };
    one.rank = static_cast<int>(std::strtol(text.c_str(), &end, 10));
    one.factor = colon == std::string::npos ? 0 : std::strtod(text.c_str() + colon + 1, &last);
    if (colon == std::string::npos || colon == 0 || end != text.c_str() + colon || last != text.c_str() + text.size() ||
        one.factor <= 0)
      throw UsageError(
          fmt::format("--straggler: got {}; expected RANK:FACTOR with a factor above 0, for example 17:1.5", text));
    if (std::any_of(all.begin(), all.end(), same_rank))
      throw UsageError(fmt::format("--straggler: got rank {} twice; expected each rank once", one.rank));
    all.push_back(one);
  }
  return all;
}

struct FailureEstimate {
  plan::FailureModel model;
  double interval_s = 0;
  plan::Goodput drawn;
  double expected = 1;
};

FailureEstimate estimate_failures(const SimulateOptions& o, const plan::Cluster& cluster, int ranks) {
  FailureEstimate l;
  for (const auto& [option, value] : {std::pair{"--mtbf", o.mtbf_hours},
                                      {"--checkpoint-s", o.checkpoint_s},
                                      {"--restart-s", o.restart_s},
                                      {"--interval-s", o.interval_s},
                                      {"--days", o.days}})
    if (!(value >= 0 && value < 1e9)) throw UsageError(fmt::format("{}: got {}; expected 0 or more", option, value));
  const double mtbf = o.mtbf_hours > 0 ? o.mtbf_hours : cluster.mtbf_hours;
  if (mtbf <= 0) return l;
  if (o.days == 0) throw UsageError("--days: got 0; expected a simulated time above 0");
  const double nodes = std::max(1.0, std::ceil(static_cast<double>(ranks) / cluster.per_node));
  l.model = {mtbf * 3600 / nodes, o.checkpoint_s, o.restart_s};
  l.interval_s = o.interval_s > 0 ? o.interval_s : std::max(1.0, plan::daly_interval_s(l.model));
  l.drawn = plan::simulate_goodput(l.model, l.interval_s, o.days * 86400, o.seed);
  l.expected = plan::expected_goodput(l.model, l.interval_s);
  return l;
}

// Prints the simulator's events per second, for this step and for one ring of many ranks, simulated message by message.
void print_speed(const plan::StepSimulation& step, double seconds) {
  fmt::print("{} events of {} tasks in {:.4f} s: {:.2f} million events/s\n", step.events, step.tasks, seconds,
             static_cast<double>(step.events) / seconds * 1e-6);
  comm::CollectiveSpec ring;
  ring.op = comm::Op::all_reduce;
  ring.size = 384;
  ring.count = 384 * 1024;
  const auto schedules = plan::schedules_of(comm::find_algorithm(ring.op, "ring"), ring);
  const plan::CollectiveTime time = plan::time_collective(schedules, 4, 1e-6, 25e9);
  fmt::print("a ring of {} ranks: {} events in {:.3f} s: {:.2f} million events/s\n", ring.size, time.events,
             time.wall_s, static_cast<double>(time.events) / time.wall_s * 1e-6);
}

Json to_json(const plan::StepSimulation& step, const FailureEstimate& failures) {
  Json out = {{"step_s", step.step_s}, {"compute_s", step.compute_s}, {"bubble_s", step.bubble_s},
              {"bubble", step.bubble}, {"exposed_s", step.exposed_s}, {"update_s", step.update_s},
              {"events", step.events}, {"tasks", step.tasks},         {"devices", Json::array()}};
  for (const plan::DeviceUse& use : step.devices)
    out["devices"].push_back({{"copy", use.replica},
                              {"stage", use.stage},
                              {"folded", use.num_folded},
                              {"compute_s", use.compute_s},
                              {"waiting_s", use.waiting_s},
                              {"after_s", use.after_s},
                              {"sending_s", use.sending_s},
                              {"summing_s", use.summing_s},
                              {"offload_s", use.offload_s},
                              {"peak_bytes", use.peak_bytes}});
  if (failures.model.mtbf_s > 0)
    out["failures"] = {{"mtbf_s", failures.model.mtbf_s},    {"interval_s", failures.interval_s},
                       {"goodput", failures.drawn.fraction}, {"expected_goodput", failures.expected},
                       {"per_day", failures.drawn.failures}, {"checkpoint", failures.drawn.checkpoint},
                       {"lost", failures.drawn.lost},        {"restart", failures.drawn.restart}};
  return out;
}

void print(const ResolvedPlan& planned, const plan::StepSimulation& step, const FailureEstimate& failures) {
  const double tokens = static_cast<double>(planned.policy.global_batch * planned.shape.seq);
  fmt::print(
      "step {:.4g} s, {:.4g} tokens/s: compute {:.4g}, bubble {:.4g} ({:.1f} % of compute), exposed all-reduce {:.4g}, "
      "optimizer {:.4g}\n",
      step.step_s, tokens / step.step_s, step.compute_s, step.bubble_s, 100 * step.bubble, step.exposed_s,
      step.update_s);
  std::vector<Cells> cells;
  for (const plan::DeviceUse& use : step.devices)
    cells.push_back(
        {use.num_folded > 1 ? fmt::format("{} … ({})", use.replica, use.num_folded) : std::to_string(use.replica),
         std::to_string(use.stage), fmt::format("{:.4g}", use.compute_s), fmt::format("{:.4g}", use.waiting_s),
         fmt::format("{:.4g}", use.after_s), fmt::format("{:.4g}", use.sending_s), fmt::format("{:.4g}", use.summing_s),
         fmt::format("{:.2f}", use.peak_bytes / 1e9)});
  fmt::print("{}", text_table({"replica", "stage", "compute s", "waiting s", "exposed s", "sends s", "all-reduce s",
                               "peak GB"},
                              cells));
  if (failures.model.mtbf_s > 0)
    fmt::print(
        "a failure every {:.1f} h, {:.2f} per day; checkpoints every {:.0f} s: {:.2f} % of the time is useful work "
        "({:.2f} % expected), {:.2f} % checkpoints, {:.2f} % lost work, {:.2f} % restarts; {:.4g} tokens/s\n",
        failures.model.mtbf_s / 3600, failures.drawn.failures, failures.interval_s, 100 * failures.drawn.fraction,
        100 * failures.expected, 100 * failures.drawn.checkpoint, 100 * failures.drawn.lost,
        100 * failures.drawn.restart, tokens / step.step_s * failures.drawn.fraction);
}

int run_simulate(const SimulateOptions& o) {
  const ResolvedPlan planned = read_plan_inputs(o.inputs);
  plan::check(planned.shape, planned.cluster, planned.policy);
  const auto stragglers = stragglers_of(o);
  const bool own = plan::uses_calibrated_rates(planned.cluster, planned.policy);
  if (own && !stragglers.empty())
    throw UsageError("--straggler: not supported on CPU clusters, whose ranks share cores. Use a GPU cluster");
  const plan::StepInput input = own ? plan::espalier_step_input(planned.shape, planned.cluster, planned.policy)
                                    : plan::step_input(planned.shape, planned.cluster, planned.policy, stragglers);
  const int64_t made = now_ns();
  Json trace;
  const plan::StepSimulation step = plan::simulate_step(input, o.trace.empty() ? nullptr : &trace);
  const double seconds = static_cast<double>(now_ns() - made) * 1e-9;
  const FailureEstimate failures = estimate_failures(o, planned.cluster, planned.policy.world());
  print(planned, step, failures);
  if (o.bench) print_speed(step, seconds);
  if (!o.trace.empty()) obs::write_trace(o.trace, trace);
  if (!o.json.empty()) write_file(o.json, to_json(step, failures).dump(1) + "\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_plan_simulate(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<SimulateOptions>(app, chosen, run_simulate);
  add_plan_inputs(app, o->inputs);
  app.add_option("--straggler", o->stragglers, "slow rank and its slowdown factor; repeatable")
      .type_name("RANK:FACTOR");
  app.add_option("--mtbf", o->mtbf_hours, "mean hours between failures of one node [the cluster's value]")
      .type_name("H");
  app.add_option("--checkpoint-s", o->checkpoint_s, "seconds that a checkpoint blocks the job [60]").type_name("S");
  app.add_option("--restart-s", o->restart_s, "seconds from a failure until training resumes [300]").type_name("S");
  app.add_option("--interval-s", o->interval_s, "seconds of work between checkpoints [Daly's formula]").type_name("S");
  app.add_option("--days", o->days, "simulated days of failures [365]").type_name("D");
  app.add_option("--seed", o->seed, "random seed of failures [1]").type_name("N");
  app.add_flag("--bench", o->bench, "print simulated events per second");
  app.add_option("--trace", o->trace, "write the timeline as a Perfetto trace").type_name("FILE");
  app.add_option("--json", o->json, "write the figures as JSON; - is stdout").type_name("FILE");
}

}  // namespace esp::app
