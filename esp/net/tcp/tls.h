// Tls: TLS 1.3 (OpenSSL) over a connection between two ends that have already authenticated each other. The pre-shared
// key is derived from the job secret and the purpose of the connection, with a fresh Diffie-Hellman exchange (forward
// secrecy: a secret learned later does not decrypt recorded traffic). There are no certificates and no other
// authentication.
//
// Behaves like a nonblocking socket; the TLS handshake happens during the first calls. Used by the thread that drives
// the transport.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "esp/net/world.h"

namespace esp::net {

// Identifies one connection: both ends know it, and it is unique within the job.
struct TlsContext {
  std::string job;
  int caller = 0, callee = 0;  // world ranks of the two ends
  uint64_t group = 0;
  uint32_t stream = 0;
};

class Tls {
 public:
  // `fd` is borrowed. `calling`: this end made the connection (it is the caller).
  Tls(int fd, bool calling, const Secret& secret, const TlsContext& purpose);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // Like sendmsg and recvmsg: return the number of bytes moved; 0 if the other end has closed (receive only); -1 with
  // errno EAGAIN or ECONNRESET. The caller must pass unsent bytes again, starting with the first of them. receive
  // throws CommError(corrupt) if the other end did not produce the data.
  ssize_t send(std::span<const iovec> parts);
  ssize_t receive(std::span<const iovec> parts);
  bool handshake_done() const;  // true once the TLS handshake is complete

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace esp::net
