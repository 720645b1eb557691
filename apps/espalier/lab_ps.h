// Parameter servers over a quadratic with known minimum, run by threads of this process: common part of the labs with
// servers.
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

// Asynchronous workers stop by the clock; workers in lockstep take as many steps as the slowest can.
void run_mode(const PsLab& o, ModeRun& run);

}  // namespace esp::app
