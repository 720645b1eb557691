// Runs ranks as forked children of the test, with a store in shared memory. There is no rendezvous and no failure
// detector, so only the transport is under test.
#pragma once

#include <functional>

#include "esp/net/world.h"

namespace esp::net {

struct ForkOptions {
  bool listen = false;     // every rank listens on loopback, for socket transports
  int ranks_per_host = 0;  // number of ranks on each simulated host; 0: all ranks on one host
};

// Forks `size` children, runs the body in each and waits for all. A child that throws, fails an expectation, is killed
// or runs longer than two minutes fails the current test.
void fork_ranks(int size, const std::function<void(World&)>& body, const ForkOptions& options = {});

}  // namespace esp::net
