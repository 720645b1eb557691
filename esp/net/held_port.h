// HeldPort: for tests, a loopback port on which nobody listens yet and which nobody else is given meanwhile. It is
// bound and not listened on, so calls are refused until a listener that may share it (SO_REUSEADDR, as ours all do)
// comes.
#pragma once

#include <sys/socket.h>

#include <cstdlib>

#include "esp/net/address.h"
#include "esp/net/socket.h"

namespace esp::net {

class HeldPort {
 public:
  HeldPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
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
