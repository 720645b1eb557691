// tcp: messages over TCP connections, `streams_per_peer` of them per pair of ranks and group. The lower world rank
// connects; the higher one takes the connection from its listener. Each side does this when one of its transfers first
// needs the connection. There is no thread: the communicator's thread reads and writes the sockets. It sleeps in epoll,
// where a recorded failure also wakes it.
#pragma once

#include <memory>

#include "esp/net/transport.h"

namespace esp::net {

bool tcp_reaches(const World& world, int a, int b);
std::unique_ptr<Transport> open_tcp(const World& world, const Group& group);

}  // namespace esp::net
