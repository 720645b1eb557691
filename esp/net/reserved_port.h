// ReservedPort: for tests, a loopback port that is reserved but not listening. Linux gives the port to no other
// process. Connections are refused until a listener with SO_REUSEADDR binds to it; all Espalier listeners set this
// option.
#pragma once

#include <sys/socket.h>

#include <cstdlib>

#include "esp/net/address.h"
#include "esp/net/socket.h"

namespace esp::net {

class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const SocketAddress any = numeric_address("127.0.0.1", 0);
    int on = 1;
    if (!socket_ || setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(socket_.fd(), any.get(), any.length) != 0)
      std::abort();
  }
  int number() const { return local_address(socket_.fd()).port(); }

 private:
  Socket socket_;
};

}  // namespace esp::net
