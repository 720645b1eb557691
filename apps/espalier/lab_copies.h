// What the labs of copies that go their own ways share: a problem of known answer, trained by real ranks in one way
// after another, and the table and picture of it.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/arguments.h"
#include "apps/espalier/lab_picture.h"
#include "apps/espalier/text_table.h"
#include "esp/base/json.h"
#include "esp/sync/problems/drive.h"

namespace esp::app {

struct CopiesLab {
  std::string problem = "quadratic", json, out;
  int nproc = 8;
  int64_t dim = 64, steps = 640;
  double lr = 0.05, noise = 0.5, heterogeneity = 1;
};
void define_copies_options(const Arguments& app, CopiesLab& options);
void check(const CopiesLab& options);  // UsageError
std::unique_ptr<sync::Problem> problem_of(const CopiesLab& options);
// The head of a report: what was run.
std::string words_of(const CopiesLab& options, const sync::Problem& problem);

struct CopiesCase {
  std::string name;
  sync::Options sync;
  // Bytes that the rank that sends most sends for S bytes of values, over all steps: exact, or unknown (negative).
  double formula_bytes = -1;
};

struct CopiesRun {
  CopiesCase it;
  std::vector<double> error;  // after each step: ‖x_i − x*‖² / dim, the mean over ranks
  double worst = 0;           // √ of it, of the worst rank at the end
  double consensus = 0;       // (1/n) Σ ‖x_i − x̄‖² / dim at the end
  double excess = 0;          // f(x̄) − f(x*), the mean over the last tenth of the steps
  uint64_t bytes = 0;         // sent for values, by the rank that sends most
};
CopiesRun run_copies(const CopiesLab& options, const sync::Problem& problem, const CopiesCase& it);

Cells row_of(const CopiesLab& options, const CopiesRun& run);
Cells head_of_rows();
Json report_of(const CopiesLab& options, const sync::Problem& problem, const std::vector<CopiesRun>& runs);
// Errors against steps: a tenth of the points are enough for the eye.
std::vector<Series> error_series(const std::vector<CopiesRun>& runs);

}  // namespace esp::app
