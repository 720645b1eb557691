// Validation: predictions beside measurements for every row of a table of results, and the errors by source.
//
// A sweep is a set of alternatives for a search: at least three rows of one source with the same model, processor,
// number of processors, sequence and global batch. Within sweeps pairs are compared (Kendall's tau; pairs measured
// within 1 % of each other are skipped), and the regret is the slowdown of the row predicted best over the best
// measured row.
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
  std::optional<double> predicted_gb, measured_gb;  // of what the row includes, in its unit
  bool fits = true;
  bool fitted_on = false;  // used to fit a factor
  std::vector<std::string> assumed, reasons;

  // Relative, of time where it is measured, otherwise of memory.
  std::optional<double> error() const;
  std::optional<double> memory_error() const;
};

struct SourceResult {
  std::string source;
  int n = 0;  // rows with an error
  double mean = 0, median = 0, p90 = 0, worst = 0;
  std::optional<double> tau, regret, worst_regret, oom_right, memory_mean, memory_worst, inside_interval;
  int sweeps = 0, oom = 0, rejected = 0;  // rejected: ran, but was predicted not to fit
  double scale = 1;                       // factor applied to its predictions
};

struct Validation {
  std::vector<RowResult> rows;
  std::vector<SourceResult> sources;
};

// Fits one factor for times on `calibrate` rows of every source, evenly spread; the others are then evaluated.
Validation validate(const std::vector<MeasuredRow>& rows, int calibrate);
RowResult predict(const MeasuredRow& row);

Json to_json(const Validation& validation);

}  // namespace esp::plan
