// Common parts of the labs with divergent replicas: a problem with known solution, trained by real ranks with several
// methods, and its table and picture.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/arguments.h"
#include "apps/espalier/lab_picture.h"
#include "apps/espalier/text_table.h"
#include "esp/base/json.h"
#include "esp/sync/problems/drive.h"

namespace esp::app {

struct DivergentLab {
  std::string problem = "quadratic", json, out;
  int nproc = 8;
  int64_t dim = 64, steps = 640;
  double lr = 0.05, noise = 0.5, heterogeneity = 1;
};
void define_copies_options(const Arguments& app, DivergentLab& options);
void check(const DivergentLab& options);  // UsageError for invalid options
std::unique_ptr<sync::OptimizationProblem> problem_of(const DivergentLab& options);
// Header of a report: the settings.
std::string words_of(const DivergentLab& options, const sync::OptimizationProblem& problem);

struct CopiesCase {
  std::string name;
  sync::Options sync;
  // Bytes sent for S bytes of weights by the rank that sends most, over all steps: exact, or unknown (negative).
  double formula_bytes = -1;
};

struct DivergentRun {
  CopiesCase it;
  std::vector<double> error;  // after each step: ‖x_i − x*‖² / dim, the mean over ranks
  double worst = 0;           // square root of it, of the worst rank at the end
  double consensus = 0;       // (1/n) Σ ‖x_i − x̄‖² / dim at the end
  double excess = 0;          // f(x̄) − f(x*), mean over the last tenth of the steps
  uint64_t bytes = 0;         // sent for weights, by the rank that sends most
};
DivergentRun run_copies(const DivergentLab& options, const sync::OptimizationProblem& problem, const CopiesCase& it);

Cells row_of(const DivergentLab& options, const DivergentRun& run);
Cells head_of_rows();
Json report_of(const DivergentLab& options, const sync::OptimizationProblem& problem,
               const std::vector<DivergentRun>& runs);
// Errors against steps, every tenth point.
std::vector<Series> error_series(const std::vector<DivergentRun>& runs);

}  // namespace esp::app
