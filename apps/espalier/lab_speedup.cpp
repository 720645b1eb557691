// espalier lab speedup: the linear speed-up of parallel SGD, by real ranks.
//
// Two measures. Residual noise: for F = ½ a x² + noise of variance σ², E[x²] converges to γσ²/(n a (2 − γa)), so n
// ranks leave an n-th of it. Time: n ranks can use an n times larger step for the same noise, and then reach a given
// error in an n-th of the steps.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_picture.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/sync/problems/drive.h"

namespace esp::app {
namespace {

struct SpeedupLab {
  std::vector<int> ranks = {1, 2, 4, 8};
  int64_t dim = 2000;
  double lr = 0.2, slow_lr = 0.005, sigma = 0.8, start = 2;
  std::string json, out;
};

constexpr double kCurvature = 1.5;
constexpr int64_t kSettled = 60, kMeasured = 160, kBetween = 8;

struct Point {
  int ranks = 1;
  double settled = 0, formula = 0;  // E[x²]
  int64_t steps = 0;                // until the error is twice the residual noise
};

std::unique_ptr<sync::OptimizationProblem> problem_of(const SpeedupLab& o, int ranks) {
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

double left_over(double lr, double sigma, int ranks) {
  return lr * sigma * sigma / (ranks * kCurvature * (2 - lr * kCurvature));
}

// f(step, mean of x²), on the first rank.
void run(const SpeedupLab& o, int ranks, double lr, int64_t steps, double start,
         const std::function<void(int64_t, double)>& f) {
  const auto problem = problem_of(o, ranks);
  sync::on_ranks(ranks, [&](comm::Communicator* comm) {
    sync::DriveOptions options;
    options.lr = lr;
    options.steps = steps;
    options.start.assign(static_cast<size_t>(o.dim), start);
    if (comm->rank() == 0)
      options.seen = [&](int64_t step, std::span<const double> x, sync::Strategy&) { f(step, mean_square(x)); };
    sync::drive(*problem, comm, options);
  });
}

Point measure(const SpeedupLab& o, int ranks) {
  Point point{ranks, 0, left_over(o.lr, o.sigma, ranks), 0};
  int64_t seen = 0;
  run(o, ranks, o.lr, kSettled + kMeasured, 0, [&](int64_t step, double square) {
    if (step < kSettled || step % kBetween != 0) return;
    point.settled += square;
    ++seen;
  });
  point.settled /= static_cast<double>(seen);
  const double lr = o.slow_lr * ranks, target = 2 * left_over(o.slow_lr, o.sigma, 1);
  // The number of steps without noise, plus half.
  const auto most = static_cast<int64_t>(1.5 * std::log(o.start * o.start / target * 4) / (2 * lr * kCurvature)) + 20;
  run(o, ranks, lr, most, o.start, [&](int64_t step, double square) {
    if (point.steps == 0 && square <= target) point.steps = step + 1;
  });
  return point;
}

Json report(const SpeedupLab& o, const std::vector<Point>& points) {
  Json rows = Json::array();
  for (const Point& p : points)
    rows.push_back({{"ranks", p.ranks},
                    {"settled", p.settled},
                    {"formula", p.formula},
                    {"steps_to_error", p.steps},
                    {"speedup", static_cast<double>(points[0].steps) / static_cast<double>(p.steps)}});
  return {{"dim", o.dim}, {"lr", o.lr}, {"sigma", o.sigma}, {"curvature", kCurvature}, {"rows", rows}};
}

int run_lab_speedup(const SpeedupLab& asked) {
  SpeedupLab o = asked;
  for (const int ranks : o.ranks)
    if (ranks < 1 || ranks > 64) throw UsageError(fmt::format("--ranks {}: between 1 and 64", ranks));
  o.ranks.push_back(1);
  std::sort(o.ranks.begin(), o.ranks.end());
  o.ranks.erase(std::unique(o.ranks.begin(), o.ranks.end()), o.ranks.end());
  if (o.dim < 1 || o.dim > 10'000'000) throw UsageError("--dim: between 1 and 10000000 coordinates");
  if (!(o.lr > 0 && o.lr * kCurvature < 2))
    throw UsageError(fmt::format("--lr: got {}; expected a number in (0, 4/3)", o.lr));
  std::vector<Point> points;
  std::vector<Cells> rows;
  Series measured{"measured", {}, false}, formula{"γσ²/(n a (2 − γa))", {}, true};
  for (const int ranks : o.ranks) {
    const Point p = points.emplace_back(measure(o, ranks));
    rows.push_back({std::to_string(p.ranks), fmt::format("{:.6f}", p.settled), fmt::format("{:.6f}", p.formula),
                    fmt::format("{:+.2f} %", 100 * (p.settled / p.formula - 1)), std::to_string(p.steps),
                    fmt::format("{:.2f}", static_cast<double>(points[0].steps) / static_cast<double>(p.steps))});
    measured.points.emplace_back(p.ranks, p.settled);
    formula.points.emplace_back(p.ranks, p.formula);
  }
  const std::string text = fmt::format(
      "Parallel SGD on F = ½ a x² + noise, a = {}, σ = {}, {} coordinates; every rank draws its own noise\n\n{}"
      "E[x²] is what the noise leaves with step {}; the steps are those until the error is twice what one rank would "
      "be "
      "left with,\nwith steps of {} · ranks.\n",
      kCurvature, o.sigma, o.dim,
      text_table({"ranks", "E[x²]", "formula", "difference", "steps to the error", "speed-up"}, rows), o.lr, o.slow_lr);
  Findings findings;
  // The variance decreases with the number of coordinates.
  const double scatter = 0.05 * std::max(1.0, std::sqrt(2000 / static_cast<double>(o.dim)));
  for (const Point& p : points) {
    findings.within(fmt::format("{} rank{}: E[x²] that noise leaves", p.ranks, p.ranks == 1 ? "" : "s"), "O(σ/√(nT))",
                    p.formula, p.settled, scatter);
    if (p.ranks > 1)
      findings.within(fmt::format("{} ranks: times fewer steps to the error", p.ranks), "n", p.ranks,
                      static_cast<double>(points[0].steps) / static_cast<double>(p.steps), 3 * scatter);
  }
  return finish_lab({o.json, o.out}, "speedup", text, report(o, points),
                    draw_svg("Noise left by parallel SGD", "ranks", "E[x²]", {measured, formula}, Axes::plain),
                    findings);
}

}  // namespace

void define_lab_speedup(const Arguments& app, Chosen& chosen) {
  auto o = keep<SpeedupLab>(app, chosen, run_lab_speedup);
  app.add_option("--ranks", o->ranks, "how many, one after the other [1,2,4,8]").delimiter(',').type_name("N");
  app.add_option("--dim", o->dim, "coordinates, each a problem of its own [2000]").type_name("D");
  app.add_option("--lr", o->lr, "step whose noise is measured [0.2]").type_name("G");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
