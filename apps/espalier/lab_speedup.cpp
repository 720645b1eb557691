// espalier lab speedup: measures the linear speed-up of parallel SGD with real ranks, in two ways.
//
// Residual noise: for F = ½ a x² + noise of variance σ², E[x²] converges to γσ²/(n a (2 − γa)), so with n ranks it is n
// times smaller. Time: n ranks can use an n times larger step for the same noise, and then reach a given error in 1/n
// of the steps.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_picture.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/sync/problems/train_problem.h"

namespace esp::app {
namespace {

struct SpeedupLabOptions {
  std::vector<int> ranks = {1, 2, 4, 8};
  int64_t dim = 2000;
  double lr = 0.2, slow_lr = 0.005, sigma = 0.8, start = 2;
  std::string json, out;
};

constexpr double kCurvature = 1.5;
constexpr int64_t kSettled = 60, kMeasured = 160, kBetween = 8;

struct ScalingPoint {
  int ranks = 1;
  double settled = 0, formula = 0;  // E[x²] in the stationary phase: measured, and by the formula
  int64_t steps = 0;                // steps until E[x²] is twice the residual noise of one rank
};

std::unique_ptr<sync::OptimizationProblem> problem_of(const SpeedupLabOptions& o, int ranks) {
  const auto rows = [&](double value) {
    return std::vector(static_cast<size_t>(ranks), std::vector<double>(static_cast<size_t>(o.dim), value));
  };
  return sync::make_quadratic(rows(kCurvature), rows(0), o.sigma * std::sqrt(static_cast<double>(o.dim)));
}

double mean_square(std::span<const double> x) {
  double sum = 0;
  for (const double one : x) sum += one * one;
  return sum / static_cast<double>(x.size());
}

double residual_noise(double lr, double sigma, int ranks) {
  return lr * sigma * sigma / (ranks * kCurvature * (2 - lr * kCurvature));
}

// Trains on `ranks` ranks. The first rank calls f(step, mean of x²) after each step.
void run(const SpeedupLabOptions& o, int ranks, double lr, int64_t steps, double start,
         const std::function<void(int64_t, double)>& f) {
  const auto problem = problem_of(o, ranks);
  sync::run_on_ranks(ranks, [&](comm::Communicator* comm) {
    sync::ProblemTrainingOptions options;
    options.lr = lr;
    options.steps = steps;
    options.start.assign(static_cast<size_t>(o.dim), start);
    if (comm->rank() == 0)
      options.on_step = [&](int64_t step, std::span<const double> x, sync::Strategy&) { f(step, mean_square(x)); };
    sync::train_problem(*problem, comm, options);
  });
}

ScalingPoint measure(const SpeedupLabOptions& o, int ranks) {
  ScalingPoint point{ranks, 0, residual_noise(o.lr, o.sigma, ranks), 0};
  int64_t seen = 0;
  run(o, ranks, o.lr, kSettled + kMeasured, 0, [&](int64_t step, double square) {
    if (step < kSettled || step % kBetween != 0) return;
    point.settled += square;
    ++seen;
  });
  point.settled /= static_cast<double>(seen);
  const double lr = o.slow_lr * ranks, target = 2 * residual_noise(o.slow_lr, o.sigma, 1);
  // Upper limit of the steps: 1.5 times the number that gradient descent without noise needs.
  const auto most = static_cast<int64_t>(1.5 * std::log(o.start * o.start / target * 4) / (2 * lr * kCurvature)) + 20;
  run(o, ranks, lr, most, o.start, [&](int64_t step, double square) {
    if (point.steps == 0 && square <= target) point.steps = step + 1;
  });
  return point;
}

Json report(const SpeedupLabOptions& o, const std::vector<ScalingPoint>& points) {
  Json rows = Json::array();
  for (const ScalingPoint& p : points)
    rows.push_back({{"ranks", p.ranks},
                    {"settled", p.settled},
                    {"formula", p.formula},
                    {"steps_to_error", p.steps},
                    {"speedup", static_cast<double>(points[0].steps) / static_cast<double>(p.steps)}});
  return {{"dim", o.dim}, {"lr", o.lr}, {"sigma", o.sigma}, {"curvature", kCurvature}, {"rows", rows}};
}

int run_lab_speedup(const SpeedupLabOptions& asked) {
  SpeedupLabOptions o = asked;
  for (const int ranks : o.ranks)
    if (ranks < 1 || ranks > 64) throw UsageError(fmt::format("--ranks: got {}; expected 1 to 64", ranks));
  o.ranks.push_back(1);
  std::sort(o.ranks.begin(), o.ranks.end());
  o.ranks.erase(std::unique(o.ranks.begin(), o.ranks.end()), o.ranks.end());
  if (o.dim < 1 || o.dim > 10'000'000)
    throw UsageError(fmt::format("--dim: got {}; expected 1 to 10000000 coordinates", o.dim));
  if (!(o.lr > 0 && o.lr * kCurvature < 2))
    throw UsageError(fmt::format("--lr: got {}; expected a number in (0, 4/3)", o.lr));
  std::vector<ScalingPoint> points;
  std::vector<Cells> rows;
  PictureSeries measured{"measured", {}, false}, formula{"γσ²/(n a (2 − γa))", {}, true};
  for (const int ranks : o.ranks) {
    const ScalingPoint p = points.emplace_back(measure(o, ranks));
    rows.push_back({std::to_string(p.ranks), fmt::format("{:.6f}", p.settled), fmt::format("{:.6f}", p.formula),
                    fmt::format("{:+.2f} %", 100 * (p.settled / p.formula - 1)), std::to_string(p.steps),
                    fmt::format("{:.2f}", static_cast<double>(points[0].steps) / static_cast<double>(p.steps))});
    measured.points.emplace_back(p.ranks, p.settled);
    formula.points.emplace_back(p.ranks, p.formula);
  }
  const std::string text = fmt::format(
      "Parallel SGD on F = ½ a x² + noise, a = {}, σ = {}, {} coordinates; the noise of the ranks "
      "is independent\n"
      "\n"
      "{}E[x²]: residual noise with step size {}. Steps to the error: steps until the error is "
      "twice the residual noise of one rank,\n"
      "with step size {} · ranks.\n",
      kCurvature, o.sigma, o.dim,
      text_table({"ranks", "E[x²]", "formula", "difference", "steps to the error", "speed-up"}, rows), o.lr, o.slow_lr);
  Findings findings;
  // The measured mean has a smaller variance if there are more coordinates.
  const double scatter = 0.05 * std::max(1.0, std::sqrt(2000 / static_cast<double>(o.dim)));
  for (const ScalingPoint& p : points) {
    findings.within(fmt::format("{} rank{}: residual noise E[x²]", p.ranks, p.ranks == 1 ? "" : "s"), "O(σ/√(nT))",
                    p.formula, p.settled, scatter);
    if (p.ranks > 1)
      findings.within(fmt::format("{} ranks: reduction of the steps to the error", p.ranks), "n", p.ranks,
                      static_cast<double>(points[0].steps) / static_cast<double>(p.steps), 3 * scatter);
  }
  return finish_lab({o.json, o.out}, "speedup", text, report(o, points),
                    draw_svg("Residual noise of parallel SGD", "ranks", "E[x²]", {measured, formula}, Axes::plain),
                    findings);
}

}  // namespace

void define_lab_speedup(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<SpeedupLabOptions>(app, chosen, run_lab_speedup);
  app.add_option("--ranks", o->ranks, "numbers of ranks to measure [1,2,4,8]").delimiter(',').type_name("N");
  app.add_option("--dim", o->dim, "number of independent one-dimensional problems [2000]").type_name("D");
  app.add_option("--lr", o->lr, "step size for the residual noise [0.2]").type_name("G");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
