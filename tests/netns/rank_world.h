// Rendezvous of the ranks that netns.py starts.
#pragma once

#include <memory>
#include <string>

#include "esp/net/world.h"

namespace esp::netns {

// Value of an environment variable that netns.py sets. Throws UsageError if it is missing.
int number_from(const char* variable);

// Runs the rendezvous and returns the world of this rank. `interface`: name or CIDR of the interface to listen on. Rank
// 0 hosts the hub.
std::unique_ptr<net::World> join_world(const std::string& interface);

}  // namespace esp::netns
