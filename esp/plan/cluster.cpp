#include "esp/plan/cluster.h"

#include "esp/base/error.h"

namespace esp::plan {

double Processor::flops(const std::string& precision) const {
  struct Rate {
    const char* name;
    double flops;
  };
  const Rate rates[] = {{"fp32", fp32_flops}, {"tf32", tf32_flops}, {"fp16", fp16_flops},
                        {"bf16", bf16_flops}, {"fp8", fp8_flops},   {"fp4", fp4_flops}};
  std::string known;
  for (const Rate& rate : rates) {
    if (rate.flops <= 0) continue;
    if (precision == rate.name) return rate.flops;
    known += (known.empty() ? "" : ", ") + std::string(rate.name);
  }
  throw UsageError("precision: got " + precision + "; expected one that " + name + " supports: " + known);
}

}  // namespace esp::plan
