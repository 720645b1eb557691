// Ranks as threads of one process: tests, `--ranks-per-process`, the virtual clock.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "esp/net/world.h"

namespace esp::net {

class VirtualNetwork;  // net/virtual/network.h

// The worlds of `size` ranks of this process, by rank. They share one store and one Fate: a fault recorded by one is
// known to all. One thread may drive several of them (poll each in turn; never sleep at one while another is due).
// With a network the transport `virtual` is open to them, and `auto` picks it.
std::vector<World> thread_worlds(int size, const NetOptions& options = {},
                                 std::shared_ptr<VirtualNetwork> network = nullptr);

// Runs `body` on `size` named threads, one rank each, and returns when all have ended. A rank that throws anything but
// a CommError is recorded as lost, so that its peers are released. Rethrows afterwards: the first by rank among what
// the ranks threw on their own account, else the first CommError.
void run_threads(int size, const std::function<void(World&)>& body, const NetOptions& options = {},
                 std::shared_ptr<VirtualNetwork> network = nullptr);

}  // namespace esp::net
