#include "apps/espalier/lab_divergent.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"

namespace esp::app {
namespace {

struct ProblemRow {
  std::string_view name;
  std::unique_ptr<sync::OptimizationProblem> (*make)(const sync::ProblemOptions&);
};
constexpr ProblemRow kProblems[] = {
    {"quadratic", [](const sync::ProblemOptions& o) { return sync::make_quadratic(o); }},
    {"logistic", sync::make_logistic},
};

std::vector<double> mean_of(const std::vector<std::vector<double>>& x) {
  std::vector<double> mean(x[0].size());
  for (const auto& one : x)
    for (size_t d = 0; d < mean.size(); ++d) mean[d] += one[d] / static_cast<double>(x.size());
  return mean;
}

// Bytes that this rank sent. Almost all are weights: the consensus distance is one element.
uint64_t sent(const comm::Communicator& ranks) {
  uint64_t bytes = 0;
  for (const comm::CallStats& s : ranks.stats()) bytes += s.bytes_sent;
  return bytes;
}

}  // namespace

void add_divergent_options(const Arguments& app, DivergentLabOptions& o) {
  app.add_option("--nproc", o.nproc, "ranks, each a node of the problem [8]").type_name("N");
  app.add_option("--problem", o.problem, "objective [quadratic]").type_name("quadratic|logistic");
  app.add_option("--dim", o.dim, "dimension of the problem [64]").type_name("D");
  app.add_option("--heterogeneity", o.heterogeneity, "heterogeneity of the nodes' minima [1]").type_name("Z");
  app.add_option("--noise", o.noise, "standard deviation of gradient noise [0.5]").type_name("S");
  app.add_option("--steps", o.steps, "steps of each method [640]").type_name("N");
  app.add_option("--lr", o.lr, "step size [0.05]").type_name("G");
  app.add_option("--json", o.json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o.out, "folder for text, JSON and picture").type_name("DIR");
}

void check(const DivergentLabOptions& o) {
  if (o.nproc < 2 || o.nproc > 64) throw UsageError(fmt::format("--nproc: got {}; expected 2 to 64 ranks", o.nproc));
  if (o.steps < 10 || o.dim < 1 || o.dim > 1'000'000)
    throw UsageError(
        fmt::format("got --steps {}, --dim {}; expected --steps >= 10, --dim from 1 to 1000000", o.steps, o.dim));
  if (!(o.lr > 0) || !(o.noise >= 0) || !(o.heterogeneity >= 0))
    throw UsageError(fmt::format(
        "got --lr {}, --noise {}, --heterogeneity {}; expected --lr > 0, --noise >= 0, --heterogeneity >= 0", o.lr,
        o.noise, o.heterogeneity));
  find_row("--problem", kProblems, o.problem);
}

std::unique_ptr<sync::OptimizationProblem> make_problem(const DivergentLabOptions& o) {
  sync::ProblemOptions options;
  options.nodes = o.nproc;
  options.dim = o.dim;
  options.heterogeneity = o.heterogeneity;
  options.noise = o.noise;
  options.max_curvature = 3;
  return find_row("--problem", kProblems, o.problem).make(options);
}

std::string settings_text(const DivergentLabOptions& o, const sync::OptimizationProblem& problem) {
  return fmt::format(
      "{} ranks, each a node of a {} problem in {} coordinates: L = {:.3f}, σ = {}, heterogeneity {}; SGD "
      "with step {} for {} steps",
      o.nproc, o.problem, o.dim, problem.smoothness(), o.noise, o.heterogeneity, o.lr, o.steps);
}

DivergentRun run_divergent(const DivergentLabOptions& o, const sync::OptimizationProblem& problem,
                           const DivergentCase& spec) {
  const auto ranks = static_cast<size_t>(o.nproc);
  DivergentRun run{spec, std::vector<double>(static_cast<size_t>(o.steps)), 0, 0, 0, 0};
  std::vector<std::vector<std::vector<double>>> seen(ranks);  // indexed by rank and step
  std::vector<uint64_t> bytes(ranks);
  sync::run_on_ranks(o.nproc, [&](comm::Communicator* comm) {
    const auto r = static_cast<size_t>(comm->rank());
    sync::ProblemTrainingOptions options;
    options.sync = spec.sync;
    options.lr = o.lr;
    options.steps = o.steps;
    options.on_step = [&](int64_t, std::span<const double> x, sync::Strategy&) {
      seen[r].emplace_back(x.begin(), x.end());
    };
    sync::train_problem(problem, comm, options);
    bytes[r] = sent(*comm);
  });
  const auto dim = static_cast<double>(o.dim);
  const double least = problem.loss(problem.minimiser());
  const int64_t last = std::max<int64_t>(1, o.steps / 10);
  for (size_t k = 0; k < run.error.size(); ++k) {
    std::vector<std::vector<double>> x;
    for (const auto& rank : seen) x.push_back(rank[k]);
    for (const auto& one : x) run.error[k] += problem.squared_distance(one) / dim / static_cast<double>(ranks);
    if (static_cast<int64_t>(k) < o.steps - last) continue;
    const std::vector<double> mean = mean_of(x);
    run.excess += (problem.loss(mean) - least) / static_cast<double>(last);
    if (k + 1 < run.error.size()) continue;
    for (const auto& one : x) {
      run.worst = std::max(run.worst, std::sqrt(problem.squared_distance(one) / dim));
      for (size_t d = 0; d < mean.size(); ++d)
        run.consensus += (one[d] - mean[d]) * (one[d] - mean[d]) / dim / static_cast<double>(ranks);
    }
  }
  run.bytes = *std::max_element(bytes.begin(), bytes.end());
  return run;
}

Cells table_head() {
  return {"method", "bytes/step", "formula", "f(x̄) − f*", "error of worst rank", "consensus"};
}

Cells table_row(const DivergentLabOptions& o, const DivergentRun& run) {
  const auto steps = static_cast<double>(o.steps);
  return {run.spec.name,
          fmt::format("{:.1f}", static_cast<double>(run.bytes) / steps),
          run.spec.formula_bytes < 0 ? "" : fmt::format("{:.1f}", run.spec.formula_bytes / steps),
          fmt::format("{:.3e}", run.excess),
          fmt::format("{:.4f}", run.worst),
          fmt::format("{:.2e}", run.consensus)};
}

Json report_json(const DivergentLabOptions& o, const sync::OptimizationProblem& problem,
                 const std::vector<DivergentRun>& runs) {
  Json rows = Json::array();
  for (const DivergentRun& run : runs)
    rows.push_back({{"name", run.spec.name},
                    {"method", run.spec.sync.method},
                    {"bytes", run.bytes},
                    {"formula_bytes", run.spec.formula_bytes},
                    {"excess_loss", run.excess},
                    {"worst", run.worst},
                    {"consensus", run.consensus},
                    {"error", run.error}});
  return {{"ranks", o.nproc},
          {"problem", o.problem},
          {"dim", o.dim},
          {"steps", o.steps},
          {"lr", o.lr},
          {"noise", o.noise},
          {"heterogeneity", o.heterogeneity},
          {"smoothness", problem.smoothness()},
          {"rows", rows}};
}

namespace {

// The averaging period of a method. Its error jumps at each average, so the curve shows the mean over one period.
size_t period_of(const sync::Options& options) {
  if (options.method == "local") return static_cast<size_t>(options.tau);
  return options.method == "allreduce" ? 1 : static_cast<size_t>(std::max<int64_t>(1, options.period));
}

double mean_before(const std::vector<double>& error, size_t end, size_t period) {
  const size_t begin = end > period ? end - period : 0;
  double sum = 0;
  for (size_t k = begin; k < end; ++k) sum += error[k];
  return sum / static_cast<double>(end - begin);
}

}  // namespace

std::vector<PictureSeries> error_series(const std::vector<DivergentRun>& runs) {
  std::vector<PictureSeries> all;
  for (const DivergentRun& run : runs) {
    PictureSeries series{run.spec.name, {}, false};
    double next = 1;
    for (size_t k = 0; k < run.error.size(); ++k) {
      if (static_cast<double>(k + 1) < next) continue;
      const double error = mean_before(run.error, k + 1, period_of(run.spec.sync));
      if (error > 0) series.points.emplace_back(static_cast<double>(k + 1), error);
      next = std::max(next + 1, next * 1.03);
    }
    all.push_back(std::move(series));
  }
  return all;
}

}  // namespace esp::app
