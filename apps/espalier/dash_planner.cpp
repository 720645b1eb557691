// Planner page of the dashboard: runs searches that are small enough for an interactive response.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/dash_providers.h"
#include "apps/espalier/plan_inputs.h"
#include "esp/base/error.h"
#include "esp/dash/trace.h"
#include "esp/model/model.h"
#include "esp/plan/espalier_time.h"
#include "esp/plan/report.h"
#include "esp/plan/search/explain.h"
#include "esp/plan/search/methods.h"
#include "esp/plan/search/nearest_miss.h"
#include "esp/plan/search/plan_problem.h"
#include "esp/plan/search/ties.h"
#include "esp/plan/simulate/step.h"

namespace esp::app {
namespace {

constexpr size_t kMostPoints = 1500, kTop = 10;
constexpr int64_t kMaxActions = 20000;  // a timeline with more actions is not sent
// The default search space has only the common choices: a search of the whole space takes seconds instead of
// milliseconds.
constexpr const char* kDefaultSpace[] = {"schedule=1f1b,interleaved:2,interleaved:4,zb-h1", "offload=none",
                                         "division=equal"};

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string choices() {
  Json models = Json::array(), clusters = Json::array();
  for (const plan::CatalogModel& row : plan::built_in_catalog().models())
    models.push_back(
        {{"name", row.name}, {"help", row.help}, {"parameters", row.shape.parameters()}, {"seq", row.shape.seq}});
  for (const model::Preset& row : model::presets()) {
    if (plan::built_in_catalog().find_model(row.name)) continue;
    const plan::ModelShape shape = plan::shape_of(row.config, std::string(row.name));
    models.push_back({{"name", row.name}, {"help", ""}, {"parameters", shape.parameters()}, {"seq", shape.seq}});
  }
  for (const plan::ClusterRow& row : plan::built_in_catalog().clusters())
    clusters.push_back({{"name", row.name},
                        {"help", row.help},
                        {"gpus", row.cluster.size()},
                        {"processor", row.cluster.processor.name},
                        {"memory_bytes", row.cluster.processor.memory_bytes}});
  return dumped({{"models", models}, {"clusters", clusters}});
}

PlanInputs inputs_of(const dash::Request& request) {
  PlanInputs inputs;
  inputs.model = request.parameter("model");
  inputs.cluster = request.parameter("cluster");
  // Only names of the catalog are accepted: a web page must not make the server read files.
  if (inputs.model.find_first_of("/\\") != std::string::npos || inputs.model.ends_with(".toml") ||
      inputs.cluster.find_first_of("/\\") != std::string::npos || inputs.cluster.ends_with(".toml"))
    throw UsageError("model, cluster: got a path; expected names from the catalog");
  const auto whole = [&](const char* name, double most) {
    const double value = request.number(name, 0);
    if (value < 0 || value > most || value != std::floor(value))
      throw UsageError(fmt::format("{}: got {}; expected a whole number from 0 to {}", name, value, most));
    return value;
  };
  if (const double gpus = whole("gpus", 1e6); gpus > 0) inputs.gpus = static_cast<int>(gpus);
  if (const double batch = whole("batch", 1e7); batch > 0) inputs.global_batch = static_cast<int64_t>(batch);
  if (const double seq = whole("seq", 1e7); seq > 0) inputs.seq = static_cast<int64_t>(seq);
  inputs.precision = request.parameter("precision");
  return inputs;
}

Json point(const plan::PlanProblem& problem, const plan::RankedChoice& one) {
  const auto pp = static_cast<size_t>(plan::PlanAxis::pp);
  return {{"policy", problem.text_of(one.choice)},
          {"step_s", one.time_s},
          {"memory_bytes", one.memory_bytes},
          {"pp", problem.axes()[pp].values[one.choice[pp]]}};
}

// A search result with its memory by category, for the few results that the page shows in detail.
Json full_point(const plan::PlanProblem& problem, const plan::RankedChoice& one) {
  Json json = point(problem, one);
  const plan::Estimate estimate = problem.estimate_at(one.choice);
  json["memory"] = plan::to_json(estimate.memory);
  json["mfu"] = estimate.mfu;
  json["bubble"] = estimate.bubble;
  json["tokens_per_s"] = estimate.tokens_per_s;
  for (const auto& [name, time] : {std::pair{"compute_s", estimate.compute_s},
                                   {"bubble_s", estimate.bubble_s},
                                   {"exposed_s", estimate.exposed_s},
                                   {"optimizer_s", estimate.optimizer_s},
                                   {"offload_s", estimate.offload_s}})
    json[name] = time;
  return json;
}

std::string timeline_of(const ResolvedPlan& planned, const plan::PlanProblem& problem, const plan::RankedChoice& best) {
  const plan::Policy policy = problem.policy_at(best.choice);
  const plan::Cluster& cluster = problem.cluster_at(best.choice);
  if (policy.num_micro_batches() * policy.pp * policy.interleave * 2 > kMaxActions)
    return "{\"error\":\"too many micro-batches to draw; espalier plan simulate --trace writes them for Perfetto\"}";
  try {
    Json trace;
    plan::simulate_step(plan::uses_calibrated_rates(cluster, policy)
                            ? plan::espalier_step_input(planned.shape, cluster, policy)
                            : plan::step_input(planned.shape, cluster, policy),
                        &trace);
    return dash::window_json(dash::parse_trace(trace.dump()), -1e300, 1e300, 4000);
  } catch (const UsageError& error) {
    return dumped({{"error", error.what()}});
  }
}

std::string search(const dash::Request& request) {
  const PlanInputs inputs = inputs_of(request);
  const ResolvedPlan planned = read_plan_inputs(inputs);
  plan::SearchSpace space =
      plan::full_search_space(planned.shape, planned.cluster, planned.policy, {planned.cluster.size()});
  if (request.parameter("space") != "whole")
    for (const char* axis : kDefaultSpace) plan::restrict_axis(space, axis);
  const plan::PlanProblem problem(planned.shape, planned.cluster, space, plan::objective("time"));
  plan::SearchOptions options;
  options.top = kTop;
  options.pareto = true;
  options.keep_seen = kMostPoints;
  const plan::SearchResult result = plan::search_integer(problem, options);
  const plan::SearchCounts& counts = result.counts;
  Json json = {{"model", planned.shape.name},
               {"parameters", planned.shape.parameters()},
               {"seq", planned.shape.seq},
               {"batch", planned.policy.global_batch},
               {"gpus", planned.cluster.size()},
               {"cluster", planned.cluster.name},
               {"processor", planned.cluster.processor.name},
               {"considered", counts.considered},
               {"too_large", counts.too_large},
               {"evaluated", counts.evaluated},
               {"feasible", counts.feasible()},
               {"elapsed_s", result.elapsed_s},
               {"assumed", planned.assumed},
               {"points", Json::array()},
               {"front", Json::array()},
               {"top", Json::array()}};
  if (!result.found()) {
    const plan::NearestMiss miss = plan::nearest_miss(problem);
    json["error"] = miss.found ? fmt::format("no layout fits: the smallest, {}, needs {} per device",
                                             problem.text_of(miss.choice), plan::gigabytes(miss.memory_bytes))
                               : "no layout is valid; try a batch size or a number of devices with more divisors";
    return dumped(json);
  }
  json["capacity"] = problem.capacity(result.best().choice);
  for (const plan::RankedChoice& one : result.seen) json["points"].push_back(point(problem, one));
  for (const plan::RankedChoice& one : result.front) json["front"].push_back(full_point(problem, one));
  const std::vector<bool> ties = plan::find_ties(problem, result);
  for (size_t i = 0; i < result.top.size(); ++i) {
    json["top"].push_back(full_point(problem, result.top[i]));
    json["top"].back()["tie"] = static_cast<bool>(ties[i]);
  }
  if (ties.size() > 1) json["ties"] = plan::describe_ties(problem, result);
  json["explain"] = plan::to_json(plan::explain(problem, result.best().choice));
  json["stages"] = Json::array();
  const plan::Policy policy = problem.policy_at(result.best().choice);
  json["describe"] = plan::describe(policy);
  for (const plan::Memory& memory :
       plan::stage_memories(planned.shape, problem.cluster_at(result.best().choice), policy))
    json["stages"].push_back(plan::to_json(memory));
  std::string text = dumped(json);
  text.back() = ',';
  return text + "\"timeline\":" + timeline_of(planned, problem, result.best()) + "}";
}

}  // namespace

std::string dash_planner(const dash::Request& request) {
  return request.path.ends_with("/choices") ? choices() : search(request);
}

}  // namespace esp::app
