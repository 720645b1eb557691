// Parameter servers (Li et al. 2014): workers push gradients to the servers of their elements, which apply them, and
// pull the values back. docs/parameter_server.md has the modes, the messages and what each is equal to.
#pragma once

#include <map>

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_ps(const Setup& setup);

// What servers saw, all of them together, when all ranks met last.
struct PsSeen {
  std::map<int64_t, int64_t> staleness;  // pushes by updates applied since their worker's pull; 16: and more
  int64_t largest_gap = 0;               // clocks between a worker that began a step and the slowest
};

}  // namespace esp::sync
