// Listener: one listening socket per process and one thread that owns it. Runs the handshakes of all callers
// concurrently and keeps authenticated connections until they are taken.
//
// Connection limits before authentication (net/connection_limiter.h): 2 s and 128 bytes per connection; at most 64
// pending connections. Beyond that, the oldest connection of the source with most pending connections is dropped, so a
// flooding source loses its own connections. A source that keeps failing is rejected for a while. This host, and
// sources from which a peer has ever authenticated, are not rejected, only limited to fewer pending connections. While
// a source exceeds its limit, Linux drops handshake requests of other programs (BPF, net/handshake_filter.h).
//
// Returned sockets are nonblocking, close-on-exec and have TCP_NODELAY. Any thread may call.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "esp/net/handshake.h"
#include "esp/net/socket.h"

namespace esp::net {

class Listener {
 public:
  using Accepted = std::function<void(Socket, const HandshakeRequest&)>;

  // Listens on a numeric address (port 0: any free port). With `on_accept`, every connection is passed to this
  // function, on the listener's thread; otherwise connections wait for `take`. Callers must prove that they know
  // `secret` and `job`. `encrypted`: connections carry TLS, and only callers that also encrypt are accepted. Throws
  // CommError(refused) if the address is not available.
  Listener(const std::string& address, int port, Secret secret, std::string job, Accepted on_accept = nullptr,
           bool encrypted = false);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const std::string& address() const;
  int port() const;
  bool encrypted() const;
  const std::string& job() const;  // the job name that callers must know (handshake)

  // Returns the connection that world rank `peer` made for (group, stream). Waits for it until the deadline, then
  // throws a CommError(timeout) that names the peer.
  Socket take(uint64_t group, int peer, uint32_t stream, Deadline deadline);
  std::optional<Socket> try_take(uint64_t group, int peer, uint32_t stream);

  // Closes authenticated connections for which the predicate is true, for example those of a rank that was declared
  // lost. The predicate runs on the listener's thread.
  void reject_if(std::function<bool(const HandshakeRequest&)> is_rejected);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace esp::net
