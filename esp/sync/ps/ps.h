// Parameter servers (Li et al. 2014): workers push gradients to the servers of their elements, which apply them, and
// pull the weights. docs/parameter_server.md describes the modes, the messages and the equivalences.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_ps(const Setup& setup);             // messages or collectives, by sync.exchange
std::unique_ptr<Strategy> make_collective_ps(const Setup& setup);  // push = reduce, pull = broadcast

}  // namespace esp::sync
