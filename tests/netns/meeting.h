// How a rank that netns.py started finds the others.
#pragma once

#include <memory>
#include <string>

#include "esp/net/world.h"

namespace esp::netns {

// A variable netns.py sets. UsageError when it is missing.
int number_from(const char* variable);

// `interface`: name or CIDR of the one to listen on. Rank 0 hosts the hub.
std::unique_ptr<net::World> meet(const std::string& interface);

}  // namespace esp::netns
