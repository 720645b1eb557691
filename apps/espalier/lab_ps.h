// Parameter servers over a quadratic whose minimum is known, run by ranks that are threads of this process: what labs
// of servers share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace esp::app {

struct PsLab {
  int workers = 4, servers = 2;
  double step_ms = 10, slow = 4, seconds = 2, lr = 0.2, noise = 0.5;
  int64_t elements = 4096, staleness = 3;
  std::string json, out;
};

struct ModeRun {
  std::string name, mode;
  int64_t staleness = 0;       // the bound of ssp
  std::vector<int64_t> steps;  // by worker
  double wall_s = 0, error = 0;
  std::string note;  // pushes by staleness
  double steps_per_s() const;
};

// Whoever runs freely ends by the clock; those who must agree on the last step take as many as the slowest can.
void run_mode(const PsLab& o, ModeRun& run);

}  // namespace esp::app
