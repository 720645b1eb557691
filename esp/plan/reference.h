// The numbers that lectures on distributed training print, computed here: what is printed, what comes out, and where
// the two differ why. Nothing is measured; every value is of the planner's own functions.
#pragma once

#include <string>
#include <vector>

namespace esp::plan {

struct ReferenceNumber {
  std::string item;     // "GPT-3 175B, all parameters"
  std::string printed;  // as the slide has it; empty: it asks, or does not say
  double value = 0;     // ours
  std::string unit;
  std::string shown;   // ours, in as many digits as mean something
  std::string remark;  // the correction, where there is one
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
