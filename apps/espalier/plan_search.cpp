// espalier plan search: the best policy for a model on a cluster, by any of the methods, and why it is the best.
#include <algorithm>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/auto_layout.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/plan.h"
#include "apps/espalier/plan_inputs.h"
#include "apps/espalier/plan_landscape.h"
#include "apps/espalier/plan_mixed.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/plan/report.h"
#include "esp/plan/search/explain.h"
#include "esp/plan/search/methods.h"
#include "esp/plan/search/nearest.h"
#include "esp/plan/search/plan_problem.h"
#include "esp/plan/search/ties.h"

namespace esp::app {
namespace {

constexpr size_t kPointsOfPicture = 3000;

struct SearchFlags {
  PlanInputs inputs;
  std::string method = "integer", objective = "time", json, html, out;
  std::vector<std::string> axes, also;
  std::vector<int> choices;  // of numbers of processors
  int64_t top = 10;
  bool pareto = false, explain = false;
  uint64_t seed = 1;
  int64_t evaluations = 0;
};

plan::Space space_of(const SearchFlags& o, const Planned& planned) {
  std::vector<int> gpus = o.choices;
  for (const int n : gpus)
    if (n < 1 || n > planned.cluster.size())
      throw UsageError(fmt::format("--choose-gpus: got {}; expected 1 to the cluster's {}", n, planned.cluster.size()));
  std::sort(gpus.begin(), gpus.end());
  gpus.erase(std::unique(gpus.begin(), gpus.end()), gpus.end());
  if (gpus.empty()) gpus = {planned.cluster.size()};
  plan::Space space = o.inputs.run.empty() ? plan::whole_space(planned.shape, planned.cluster, planned.policy, gpus)
                                           : space_of_run(train::read_run_config(o.inputs.run, o.inputs.overrides),
                                                          planned.shape, planned.cluster, planned.policy, gpus);
  if (!o.out.empty() && o.inputs.run.empty()) keep_trainable(space, o.inputs);
  for (const std::string& one : o.axes) plan::narrow(space, one);
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

// Of the layouts listed, those within the planner's error of the best; none where the best stands alone.
std::vector<bool> ties_of(const plan::PlanProblem& problem, const plan::SearchResult& result) {
  const double error = plan::tie_error(problem, result.best());
  std::vector<bool> ties;
  for (const plan::RankedChoice& one : result.top) ties.push_back(plan::is_tie(result.best(), one, error));
  if (std::count(ties.begin(), ties.end(), true) < 2) ties.assign(ties.size(), false);
  return ties;
}

Json result_json(const plan::PlanProblem& problem, const plan::SearchResult& result, const SearchFlags& o) {
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
    const std::vector<bool> ties = ties_of(problem, result);
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
  const std::vector<bool> ties = ties_of(problem, result);
  std::vector<Cells> rows;
  for (size_t i = 0; i < result.top.size(); ++i)
    rows.push_back({problem.text_of(result.top[i].choice), plan::seconds(result.top[i].time_s),
                    plan::gigabytes(result.top[i].memory_bytes), ties[i] ? "tie" : ""});
  fmt::print("{}", text_table({"best layouts", "step", "memory", ""}, rows));
  const auto num_ties = std::count(ties.begin(), ties.end(), true);
  const std::string error = fmt::format("{:.3g} %", 100 * plan::tie_error(problem, result.best()));
  if (ties.size() == 1)
    fmt::print("no other layout is listed (--top, --axis), so ties with the best are not known\n\n");
  else if (num_ties == 0)
    fmt::print("no ties: every other layout listed is more than the planner's error of {} behind the best\n\n", error);
  else
    fmt::print(
        "ties: {} of the {} layouts listed lie within the planner's error of {} of the best; they are ordered {}\n\n",
        num_ties, ties.size(), error, plan::kTieBreak);
}

void print_front(const plan::PlanProblem& problem, const std::vector<plan::RankedChoice>& list) {
  std::vector<Cells> rows;
  for (const plan::RankedChoice& one : list)
    rows.push_back({problem.text_of(one.choice), plan::seconds(one.time_s), plan::gigabytes(one.memory_bytes)});
  fmt::print("{}\n", text_table({"time against memory", "step", "memory"}, rows));
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

// Nothing fits: what comes nearest, and by how much it misses.
[[noreturn]] void nothing_fits(const plan::PlanProblem& problem, const plan::SearchResult& result) {
  const plan::NearestMiss miss = plan::nearest_miss(problem);
  if (!miss.any)
    throw UsageError(fmt::format(
        "no layout of {} on {} processors with a global batch of {} is valid ({} looked at). Try a batch or a "
        "number of processors with more divisors",
        problem.shape().name, problem.space().gpus.back(), problem.space().base.global_batch,
        result.counts.considered));
  throw UsageError(fmt::format(
      "{} does not fit on {} processors of {}: the layout that needs least memory, {}, needs {}. Try more processors "
      "or {}",
      problem.shape().name, problem.space().gpus.back(), plan::gigabytes(problem.capacity(miss.choice)),
      problem.text_of(miss.choice), plan::gigabytes(miss.memory_bytes),
      problem.space().offload.size() > 1 ? "a smaller model" : "--axis offload=none,host where there is a host link"));
}

void print_results(const plan::PlanProblem& problem, const Planned& planned,
                   const std::vector<plan::SearchResult>& results, const plan::SearchResult& best, bool pareto,
                   bool for_run_file) {
  fmt::print("{}, {} parameters, on {} x {}; global batch {} sequences of {} tokens; {:.0f} layouts over {} axes\n\n",
             problem.shape().name, plan::short_count(problem.shape().parameters()), problem.space().gpus.back(),
             planned.cluster.processor.name, planned.policy.global_batch, problem.shape().seq, problem.space().size(),
             problem.num_axes());
  if (for_run_file) fmt::print("--out: only layouts that this program trains are searched\n\n");
  print_methods(problem, results);
  print_best(problem, best);
  if (pareto) print_front(problem, best.front);
}

// The best that the trainer takes: what its other rules refuse (of offload, of precision) is said and passed over.
void write_run_file(const SearchFlags& o, const plan::PlanProblem& problem, const plan::SearchResult& result) {
  std::string reason;
  for (const plan::RankedChoice& one : result.top) {
    try {
      write_file(o.out, run_file_of(o.inputs, problem.policy_at(one.choice)));
    } catch (const UsageError& error) {
      if (reason.empty()) reason = error.what();
      continue;
    }
    if (!reason.empty())
      fmt::print(stderr, "{}: the best that this program trains is {}, {} a step; not the first: {}\n", o.out,
                 problem.text_of(one.choice), plan::seconds(one.time_s), reason);
    return;
  }
  throw UsageError(fmt::format("--out {}: none of the best {} is trained by this program (--top looks further): {}",
                               o.out, result.top.size(), reason));
}

// --also is another search: one pipeline, by dynamic programming, for the time of a step.
void check_mixed(const SearchFlags& o) {
  const SearchFlags plain;
  for (const auto& [option, given] : {std::pair{"--method", o.method != plain.method},
                                      {"--objective", o.objective != plain.objective},
                                      {"--axis", !o.axes.empty()},
                                      {"--choose-gpus", !o.choices.empty()},
                                      {"--top", o.top != plain.top},
                                      {"--pareto", o.pareto},
                                      {"--explain", o.explain},
                                      {"--html", !o.html.empty()},
                                      {"--out", !o.out.empty()}})
    if (given) throw UsageError(fmt::format("{}: has no effect with --also; expected only --json beside it", option));
}

int run_search(const SearchFlags& o) {
  if (!o.also.empty()) {
    check_mixed(o);
    return run_mixed_search(o.inputs, o.also, o.json);
  }
  if (o.evaluations < 0)
    throw UsageError(fmt::format("--evaluations: got {}; expected 1 or more, or 0 for the default", o.evaluations));
  if (o.top < 1 || o.top > 10000) throw UsageError(fmt::format("--top: got {}; expected 1 to 10000", o.top));
  const Planned planned = read_plan_inputs(o.inputs);
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
  if (results.empty()) plan::search_method(o.method);  // says what there is
  const auto best = std::min_element(results.begin(), results.end(), [](const auto& a, const auto& b) {
    return a.found() && (!b.found() || a.best().value < b.best().value);
  });
  if (!best->found()) nothing_fits(problem, *best);

  const bool spoken = o.json != "-";  // else stdout is the program's that reads it
  if (spoken) print_results(problem, planned, results, *best, o.pareto, !o.out.empty());
  plan::Explanation explanation;
  if (o.explain) {
    explanation = plan::explain(problem, best->best().choice);
    if (spoken) fmt::print("{}", plan::to_text(explanation));
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

void define_plan_search(const Arguments& app, Chosen& chosen) {
  auto o = keep<SearchFlags>(app, chosen, run_search);
  add_plan_inputs(app, o->inputs, false);
  app.add_option("--method", o->method,
                 "exhaustive, dynamic, integer, evolution, annealing, gradient, or all [integer]")
      .type_name("NAME");
  app.add_option("--objective", o->objective, "time, cost, memory or goodput [time]").type_name("NAME");
  app.add_option("--choose-gpus", o->choices, "numbers of processors to choose from, for cost")
      .type_name("N,N")
      .delimiter(',');
  app.add_option("--axis", o->axes, "only these values of an axis: tp=4,8, schedule=1f1b,interleaved:2 …; may repeat")
      .type_name("AXIS=V,V")
      .one_word_each();
  app.add_option("--also", o->also, "one pipeline over these processors too, as dgx-1:16; may repeat")
      .type_name("CLUSTER:N")
      .one_word_each();
  app.add_option("--top", o->top, "so many of the best [10]").type_name("K");
  app.add_flag("--pareto", o->pareto, "the front of time against memory as well");
  app.add_flag("--explain", o->explain, "why the best is the best, and what binds it");
  app.add_option("--seed", o->seed, "of methods that draw [1]").type_name("S");
  app.add_option("--evaluations", o->evaluations, "most that methods that draw ask about").type_name("N");
  app.add_option("--json", o->json, "results for programs; - is stdout").type_name("FILE");
  app.add_option("--html", o->html, "a page with the landscape of what was searched").type_name("FILE");
  app.add_option("--out", o->out, "the best as a run file").type_name("RUN.toml");
}

}  // namespace esp::app
