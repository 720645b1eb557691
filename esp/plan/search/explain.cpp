#include "esp/plan/search/explain.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/plan/report.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

constexpr double kStep = 0.01;   // relative change of a figure, for a derivative
constexpr double kMore = 1.25;   // factor on memory
constexpr double kWorth = 0.02;  // of the step: smaller parts are not reported as binding

std::vector<CostShare> shares(std::vector<CostShare> all, double whole) {
  for (CostShare& one : all) one.part = whole > 0 ? one.seconds / whole : 0;
  std::erase_if(all, [](const CostShare& one) { return one.part < 1e-3; });
  std::stable_sort(all.begin(), all.end(),
                   [](const CostShare& a, const CostShare& b) { return a.seconds > b.seconds; });
  return all;
}

std::vector<CostShare> parts_of_time(const Estimate& e) {
  std::vector<CostShare> all = {{"compute", e.compute_s, 0},
                                {"pipeline bubble", e.bubble_s, 0},
                                {"optimizer", e.optimizer_s, 0},
                                {"offload", e.offload_s, 0}};
  for (const GroupTraffic& row : e.traffic)
    all.push_back({fmt::format("{} {} ({} links)", row.group, row.op, row.tier), row.exposed_s, 0});
  return shares(std::move(all), e.step_s);
}

std::vector<CostShare> parts_of_memory(const Memory& m) {
  return shares({{"parameters", m.parameter, 0},
                 {"gradients", m.gradient, 0},
                 {"optimizer states", m.optimizer, 0},
                 {"activations", m.activation, 0},
                 {"buffers", m.buffer, 0},
                 {"fragmentation", m.slack, 0},
                 {"context and libraries", m.other, 0}},
                m.total());
}

// The choice with one axis changed; later axes that break a rule take the nearest allowed value.
bool change(const PlanProblem& problem, Choice& choice, size_t axis, size_t value) {
  choice[axis] = static_cast<uint8_t>(value);
  if (!problem.allowed(choice, axis + 1)) return false;
  for (size_t later = axis + 1; later < problem.num_axes(); ++later) {
    if (problem.allowed(choice, later + 1)) continue;
    const auto was = static_cast<int>(choice[later]), n = static_cast<int>(problem.axes()[later].values.size());
    bool found = false;
    for (int apart = 1; apart < n && !found; ++apart)
      for (const int near : {was - apart, was + apart}) {
        if (near < 0 || near >= n || found) continue;
        choice[later] = static_cast<uint8_t>(near);
        found = problem.allowed(choice, later + 1);
      }
    if (!found) return false;
  }
  return true;
}

Alternative best_other(const PlanProblem& problem, const Choice& choice, size_t axis, double value) {
  const SearchAxis& of = problem.axes()[axis];
  Alternative best{of.name, of.values[choice[axis]], "", "", kNever, false, "no other value is valid"};
  double least_excess = kNever;
  for (size_t i = 0; i < of.values.size(); ++i) {
    Choice other = choice;
    if (i == choice[axis] || !change(problem, other, axis, i)) continue;
    const ChoiceMemory weight = problem.weigh(other);
    if (!weight.fits) {
      if (best.fits || weight.excess >= least_excess) continue;
      least_excess = weight.excess;
      best.to = of.values[i];
      best.policy = problem.text_of(other);
      best.why = fmt::format("{} of {}: too large", gigabytes(weight.memory_bytes), gigabytes(problem.capacity(other)));
      continue;
    }
    const double changed = problem.worth(other).value / value - 1;
    if (best.fits && changed >= best.change) continue;
    best = {of.name, of.values[choice[axis]], of.values[i], problem.text_of(other), changed, true, ""};
  }
  return best;
}

std::vector<Sensitivity> sensitivities(const PlanProblem& problem, const Choice& choice) {
  const Policy policy = problem.policy_at(choice);
  const Cluster& cluster = problem.cluster_at(choice);
  const double now = estimate(problem.shape(), cluster, policy).step_s;
  const struct {
    const char* name;
    void (*scale)(Cluster& cluster, double by);
  } figures[] = {
      {"arithmetic rate",
       [](Cluster& c, double by) {
         for (double* rate : {&c.processor.fp32_flops, &c.processor.tf32_flops, &c.processor.fp16_flops,
                              &c.processor.bf16_flops, &c.processor.fp8_flops, &c.processor.fp4_flops})
           *rate *= by;
       }},
      {"memory bandwidth", [](Cluster& c, double by) { c.processor.memory_bandwidth *= by; }},
      {"bandwidth inside a node", [](Cluster& c, double by) { c.inside.bandwidth *= by; }},
      {"bandwidth across nodes", [](Cluster& c, double by) { c.across.bandwidth *= by; }},
      {"latency inside a node", [](Cluster& c, double by) { c.inside.latency *= by; }},
      {"latency across nodes", [](Cluster& c, double by) { c.across.latency *= by; }},
      {"host link", [](Cluster& c, double by) { c.host.bandwidth *= by; }},
  };
  std::vector<Sensitivity> all;
  for (const auto& figure : figures) {
    double times[2];
    for (const int side : {0, 1}) {
      Cluster other = cluster;
      figure.scale(other, side ? 1 + kStep : 1 / (1 + kStep));
      times[side] = estimate(problem.shape(), other, policy).step_s;
    }
    const double elasticity = now > 0 ? std::log(times[1] / times[0]) / (2 * std::log(1 + kStep)) : 0;
    if (std::abs(elasticity) >= 1e-3) all.push_back({figure.name, elasticity});
  }
  std::stable_sort(all.begin(), all.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return std::abs(a.elasticity) > std::abs(b.elasticity);
  });
  return all;
}

// The best value of the same space under another condition.
double best_value(const ModelShape& shape, const Cluster& cluster, const Space& space, const SearchObjective& objective,
                  std::string& policy) {
  const PlanProblem problem(shape, cluster, space, objective);
  const SearchResult result = search_integer(problem, {.top = 1});
  if (!result.found()) return kNever;
  policy = problem.text_of(result.best().choice);
  return result.best().value;
}

void tell_memory(const PlanProblem& problem, const Choice& choice, double value, Explanation& to) {
  if (to.capacity == 0) return;
  const double used = to.memory_bytes / to.capacity;
  Cluster larger = problem.cluster_at(choice);
  larger.processor.memory_bytes *= kMore;
  Space space = problem.space();
  space.gpus = {space.gpus[choice[0]]};
  std::string policy;
  const double gained = 1 - best_value(problem.shape(), larger, space, problem.objective(), policy) / value;
  if (gained > 1e-3)
    to.binds.push_back(
        fmt::format("memory ({:.0f} % full, mostly {}): with {:.0f} % more the best would be {:.1f} % "
                    "better, {}",
                    100 * used, to.memory.front().what, 100 * (kMore - 1), 100 * gained, policy));
  else
    to.binds.push_back(
        fmt::format("not memory: {:.0f} % full, and {:.0f} % more would not help", 100 * used, 100 * (kMore - 1)));
}

void tell_batch(const PlanProblem& problem, const Choice& choice, const Estimate& now, Explanation& to) {
  Policy policy = problem.policy_at(choice);
  policy.global_batch *= 2;
  if (broken(problem.shape(), problem.cluster_at(choice), policy)) return;
  const double per_sequence = estimate(problem.shape(), problem.cluster_at(choice), policy).step_s / 2 / now.step_s - 1;
  if (per_sequence < -kWorth)
    to.binds.push_back(
        fmt::format("the batch: {} micro-batches for {} stages and {} copies; twice as many sequences "
                    "would take {:.1f} % less time each",
                    problem.policy_at(choice).num_micro_batches(), policy.pp, policy.dp, -100 * per_sequence));
}

void tell_time(Explanation& to) {
  for (const CostShare& one : to.time)
    if (one.part >= kWorth)
      to.binds.push_back(fmt::format("{}: {} of the step, {:.1f} %", one.what, seconds(one.seconds), 100 * one.part));
}

}  // namespace

Explanation explain(const PlanProblem& problem, const Choice& choice) {
  const Estimate now = problem.estimate_at(choice);
  Explanation all;
  all.policy = problem.text_of(choice);
  all.time = parts_of_time(now);
  all.memory = parts_of_memory(now.memory);
  all.memory_bytes = now.memory.total();
  all.capacity = problem.capacity(choice);
  all.warnings = now.reasons;
  const double value = problem.worth(choice).value;
  tell_time(all);
  tell_memory(problem, choice, value, all);
  tell_batch(problem, choice, now, all);
  for (size_t axis = 0; axis < problem.num_axes(); ++axis)
    if (problem.axes()[axis].values.size() > 1) {
      Alternative other = best_other(problem, choice, axis, value);
      if (!other.to.empty()) all.alternatives.push_back(std::move(other));
    }
  std::stable_sort(all.alternatives.begin(), all.alternatives.end(), [](const Alternative& a, const Alternative& b) {
    return a.fits != b.fits ? a.fits : a.fits && a.change < b.change;
  });
  all.sensitivities = sensitivities(problem, choice);
  return all;
}

std::string to_text(const Explanation& all) {
  std::string text = fmt::format("{}\n\nTime of a step\n", all.policy);
  for (const CostShare& one : all.time)
    text += fmt::format("  {:5.1f} %  {:<34} {}\n", 100 * one.part, one.what, seconds(one.seconds));
  text += fmt::format("\nMemory of the fullest processor, {} of {}\n", gigabytes(all.memory_bytes),
                      gigabytes(all.capacity));
  for (const CostShare& one : all.memory)
    text += fmt::format("  {:5.1f} %  {:<34} {}\n", 100 * one.part, one.what, gigabytes(one.seconds));
  text += "\nWhat limits it\n";
  for (const std::string& one : all.binds) text += "  " + one + "\n";
  text += "\nBest other value of each axis\n";
  for (const Alternative& one : all.alternatives)
    text += one.fits ? fmt::format("  {:+6.1f} %  {:<12} {} → {}\n", 100 * one.change, one.axis, one.from, one.to)
                     : fmt::format("  no memory {:<12} {} → {} ({})\n", one.axis, one.from, one.to, one.why);
  text += "\nChange of the step time per +1 % of a figure\n";
  for (const Sensitivity& one : all.sensitivities)
    text += fmt::format("  {:+6.3f} %  {}\n", one.elasticity, one.figure);
  if (!all.warnings.empty()) text += "\nWarnings\n";
  for (const std::string& one : all.warnings) text += "  " + one + "\n";
  return text;
}

Json to_json(const Explanation& all) {
  const auto list = [](const std::vector<CostShare>& parts, const char* unit) {
    Json rows = Json::array();
    for (const CostShare& one : parts) rows.push_back({{"what", one.what}, {unit, one.seconds}, {"part", one.part}});
    return rows;
  };
  Json alternatives = Json::array(), figures = Json::object();
  for (const Alternative& one : all.alternatives) {
    Json row = {{"axis", one.axis}, {"from", one.from}, {"to", one.to}, {"fits", one.fits}, {"policy", one.policy}};
    if (one.fits)
      row["change"] = one.change;
    else
      row["why"] = one.why;
    alternatives.push_back(row);
  }
  for (const Sensitivity& one : all.sensitivities) figures[one.figure] = one.elasticity;
  return {{"policy", all.policy},    {"time", list(all.time, "seconds")}, {"memory", list(all.memory, "bytes")},
          {"binds", all.binds},      {"one_change", alternatives},        {"elasticity", figures},
          {"warnings", all.warnings}};
}

}  // namespace esp::plan
