// One schedule: everything that happens in one simulated job, faults included, as its seed has it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "tests/faults/simulation/virtual_hub.h"

namespace esp::sim {

struct Outcome {
  std::optional<std::string> broken;  // the rule, in words
  bool finished = false;              // all steps were made
  int num_reforms = 0, num_restarts = 0;
  std::map<std::string, int> faults;  // by kind
  int64_t virtual_ms = 0;
  int64_t num_events = 0;
};

// A job of one host whose ranks go on in place: launcher, hubs, ranks, control lines, recovery. `told`: every fault and
// how it ended goes to stderr.
Outcome run_job(uint64_t seed, const Broken& broken, bool told);

// Clients of one store on few keys, while connections break and clients die: what each of them saw of a key must fit
// one order of all that was done to it.
Outcome run_store(uint64_t seed, bool stale_reads, bool told);

}  // namespace esp::sim
