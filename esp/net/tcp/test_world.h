// Worlds for tests and timings of tcp alone, without store, watch or rendezvous: every rank listens, then everyone is
// told where everyone is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "esp/net/listener.h"
#include "esp/net/world.h"

namespace esp::net {

inline std::unique_ptr<World> listening_world(int rank, int size, const NetOptions& options,
                                              const std::string& address = "127.0.0.1", bool sealed = false) {
  auto world = std::make_unique<World>();
  world->rank = rank;
  world->size = size;
  world->job = "tcp";
  world->secret = Secret(std::string(32, 's'));
  world->options = options;
  world->log = Log(LogLevel::warn, rank);
  world->fate = std::make_shared<Fate>();
  world->listener = std::make_shared<Listener>(address, 0, world->secret, world->job, nullptr, sealed);
  world->peers.resize(static_cast<size_t>(size));
  return world;
}

// As if every rank had a host of its own, or as they are: `one_host` decides what is tuned and how many streams there
// are.
inline void introduce(World& world, const std::vector<int>& ports, bool one_host) {
  for (size_t peer = 0; peer < ports.size(); ++peer)
    world.peers[peer] = {one_host ? "here" : std::to_string(peer), world.listener->address(), ports[peer], 0, peer};
}

}  // namespace esp::net
