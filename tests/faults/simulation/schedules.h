// A schedule: one simulated job with all its faults, determined by a seed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "tests/faults/simulation/virtual_hub.h"

namespace esp::sim {

struct ScheduleResult {
  std::optional<std::string> violation;  // text of the violated invariant; empty: no violation
  bool finished = false;                 // true if the job made all its steps
  int num_in_place_restarts = 0, num_restarts = 0;
  std::map<std::string, int> faults;  // kind of fault → number of faults
  int64_t virtual_ms = 0;
  int64_t num_events = 0;
};

// A job on one host with restart in place: launcher, hubs, ranks, control channels, recovery. `verbose`: logs every
// fault and its outcome to stderr.
ScheduleResult run_job(uint64_t seed, const InjectedBugs& bugs, bool verbose);

// Clients call one key-value store on a few keys, while connections break and clients die. The calls on each key must
// be linearizable.
ScheduleResult run_store(uint64_t seed, bool stale_reads, bool verbose);

}  // namespace esp::sim
