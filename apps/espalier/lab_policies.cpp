// espalier lab policies: evaluates the lecture's three-dimensional layout, runs all search methods on one space, and
// compares a real 2 × 2 × 2 run with one process.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_table.h"
#include "apps/espalier/lab_train.h"
#include "apps/espalier/plan_inputs.h"
#include "apps/espalier/plan_landscape.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/plan/estimate.h"
#include "esp/plan/report.h"
#include "esp/plan/search/methods.h"
#include "esp/plan/search/plan_problem.h"

namespace esp::app {
namespace {

struct PoliciesLabOptions {
  std::string model = "gpt3-13b", cluster = "selene", json, out;
  int gpus = 64;
  int64_t global_batch = 256, steps = 6;
};

// Evaluates Llama 3 70B on 512 GPUs with TP 8 · PP 4 · DP 16.
void evaluate_example(Findings& findings, Json& json) {
  PlanInputs inputs;
  inputs.model = "llama3-70b", inputs.cluster = "selene", inputs.gpus = 512;
  inputs.tp = 8, inputs.pp = 4, inputs.zero = 1, inputs.sequence = true;
  inputs.recompute = "selective", inputs.micro_batch = 1, inputs.global_batch = 1024;
  const ResolvedPlan planned = read_plan_inputs(inputs);
  const plan::Estimate found = plan::estimate(planned.shape, planned.cluster, planned.policy);
  findings.exact("Llama 3 70B on 512 GPUs, TP 8 · PP 4: data-parallel replicas", "16", 512.0 / (8 * 4),
                 planned.policy.dp);
  findings.holds("… fits in 80 GB with selective recomputation", "", "fits",
                 fmt::format("{}, {}", found.fits ? "fits" : "does not fit", plan::gigabytes(found.memory.total())),
                 found.fits);
  findings.show("… a step of 1024 sequences", "", plan::seconds(found.step_s), "");
  inputs.tp = 16;
  const ResolvedPlan wide = read_plan_inputs(inputs);
  const plan::Estimate across = plan::estimate(wide.shape, wide.cluster, wide.policy);
  findings.holds("… with TP 16, tensor groups across nodes", "TP needs NVLink", "slower", plan::seconds(across.step_s),
                 across.step_s > found.step_s);
  json = {{"dp", planned.policy.dp},
          {"fits", found.fits},
          {"memory_bytes", found.memory.total()},
          {"step_s", found.step_s},
          {"tp16_step_s", across.step_s}};
}

std::vector<plan::SearchResult> search(const plan::PlanProblem& problem) {
  plan::SearchOptions options;
  options.top = 10;
  std::vector<plan::SearchResult> results;
  for (const plan::SearchMethod& method : plan::search_methods()) {
    options.pareto = results.empty();  // only the first method, which is exhaustive, evaluates every choice
    options.keep_seen = results.empty() ? 1500 : 0;
    results.push_back(method.run(problem, options));
  }
  return results;
}

// Trains with one process and with eight, and returns the largest relative difference of their losses. In fp64, a
// different summation order changes them by at most 1e-11.
double train_both(const PoliciesLabOptions& o, Findings& findings, Json& json) {
  LabTrainer trainer;
  const std::vector<std::string> model = {
      "model.arch=gpt",       "model.layers=4",   "model.heads=4",
      "model.dim=64",         "model.seq_len=32", "train.global_batch=8",
      "train.precision=fp64", "run.threads=1",    fmt::format("train.steps={}", o.steps)};
  std::vector<std::string> divided = model;
  for (const char* one : {"parallel.dp=2", "parallel.tp=2", "parallel.pp=2", "train.micro_batch=1"})
    divided.emplace_back(one);
  const TrainedRun one = trainer.run("one", 1, model), eight = trainer.run("eight", 8, divided);
  double worst = 0;
  for (size_t i = 0; i < one.loss.size(); ++i)
    worst = std::max(worst, std::abs(eight.loss.at(i) - one.loss[i]) / one.loss[i]);
  findings.holds(fmt::format("2 × 2 × 2 on eight ranks: {} losses equal those of one process", one.loss.size()),
                 "N = DP·TP·PP", "difference ≤ 1e-11", fmt::format("difference {:.1e}", worst),
                 one.loss.size() == eight.loss.size() && worst <= 1e-11);
  json = {{"one", one.loss}, {"eight", eight.loss}, {"worst", worst}, {"command", eight.command}};
  return worst;
}

int run_lab_policies(const PoliciesLabOptions& o) {
  if (o.steps < 1) throw UsageError(fmt::format("--steps: got {}; expected at least 1", o.steps));
  Findings findings;
  Json example, runs;
  evaluate_example(findings, example);
  PlanInputs inputs;
  inputs.model = o.model, inputs.cluster = o.cluster, inputs.gpus = o.gpus, inputs.global_batch = o.global_batch;
  const ResolvedPlan planned = read_plan_inputs(inputs);
  plan::SearchSpace space =
      plan::full_search_space(planned.shape, planned.cluster, planned.policy, {planned.cluster.size()});
  plan::restrict_axis(space, "micro_batch=1,2,4");
  const plan::PlanProblem problem(planned.shape, planned.cluster, space, plan::objective("time"));
  const std::vector<plan::SearchResult> results = search(problem);
  std::vector<Cells> cells, best;
  Json methods = Json::array();
  for (const plan::SearchResult& one : results) {
    if (!one.found())
      throw UsageError(
          fmt::format("{}: no layout fits into the memory of {} devices. Set a larger --gpus", o.model, o.gpus));
    findings.holds(fmt::format("search by {}: the best step", one.method), "", plan::seconds(results[0].best().time_s),
                   fmt::format("{}, {} estimated", plan::seconds(one.best().time_s), one.counts.evaluated),
                   one.best().value == results[0].best().value);
    cells.push_back({one.method, one.exact ? "exact" : "heuristic", plan::seconds(one.best().time_s),
                     std::to_string(one.counts.considered), std::to_string(one.counts.evaluated),
                     fmt::format("{:.3f} s", one.elapsed_s)});
    methods.push_back({{"method", one.method},
                       {"exact", one.exact},
                       {"step_s", one.best().time_s},
                       {"considered", one.counts.considered},
                       {"evaluated", one.counts.evaluated},
                       {"policy", problem.text_of(one.best().choice)}});
  }
  for (const plan::RankedChoice& one : results[0].top)
    best.push_back({problem.text_of(one.choice), plan::seconds(one.time_s), plan::gigabytes(one.memory_bytes)});
  train_both(o, findings, runs);
  const std::string text = fmt::format(
      "{} on {} × {}, a batch of {} sequences: {:.0f} choices\n\n{}\n{}\n", problem.shape().name,
      planned.cluster.size(), planned.cluster.processor.name, planned.policy.global_batch, problem.space().size(),
      text_table({"method", "", "best step", "considered", "estimated", "elapsed"}, cells),
      text_table({"best layouts", "step", "memory"}, best));
  const Json report = {{"example", example}, {"methods", methods}, {"runs", runs}};
  return finish_lab({o.json, o.out}, "policies", text, report, landscape_svg(problem, results[0]), findings);
}

}  // namespace

void define_lab_policies(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<PoliciesLabOptions>(app, chosen, run_lab_policies);
  app.add_option("--model", o->model, "model to search layouts for [gpt3-13b]").type_name("NAME");
  app.add_option("--cluster", o->cluster, "name of a cluster in the catalog [selene]").type_name("NAME");
  app.add_option("--gpus", o->gpus, "number of devices [64]").type_name("N");
  app.add_option("--global-batch", o->global_batch, "sequences per step [256]").type_name("B");
  app.add_option("--steps", o->steps, "steps of the real runs [6]").type_name("N");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
