// espalier plan search: searches for the best policy for a model on a cluster, with one of several search methods, and
// explains the result.
#include <algorithm>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/auto_layout.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/plan.h"
#include "apps/espalier/plan_heterogeneous.h"
#include "apps/espalier/plan_inputs.h"
#include "apps/espalier/plan_landscape.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/plan/report.h"
#include "esp/plan/search/explain.h"
#include "esp/plan/search/methods.h"
#include "esp/plan/search/nearest_miss.h"
#include "esp/plan/search/plan_problem.h"
#include "esp/plan/search/ties.h"

namespace esp::app {
namespace {

constexpr size_t kPointsOfPicture = 3000;

struct SearchOptions {
  PlanInputs inputs;
  std::string method = "integer", objective = "time", json, html, out;
  std::vector<std::string> axes, also;
  std::vector<int> choices;  // numbers of devices that the search may use
  int64_t top = 10;
  bool pareto = false, explain = false;
  uint64_t seed = 1;
  int64_t evaluations = 0;
};

plan::SearchSpace space_of(const SearchOptions& o, const ResolvedPlan& planned) {
  std::vector<int> gpus = o.choices;
  for (const int n : gpus)
    if (n < 1 || n > planned.cluster.size())
      throw UsageError(fmt::format("--choose-gpus: got {}; expected 1 to {}, the number of devices of the cluster", n,
                                   planned.cluster.size()));
  std::sort(gpus.begin(), gpus.end());
  gpus.erase(std::unique(gpus.begin(), gpus.end()), gpus.end());
  if (gpus.empty()) gpus = {planned.cluster.size()};
  plan::SearchSpace space = o.inputs.run.empty()
                                ? plan::full_search_space(planned.shape, planned.cluster, planned.policy, gpus)
                                : run_search_space(train::read_run_config(o.inputs.run, o.inputs.overrides),
                                                   planned.shape, planned.cluster, planned.policy, gpus);
  if (!o.out.empty() && o.inputs.run.empty()) restrict_to_trainable(space, o.inputs);
  for (const std::string& one : o.axes) plan::restrict_axis(space, one);
  return space;
}

Json found_json(const plan::PlanProblem& problem, const plan::RankedChoice& found) {
  const plan::Policy policy = problem.policy_at(found.choice);
  Json row = plan::to_json(problem.estimate_at(found.choice));
  row["layout"] = plan::to_json(policy);
  row["policy"] = problem.text_of(found.choice);
  row["value"] = found.value;
  return row;
}

Json result_json(const plan::PlanProblem& problem, const plan::SearchResult& result, const SearchOptions& o) {
  const plan::SearchCounts& c = result.counts;
  Json json = {{"method", result.method},
               {"exact", result.exact},
               {"objective", o.objective},
               {"considered", c.considered},
               {"evaluated", c.evaluated},
               {"feasible", c.feasible()},
               {"pruned", c.pruned},
               {"too_large", c.too_large},
               {"branches_cut", c.subtrees},
               {"elapsed_s", result.elapsed_s},
               {"best", nullptr},
               {"top", Json::array()}};
  if (result.found()) {
    const std::vector<bool> ties = plan::find_ties(problem, result);
    json["best"] = found_json(problem, result.best());
    json["best"]["tie"] = static_cast<bool>(ties[0]);
    json["tie_error"] = plan::tie_error(problem, result.best());
    json["tie_break"] = plan::kTieBreak;
    for (size_t i = 0; i < result.top.size(); ++i) {
      const plan::RankedChoice& one = result.top[i];
      json["top"].push_back({{"policy", problem.text_of(one.choice)},
                             {"layout", plan::to_json(problem.policy_at(one.choice))},
                             {"step_s", one.time_s},
                             {"memory_bytes", one.memory_bytes},
                             {"value", one.value},
                             {"tie", static_cast<bool>(ties[i])}});
    }
  }
  if (o.pareto) {
    json["pareto"] = Json::array();
    for (const plan::RankedChoice& one : result.front)
      json["pareto"].push_back(
          {{"policy", problem.text_of(one.choice)}, {"step_s", one.time_s}, {"memory_bytes", one.memory_bytes}});
  }
  return json;
}

void print_best(const plan::PlanProblem& problem, const plan::SearchResult& result) {
  const std::vector<bool> ties = plan::find_ties(problem, result);
  std::vector<Cells> rows;
  for (size_t i = 0; i < result.top.size(); ++i)
    rows.push_back({problem.text_of(result.top[i].choice), plan::seconds(result.top[i].time_s),
                    plan::gigabytes(result.top[i].memory_bytes), ties[i] ? "tie" : ""});
  fmt::print("{}", text_table({"best layouts", "step", "memory", ""}, rows));
  fmt::print("{}\n\n", plan::describe_ties(problem, result));
}

void print_front(const plan::PlanProblem& problem, const std::vector<plan::RankedChoice>& list) {
  std::vector<Cells> rows;
  for (const plan::RankedChoice& one : list)
    rows.push_back({problem.text_of(one.choice), plan::seconds(one.time_s), plan::gigabytes(one.memory_bytes)});
  fmt::print("{}\n", text_table({"Pareto front", "step", "memory"}, rows));
}

void print_methods(const plan::PlanProblem& problem, const std::vector<plan::SearchResult>& results) {
  std::vector<Cells> rows;
  for (const plan::SearchResult& one : results) {
    const plan::SearchCounts& c = one.counts;
    rows.push_back({one.method, one.found() ? fmt::format("{:.6g}", one.best().value) : "none",
                    std::to_string(c.considered), std::to_string(c.too_large), std::to_string(c.pruned),
                    std::to_string(c.evaluated), std::to_string(c.subtrees), fmt::format("{:.3f} s", one.elapsed_s)});
  }
  fmt::print("{}\n", text_table({"method", "best " + std::string(problem.objective().name), "considered", "too large",
                                 "pruned", "estimated", "branches cut", "time"},
                                rows));
}

// Reports that no layout fits, with the layout that needs least memory and how much it needs.
[[noreturn]] void throw_nothing_fits(const plan::PlanProblem& problem, const plan::SearchResult& result) {
  const plan::NearestMiss miss = plan::nearest_miss(problem);
  if (!miss.found)
    throw UsageError(
        fmt::format("no layout of {} on {} devices with a global batch of {} is valid ({} layouts considered). Try a "
                    "batch size or a number of devices with more divisors",
                    problem.shape().name, problem.space().gpus.back(), problem.space().base.global_batch,
                    result.counts.considered));
  throw UsageError(fmt::format(
      "{} does not fit on {} devices of {}: the layout that needs least memory, {}, needs {}. Try more devices or {}",
      problem.shape().name, problem.space().gpus.back(), plan::gigabytes(problem.capacity(miss.choice)),
      problem.text_of(miss.choice), plan::gigabytes(miss.memory_bytes),
      problem.space().offload.size() > 1 ? "a smaller model" : "--axis offload=none,host where there is a host link"));
}

void print_results(const plan::PlanProblem& problem, const ResolvedPlan& planned,
                   const std::vector<plan::SearchResult>& results, const plan::SearchResult& best, bool pareto,
                   bool for_run_file) {
  fmt::print("{}, {} parameters, on {} x {}; global batch {} sequences of {} tokens; {:.0f} layouts over {} axes\n\n",
             problem.shape().name, plan::short_count(problem.shape().parameters()), problem.space().gpus.back(),
             planned.cluster.processor.name, planned.policy.global_batch, problem.shape().seq, problem.space().size(),
             problem.num_axes());
  if (for_run_file) fmt::print("--out: searching only layouts that the trainer supports\n\n");
  print_methods(problem, results);
  print_best(problem, best);
  if (pareto) print_front(problem, best.front);
}

// Writes a run file for the best policy that the trainer accepts. Better policies that it rejects (offload, precision)
// are skipped; the reason is printed.
void write_run_file(const SearchOptions& o, const plan::PlanProblem& problem, const plan::SearchResult& result) {
  std::string reason;
  for (const plan::RankedChoice& one : result.top) {
    try {
      write_file(o.out, trainable_run_file(o.inputs, problem.policy_at(one.choice)));
    } catch (const UsageError& error) {
      if (reason.empty()) reason = error.what();
      continue;
    }
    if (!reason.empty())
      fmt::print(stderr,
                 "{}: wrote {}, {} per step, the best that the trainer supports; better ones are not supported: {}\n",
                 o.out, problem.text_of(one.choice), plan::seconds(one.time_s), reason);
    return;
  }
  throw UsageError(fmt::format("--out {}: the trainer supports none of the best {} layouts (--top lists more): {}",
                               o.out, result.top.size(), reason));
}

// --also runs a different search: one pipeline, found by dynamic programming, with the shortest step time. Rejects
// options that this search does not use.
void check_mixed(const SearchOptions& o) {
  const SearchOptions plain;
  for (const auto& [option, given] : {std::pair{"--method", o.method != plain.method},
                                      {"--objective", o.objective != plain.objective},
                                      {"--axis", !o.axes.empty()},
                                      {"--choose-gpus", !o.choices.empty()},
                                      {"--top", o.top != plain.top},
                                      {"--pareto", o.pareto},
                                      {"--explain", o.explain},
                                      {"--html", !o.html.empty()},
                                      {"--out", !o.out.empty()}})
    if (given)
      throw UsageError(fmt::format("{}: has no effect with --also, which allows only --json. Leave it out", option));
}

int run_search(const SearchOptions& o) {
  if (!o.also.empty()) {
    check_mixed(o);
    return run_heterogeneous_search(o.inputs, o.also, o.json);
  }
  if (o.evaluations < 0)
    throw UsageError(fmt::format("--evaluations: got {}; expected 1 or more, or 0 for the default", o.evaluations));
  if (o.top < 1 || o.top > 10000) throw UsageError(fmt::format("--top: got {}; expected 1 to 10000", o.top));
  const ResolvedPlan planned = read_plan_inputs(o.inputs);
  const plan::PlanProblem problem(planned.shape, planned.cluster, space_of(o, planned), plan::objective(o.objective));
  plan::SearchOptions options;
  options.top = static_cast<size_t>(o.top);
  options.pareto = o.pareto || !o.html.empty();
  options.keep_seen = o.html.empty() ? 0 : kPointsOfPicture;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  options.seed = o.seed;
  options.evaluations = o.evaluations;
  std::vector<plan::SearchResult> results;
  for (const plan::SearchMethod& method : plan::search_methods())
    if (o.method == "all" || o.method == method.name) results.push_back(method.run(problem, options));
  if (results.empty()) plan::search_method(o.method);  // for an unknown method: throws with the list of methods
  const auto best = std::min_element(results.begin(), results.end(), [](const auto& a, const auto& b) {
    return a.found() && (!b.found() || a.best().value < b.best().value);
  });
  if (!best->found()) throw_nothing_fits(problem, *best);

  const bool prints_text = o.json != "-";  // with --json -, stdout is for JSON only
  if (prints_text) print_results(problem, planned, results, *best, o.pareto, !o.out.empty());
  plan::Explanation explanation;
  if (o.explain) {
    explanation = plan::explain(problem, best->best().choice);
    if (prints_text) fmt::print("{}", plan::to_text(explanation));
  }
  if (!o.json.empty()) {
    Json json = result_json(problem, *best, o);
    if (o.explain) json["explain"] = plan::to_json(explanation);
    if (results.size() > 1) {
      json["methods"] = Json::array();
      for (const plan::SearchResult& one : results) json["methods"].push_back(result_json(problem, one, o));
    }
    write_file(o.json, json.dump(2) + "\n");
  }
  if (!o.html.empty()) write_file(o.html, landscape_page(problem, *best, o.explain ? plan::to_text(explanation) : ""));
  if (!o.out.empty()) write_run_file(o, problem, *best);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_plan_search(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<SearchOptions>(app, chosen, run_search);
  add_plan_inputs(app, o->inputs, false);
  app.add_option("--method", o->method,
                 "exhaustive, dynamic, integer, evolution, annealing, gradient, or all [integer]")
      .type_name("NAME");
  app.add_option("--objective", o->objective, "quantity to optimise: time, cost, memory or goodput [time]")
      .type_name("NAME");
  app.add_option("--choose-gpus", o->choices, "numbers of devices to search over, for --objective cost")
      .type_name("N,N")
      .delimiter(',');
  app.add_option("--axis", o->axes, "restrict an axis: tp=4,8, schedule=1f1b,interleaved:2 …; repeatable")
      .type_name("AXIS=V,V")
      .one_word_each();
  app.add_option("--also", o->also, "add devices of another cluster, for one pipeline over both: dgx-1:16; repeatable")
      .type_name("CLUSTER:N")
      .one_word_each();
  app.add_option("--top", o->top, "number of best layouts to list [10]").type_name("K");
  app.add_flag("--pareto", o->pareto, "also print the Pareto front of time and memory");
  app.add_flag("--explain", o->explain, "explain the best layout and its limits");
  app.add_option("--seed", o->seed, "seed of randomised methods [1]").type_name("S");
  app.add_option("--evaluations", o->evaluations, "maximum evaluations of randomised methods").type_name("N");
  app.add_option("--json", o->json, "write the results as JSON; - is stdout").type_name("FILE");
  app.add_option("--html", o->html, "write a page with a scatter plot of the search").type_name("FILE");
  app.add_option("--out", o->out, "write the best layout as a run file").type_name("RUN.toml");
}

}  // namespace esp::app
