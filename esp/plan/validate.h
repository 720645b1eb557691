// Predictions beside measurements: every row of a table of results, and how far off a source's rows are.
//
// A sweep is what a search would have to choose from: rows of one source with the same model, processor, number of
// processors, sequence and global batch, three at least. Within sweeps pairs are compared (Kendall's tau; pairs
// measured within 1 % of each other say nothing and are left out), and the regret is how much slower than the best
// measured row the one predicted best is.
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
  std::optional<double> predicted_gb, measured_gb;  // of what the row counts, in its unit
  bool fits = true;
  bool fitted_on = false;  // a scalar was fitted on it
  std::vector<std::string> assumed, reasons;

  // Relative, of time where it is measured, else of memory.
  std::optional<double> error() const;
  std::optional<double> memory_error() const;
};

struct SourceResult {
  std::string source;
  int n = 0;  // rows with an error
  double mean = 0, median = 0, p90 = 0, worst = 0;
  std::optional<double> tau, regret, worst_regret, oom_right, memory_mean, memory_worst, inside_interval;
  int sweeps = 0, oom = 0, rejected = 0;  // rejected: ran, and yet predicted not to fit
  double scale = 1;                       // what its predictions were multiplied by
};

struct Validation {
  std::vector<RowResult> rows;
  std::vector<SourceResult> sources;
};

// `calibrate` rows of every source, evenly spread over it, fit one scalar of its times; the others are then what
// counts.
Validation validate(const std::vector<MeasuredRow>& rows, int calibrate);
RowResult predict(const MeasuredRow& row);

Json to_json(const Validation& validation);

}  // namespace esp::plan
