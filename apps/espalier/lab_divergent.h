// Common parts of the labs whose replicas diverge between synchronisations (local SGD, gossip). Real ranks minimise a
// problem with a known solution by several methods; the result is a table and a picture.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/arguments.h"
#include "apps/espalier/lab_picture.h"
#include "apps/espalier/text_table.h"
#include "esp/base/json.h"
#include "esp/sync/problems/train_problem.h"

namespace esp::app {

struct DivergentLabOptions {
  std::string problem = "quadratic", json, out;
  int nproc = 8;
  int64_t dim = 64, steps = 640;
  double lr = 0.05, noise = 0.5, heterogeneity = 1;
};
void add_divergent_options(const Arguments& app, DivergentLabOptions& options);
void check(const DivergentLabOptions& options);  // throws UsageError for invalid options
std::unique_ptr<sync::OptimizationProblem> make_problem(const DivergentLabOptions& options);
// The settings, for the header of a report.
std::string settings_text(const DivergentLabOptions& options, const sync::OptimizationProblem& problem);

struct DivergentCase {
  std::string name;
  sync::Options sync;
  // Exact number of bytes that the busiest rank sends in all steps; negative: unknown.
  double formula_bytes = -1;
};

struct DivergentRun {
  DivergentCase spec;
  std::vector<double> error;  // after each step: ‖x_i − x*‖² / dim, mean over ranks
  double worst = 0;           // square root of the final error of the rank with the largest error
  double consensus = 0;       // at the end: (1/n) Σ ‖x_i − x̄‖² / dim
  double excess = 0;          // f(x̄) − f(x*), mean over the last tenth of the steps
  uint64_t bytes = 0;         // bytes of weights sent by the busiest rank
};
DivergentRun run_divergent(const DivergentLabOptions& options, const sync::OptimizationProblem& problem,
                           const DivergentCase& spec);

Cells table_row(const DivergentLabOptions& options, const DivergentRun& run);
Cells table_head();
Json report_json(const DivergentLabOptions& options, const sync::OptimizationProblem& problem,
                 const std::vector<DivergentRun>& runs);
// Curves of the error over the steps, with every tenth point.
std::vector<PictureSeries> error_series(const std::vector<DivergentRun>& runs);

}  // namespace esp::app
