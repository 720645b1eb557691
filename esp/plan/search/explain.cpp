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

constexpr double kRelativeChange = 0.01;  // relative change of a hardware figure, for a numerical derivative
constexpr double kMemoryFactor = 1.25;    // factor on the memory capacity, to compute the gain from more memory
constexpr double kMinFraction = 0.02;     // parts below this fraction of the step are not listed as limits

std::vector<CostShare> shares(std::vector<CostShare> all, double whole) {
  for (CostShare& one : all) one.fraction = whole > 0 ? one.amount / whole : 0;
  std::erase_if(all, [](const CostShare& one) { return one.fraction < 1e-3; });
  std::stable_sort(all.begin(), all.end(), [](const CostShare& a, const CostShare& b) { return a.amount > b.amount; });
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
                 {"CUDA context and libraries", m.other, 0}},
                m.total());
}

// Changes one axis of the choice. If a later axis then breaks a rule, it takes the nearest allowed value. Returns false
// if no value is allowed.
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
    const ChoiceMemory memory = problem.choice_memory(other);
    if (!memory.fits) {
      if (best.fits || memory.excess >= least_excess) continue;
      least_excess = memory.excess;
      best.to = of.values[i];
      best.policy = problem.text_of(other);
      best.why = fmt::format("{} of {}: too large", gigabytes(memory.memory_bytes), gigabytes(problem.capacity(other)));
      continue;
    }
    const double changed = problem.choice_value(other).value / value - 1;
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
      figure.scale(other, side ? 1 + kRelativeChange : 1 / (1 + kRelativeChange));
      times[side] = estimate(problem.shape(), other, policy).step_s;
    }
    const double elasticity = now > 0 ? std::log(times[1] / times[0]) / (2 * std::log(1 + kRelativeChange)) : 0;
    if (std::abs(elasticity) >= 1e-3) all.push_back({figure.name, elasticity});
  }
  std::stable_sort(all.begin(), all.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return std::abs(a.elasticity) > std::abs(b.elasticity);
  });
  return all;
}

// Value of the best choice that a search with this cluster and space finds. `policy` receives the description of the
// choice.
double best_value(const ModelShape& shape, const Cluster& cluster, const SearchSpace& space,
                  const SearchObjective& objective, std::string& policy) {
  const PlanProblem problem(shape, cluster, space, objective);
  const SearchResult result = search_integer(problem, {.top = 1});
  if (!result.found()) return kNever;
  policy = problem.text_of(result.best().choice);
  return result.best().value;
}

void explain_memory(const PlanProblem& problem, const Choice& choice, double value, Explanation& to) {
  if (to.capacity == 0) return;
  const double used = to.memory_bytes / to.capacity;
  Cluster larger = problem.cluster_at(choice);
  larger.processor.memory_bytes *= kMemoryFactor;
  SearchSpace space = problem.space();
  space.gpus = {space.gpus[choice[0]]};
  std::string policy;
  const double gained = 1 - best_value(problem.shape(), larger, space, problem.objective(), policy) / value;
  if (gained > 1e-3)
    to.limits.push_back(
        fmt::format("memory ({:.0f} % used, mostly {}): with {:.0f} % more memory the best layout would be "
                    "{:.1f} % better: {}",
                    100 * used, to.memory.front().name, 100 * (kMemoryFactor - 1), 100 * gained, policy));
  else
    to.limits.push_back(fmt::format("not memory: {:.0f} % is used, and {:.0f} % more memory would not help", 100 * used,
                                    100 * (kMemoryFactor - 1)));
}

void explain_batch(const PlanProblem& problem, const Choice& choice, const Estimate& now, Explanation& to) {
  Policy policy = problem.policy_at(choice);
  policy.global_batch *= 2;
  if (policy_error(problem.shape(), problem.cluster_at(choice), policy)) return;
  const double per_sequence = estimate(problem.shape(), problem.cluster_at(choice), policy).step_s / 2 / now.step_s - 1;
  if (per_sequence < -kMinFraction)
    to.limits.push_back(
        fmt::format("the global batch: {} micro-batches for {} stages and {} replicas; with a batch twice as large "
                    "a sequence would take {:.1f} % less time",
                    problem.policy_at(choice).num_micro_batches(), policy.pp, policy.dp, -100 * per_sequence));
}

void explain_time(Explanation& to) {
  for (const CostShare& one : to.time)
    if (one.fraction >= kMinFraction)
      to.limits.push_back(
          fmt::format("{}: {} of the step, {:.1f} %", one.name, seconds(one.amount), 100 * one.fraction));
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
  const double value = problem.choice_value(choice).value;
  explain_time(all);
  explain_memory(problem, choice, value, all);
  explain_batch(problem, choice, now, all);
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
  std::string text = fmt::format("{}\n\nStep time by part\n", all.policy);
  for (const CostShare& one : all.time)
    text += fmt::format("  {:5.1f} %  {:<34} {}\n", 100 * one.fraction, one.name, seconds(one.amount));
  text +=
      fmt::format("\nMemory of the fullest device, {} of {}\n", gigabytes(all.memory_bytes), gigabytes(all.capacity));
  for (const CostShare& one : all.memory)
    text += fmt::format("  {:5.1f} %  {:<34} {}\n", 100 * one.fraction, one.name, gigabytes(one.amount));
  text += "\nWhat limits it\n";
  for (const std::string& one : all.limits) text += "  " + one + "\n";
  text += "\nBest other value of each axis\n";
  for (const Alternative& one : all.alternatives)
    text += one.fits ? fmt::format("  {:+6.1f} %  {:<12} {} → {}\n", 100 * one.change, one.axis, one.from, one.to)
                     : fmt::format("  no fit    {:<12} {} → {} ({})\n", one.axis, one.from, one.to, one.why);
  text += "\nChange of the step time if a hardware figure grows by 1 %\n";
  for (const Sensitivity& one : all.sensitivities)
    text += fmt::format("  {:+6.3f} %  {}\n", one.elasticity, one.figure);
  if (!all.warnings.empty()) text += "\nWarnings\n";
  for (const std::string& one : all.warnings) text += "  " + one + "\n";
  return text;
}

Json to_json(const Explanation& all) {
  const auto list = [](const std::vector<CostShare>& parts, const char* unit) {
    Json rows = Json::array();
    for (const CostShare& one : parts) rows.push_back({{"what", one.name}, {unit, one.amount}, {"part", one.fraction}});
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
          {"binds", all.limits},     {"one_change", alternatives},        {"elasticity", figures},
          {"warnings", all.warnings}};
}

}  // namespace esp::plan
