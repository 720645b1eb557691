// Ranks as threads of one process: tests and the virtual clock.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "esp/net/world.h"

namespace esp::net {

class VirtualNetwork;  // defined in net/virtual/network.h

// Creates the worlds of `size` ranks in this process, by rank. They share one store and one PeerStatus: a failure
// recorded by one rank is visible to all. One thread may drive several of them (poll each in turn; never sleep in one
// while another can progress). With a network, the transport `virtual` is available, and `auto` selects it.
std::vector<World> thread_worlds(int size, const NetOptions& options = {},
                                 std::shared_ptr<VirtualNetwork> network = nullptr);

// Runs `body` on `size` named threads, one rank each, and returns when all have ended. A rank that throws anything but
// a CommError is recorded as lost, so that its peers are released. Rethrows afterwards: the first exception by rank
// that is not a CommError, else the first CommError.
void run_threads(int size, const std::function<void(World&)>& body, const NetOptions& options = {},
                 std::shared_ptr<VirtualNetwork> network = nullptr);

}  // namespace esp::net
