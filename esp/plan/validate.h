// Validation: prediction and measurement for every row of a table of results, and the errors by source.
//
// A sweep is a set of rows that a search could choose from: at least three rows of one source with the same model,
// processor, number of processors, sequence length and global batch. Within a sweep the order of the rows is compared
// (Kendall's tau; pairs measured within 1 % of each other are skipped). The regret is the measured slowdown of the row
// that is predicted fastest, compared with the row that is measured fastest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/rows.h"

namespace esp::plan {

struct RowResult {
  std::string id, source, sweep;
  RowKind kind = RowKind::step;
  std::optional<double> predicted_s, measured_s, low_s, high_s;
  // memory that the row's figure includes (MemoryKind), in the row's unit
  std::optional<double> predicted_gb, measured_gb;
  bool fits = true;
  bool fitted_on = false;  // the row was used to fit the factor, so it is not evaluated
  std::vector<std::string> assumed, reasons;

  // Relative error of the predicted time; for a row without a time, of the predicted memory.
  std::optional<double> error() const;
  std::optional<double> memory_error() const;
};

struct SourceResult {
  std::string source;
  int n = 0;  // number of evaluated rows
  double mean = 0, median = 0, p90 = 0, worst = 0;
  std::optional<double> tau, regret, worst_regret, oom_right, memory_mean, memory_worst, inside_interval;
  int sweeps = 0, oom = 0, rejected = 0;  // rejected: number of rows that ran but were predicted not to fit
  double scale = 1;                       // factor that multiplies the predicted times of this source
};

struct Validation {
  std::vector<RowResult> rows;
  std::vector<SourceResult> sources;
};

// Predicts all rows. For each source, fits one time factor on `calibrate` evenly spread rows and evaluates the others.
// calibrate = 0: no factor.
Validation validate(const std::vector<MeasuredRow>& rows, int calibrate);
RowResult predict(const MeasuredRow& row);

Json to_json(const Validation& validation);

}  // namespace esp::plan
