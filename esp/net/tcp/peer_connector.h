// PeerConnector: makes a connection to a peer: connect, then handshake. It advances in nonblocking steps, so that many
// connections are made concurrently and a stopped peer delays no other. Used by the thread that drives the transport.
#pragma once

#include <optional>
#include <string>

#include "esp/base/clock.h"
#include "esp/net/handshake.h"
#include "esp/net/socket.h"
#include "esp/net/world.h"

namespace esp::net {

class PeerConnector {
 public:
  PeerConnector(const World& world, int peer, const HandshakeRequest& mine);

  // Advances as far as possible without blocking. Returns the connection once both sides are authenticated. A
  // connection that the peer refuses or closes is retried until world.options.start_timeout has passed. Throws
  // CommError(refused) or CommError(timeout).
  std::optional<Socket> advance();

 private:
  void begin();
  bool connected();
  bool flush();
  void retry(const std::string& why);
  [[noreturn]] void give_up() const;

  const World& world_;
  const int peer_;
  const HandshakeRequest mine_;
  const Deadline deadline_;
  Socket socket_;
  bool connected_ = false;
  std::optional<Handshake> handshake_;
  std::string outbox_;
  Clock::time_point try_again_{};
  std::string last_error_;
};

// Replaces bbr congestion control by reno. bbr paces its packets, and over loopback this halves the rate, because there
// only the receiver's copying limits the rate. If Linux refuses the change, a debug line reports it. Call it before
// connect or listen: a connection that starts with bbr stays paced to some degree.
void disable_bbr_pacing(int fd, const Log& log);

// Socket options of a data connection. `own_host`: the other end is on this machine; otherwise network interruptions
// are tolerated (net/link.h).
void tune_data_socket(int fd, bool own_host, const Log& log);

}  // namespace esp::net
