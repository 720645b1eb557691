// A communicator that moves nothing and counts: what a rank would send and receive, in which rounds, by which
// algorithm. For planning and for tests of code that communicates. Arguments are checked as by the real one; outputs
// keep what they held. Nothing waits, so one rank alone can run a whole program.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/comm/tiers.h"

namespace esp::comm {

// `link` is what `auto` reckons with.
std::unique_ptr<Communicator> make_fake(int rank, int size, const CommOptions& options = {}, const Link& link = {});

}  // namespace esp::comm
