// Measures the rates of the training step's kernels on this machine. Keys are those of the planner's calibrated rates.
#pragma once

#include <map>
#include <string>

namespace esp::app {

using KernelRates = std::map<std::string, double>;

// Measures two modes: one call that uses all cores, and single-threaded calls on all cores at once. `type` is fp32 or
// bf16. Takes about `seconds` in total.
void measure_kernels(KernelRates& rates, const std::string& type, int cores, double seconds);

// Two rates on all cores: memcpy in bytes/s (read plus written), and multiply-adds in registers per second.
double measure_memcpy(int cores);
double measure_peak(int cores);
// Bytes/s written to a file in `folder` and synced.
double measure_disk(const std::string& folder);

}  // namespace esp::app
