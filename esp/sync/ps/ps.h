// Parameter servers (Li et al. 2014): workers push gradients to the servers of their elements, which apply them, and
// pull the values back. docs/parameter_server.md has the modes, the messages and what each is equal to.
#pragma once

#include "esp/sync/strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_ps(const Setup& setup);             // either, as sync.exchange says
std::unique_ptr<Strategy> make_collective_ps(const Setup& setup);  // push = reduce, pull = broadcast

}  // namespace esp::sync
