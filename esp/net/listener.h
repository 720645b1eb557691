// Listener: one listening socket per process and one thread that owns it. Drives the handshakes of everyone who calls
// (64 pending at most, 2 s each, 1 KiB each) side by side and keeps authenticated connections until someone takes them.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "esp/net/handshake.h"
#include "esp/net/socket.h"

namespace esp::net {

class Listener {
 public:
  // Listens on a numeric address (port 0: any free one). With `on_accept` every connection goes there, on the
  // listener's thread; without, connections wait in a map for `take`.
  Listener(const std::string& address, int port, Secret secret, std::string job,
           std::function<void(Socket, const Hello&)> on_accept = nullptr);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const std::string& address() const;
  int port() const;

  // The connection that world rank `peer` made for (group, stream).
  Socket take(uint64_t group, int peer, uint32_t stream, Deadline deadline);
  std::optional<Socket> try_take(uint64_t group, int peer, uint32_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace esp::net
