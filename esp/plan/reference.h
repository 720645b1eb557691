// Figures from lectures on distributed training, recomputed with the planner's functions. Each entry has the printed
// figure, the computed one, and the reason if they differ. None of them is a measurement.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace esp::plan {

struct ReferenceNumber {
  std::string item;     // what is counted: "GPT-3 175B, all parameters"
  std::string printed;  // the figure as printed; "?": the slide asks for it; empty: the slide does not have it
  double value = 0;     // the figure computed by the planner
  std::string unit;
  std::string shown;   // the computed value as text, rounded to its significant digits
  std::string remark;  // why the figures differ, or which input was corrected
  // allowed relative difference beyond the printed digits, because the inputs on the slide are rounded
  double tolerance = 0;
  std::optional<double> convention;  // value by the slide's counting convention, which `remark` explains
};

std::vector<ReferenceNumber> reference_numbers();

// The rows of Narayanan et al. 2021, table 1, as printed.
struct MegatronRow {
  double billions;
  int heads, hidden, layers, tp, pp, gpus, batch;
  double tflops, pflops;
  int dp() const { return gpus / (tp * pp); }
};
const std::vector<MegatronRow>& megatron_table();

}  // namespace esp::plan
