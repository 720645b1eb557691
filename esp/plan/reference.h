// Figures printed in lectures on distributed training, recomputed with the planner's functions: the printed figure, the
// computed one, and the reason for a difference. Nothing is measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace esp::plan {

struct ReferenceNumber {
  std::string item;     // "GPT-3 175B, all parameters"
  std::string printed;  // as printed on the slide; "?": posed as a question; empty: not printed
  double value = 0;     // computed here
  std::string unit;
  std::string shown;                 // the computed value with its significant digits
  std::string remark;                // the reason for a difference, or what was corrected
  double tolerance = 0;              // relative, in addition to the printed digits: of inputs that are printed rounded
  std::optional<double> convention;  // the printed figure computed with the slide's convention, which `remark` names
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
