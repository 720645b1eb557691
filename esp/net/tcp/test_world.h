// Worlds for tests and benchmarks of tcp alone, without store, failure detector or rendezvous: every rank listens, then
// all ranks get the table of ports.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "esp/net/listener.h"
#include "esp/net/world.h"

namespace esp::net {

inline std::unique_ptr<World> make_listening_world(int rank, int size, const NetOptions& options,
                                                   const std::string& address = "127.0.0.1", bool encrypted = false) {
  auto world = std::make_unique<World>();
  world->rank = rank;
  world->size = size;
  world->job = "tcp";
  world->secret = Secret(std::string(32, 's'));
  world->options = options;
  world->log = Log(LogLevel::warn, rank);
  world->peer_status = std::make_shared<PeerStatus>();
  world->listener = std::make_shared<Listener>(address, 0, world->secret, world->job, nullptr, encrypted);
  world->peers.resize(static_cast<size_t>(size));
  return world;
}

// Fills in the peer table. `one_host`: all ranks share a host; otherwise each rank gets its own host name. The host
// decides the socket tuning and the number of connections.
inline void set_peers(World& world, const std::vector<int>& ports, bool one_host) {
  for (size_t peer = 0; peer < ports.size(); ++peer)
    world.peers[peer] = {one_host ? "here" : std::to_string(peer), world.listener->address(), ports[peer], 0, peer};
}

}  // namespace esp::net
