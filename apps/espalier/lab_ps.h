// Parameter servers that minimise a quadratic with a known minimum, run by threads of this process. Shared by the labs
// with servers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace esp::app {

struct PsLabOptions {
  int workers = 4, servers = 2;
  double step_ms = 10, slow = 4, seconds = 2, lr = 0.2, noise = 0.5;
  int64_t elements = 4096, staleness = 3;
  std::string json, out;
};

struct ModeRun {
  std::string name, mode;
  int64_t staleness = 0;       // staleness bound of the mode ssp
  std::vector<int64_t> steps;  // steps of each worker
  double wall_s = 0, error = 0;
  std::string note;  // text with the number of pushes for each staleness
  double steps_per_s() const;
};

// Runs one mode for a fixed time. Asynchronous workers stop by the clock. Workers in lockstep run the number of steps
// that the slowest worker can run in this time.
void run_mode(const PsLabOptions& o, ModeRun& run);

}  // namespace esp::app
