// Dial: a connection to a peer in the making: connect, then the handshake, a step at a time and never blocking, so that
// many are made side by side and a peer that is stopped holds up nobody. Used by the thread that drives the transport.
#pragma once

#include <optional>
#include <string>

#include "esp/base/clock.h"
#include "esp/net/handshake.h"
#include "esp/net/socket.h"
#include "esp/net/world.h"

namespace esp::net {

class Dial {
 public:
  Dial(const World& world, int peer, const Hello& mine);

  // Goes as far as it can; the connection once both sides have proved themselves. A connection refused or
  // dropped is tried again until world.options.start_timeout is over. CommError(refused) or CommError(timeout).
  std::optional<Socket> advance();

 private:
  void begin();
  bool connected();
  bool flush();
  void retry(const std::string& why);
  [[noreturn]] void give_up() const;

  const World& world_;
  const int peer_;
  const Hello mine_;
  const Deadline deadline_;
  Socket socket_;
  bool connected_ = false;
  std::optional<Handshake> handshake_;
  std::string outbox_;
  Clock::time_point try_again_{};
  std::string last_error_;
};

// bbr paces, and over loopback pacing halves the rate: there the receiver's copying is the only clock. Where bbr is the
// default this takes reno instead; says at debug level when it may not. Best before connect or listen: a connection
// that began as bbr stays paced, if less.
void prefer_unpaced(int fd, const Log& log);

// What a connection that carries data is set to. `own_host`: the other end is on this machine; else interruptions of
// the network are tolerated (net/link.h).
void tune_data_socket(int fd, bool own_host, const Log& log);

}  // namespace esp::net
