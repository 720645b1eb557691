// Rates of the training step's kernels on this machine, as esp/plan/own_rates.h names them.
#pragma once

#include <map>
#include <string>

namespace esp::app {

using Figures = std::map<std::string, double>;

// With one thread on every core in one call, and with a call of its own on every core at once. `type` is fp32 or bf16;
// about `seconds` in all.
void measure_kernels(Figures& figures, const std::string& type, int cores, double seconds);

// Bytes/s of memcpy (read and written) on all cores, and multiply-adds per second in registers.
double measure_memcpy(int cores);
double measure_peak(int cores);
// Bytes/s written to a file in `folder` and synced.
double measure_disk(const std::string& folder);

}  // namespace esp::app
