// Ranks as forked children of the test, with a store in memory they share. No rendezvous, no watch: what is under test
// is the transport alone.
#pragma once

#include <functional>

#include "esp/net/world.h"

namespace esp::net {

struct ForkOptions {
  bool listen = false;     // every rank listens on loopback, for transports over sockets
  int ranks_per_host = 0;  // 0: all on one; else groups of so many pretend to be hosts apart
};

// Forks `size` children, runs the body in each and waits for all. A child that throws, fails an expectation, dies or
// outlives two minutes is a failure of the current test.
void fork_ranks(int size, const std::function<void(World&)>& body, const ForkOptions& options = {});

}  // namespace esp::net
