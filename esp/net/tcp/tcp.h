// tcp: messages over connections made on first use, `streams_per_peer` of them per pair and group. The lower world rank
// dials, the higher takes the connection from its listener; both only when one of their transfers needs it. No thread
// of its own: the communicator's thread reads and writes the sockets, and sleeps in epoll where a fault wakes it too.
#pragma once

#include <memory>

#include "esp/net/transport.h"

namespace esp::net {

bool tcp_reaches(const World& world, int a, int b);
std::unique_ptr<Transport> open_tcp(const World& world, const Group& group);

}  // namespace esp::net
