// Tls: TLS 1.3 over one connection whose two ends have already proved themselves to each other, by OpenSSL. The key is
// made of the job's secret and of what the connection is for (a pre-shared key, with a fresh Diffie-Hellman exchange:
// who learns the secret later cannot read what was recorded). There are no certificates, and no other way in.
//
// Looks like a nonblocking socket to whoever drives it; the handshake happens within the first calls. Used by the
// thread that drives the transport.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "esp/net/world.h"

namespace esp::net {

// What both ends know of a connection, and no other connection of the job shares.
struct TlsPurpose {
  std::string job;
  int caller = 0, callee = 0;  // world ranks
  uint64_t group = 0;
  uint32_t stream = 0;
};

class Tls {
 public:
  // `fd` is borrowed. `calling`: this end made the connection.
  Tls(int fd, bool calling, const Secret& secret, const TlsPurpose& purpose);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // As sendmsg and recvmsg: bytes moved; 0: the other end has closed (receive only); -1 with errno EAGAIN or
  // ECONNRESET. What was not sent is to be offered again, from its first byte on. CommError(corrupt) when what came was
  // not made by the other end.
  ssize_t send(std::span<const iovec> parts);
  ssize_t receive(std::span<const iovec> parts);
  bool shaken() const;  // the handshake is done

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace esp::net
