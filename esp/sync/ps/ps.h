// Parameter servers (Li et al. 2014): workers push gradients to the servers that own the elements, the servers apply
// them, and the workers pull the weights. docs/parameter_server.md describes the modes, the messages and the
// equivalences.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_ps(const Setup& setup);             // uses messages or collectives (sync.exchange)
std::unique_ptr<Strategy> make_collective_ps(const Setup& setup);  // each push is a reduce, each pull a broadcast

}  // namespace esp::sync
