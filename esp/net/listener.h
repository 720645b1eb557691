// Listener: one listening socket per process and one thread that owns it. Drives the handshakes of everyone who calls
// side by side and keeps authenticated connections until someone takes them.
//
// Before authentication a caller gets 2 s and 128 bytes. 64 may be pending at once; when more call, the oldest of the
// source that holds most is dropped, so a flood pushes out itself. A source that keeps failing is closed at the door
// for a while, unless it is this host or a peer has ever authenticated from there: those only get fewer places. While
// any source does so, the kernel drops greetings that are not of this job (net/greeting_filter.h).
//
// Sockets come out nonblocking, close-on-exec, without delay. Any thread may call.
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
  using Accepted = std::function<void(Socket, const Hello&)>;

  // Listens on a numeric address (port 0: any free one). With `on_accept` every connection goes there, on the
  // listener's thread; without, connections wait in a map for `take`. `secret` and `job` are what callers must prove.
  // `sealed`: what passes is encrypted, and only who means to do so too is let in. Throws CommError(refused) when the
  // address cannot be had.
  Listener(const std::string& address, int port, Secret secret, std::string job, Accepted on_accept = nullptr,
           bool sealed = false);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const std::string& address() const;
  int port() const;
  bool sealed() const;
  const std::string& job() const;  // what callers name

  // The connection that world rank `peer` made for (group, stream). CommError(timeout) names the peer.
  Socket take(uint64_t group, int peer, uint32_t stream, Deadline deadline);
  std::optional<Socket> try_take(uint64_t group, int peer, uint32_t stream);

  // Authenticated callers for whom this is true are closed: a rank declared lost does not come back. Called on the
  // listener's thread.
  void refuse_if(std::function<bool(const Hello&)> unwanted);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace esp::net
