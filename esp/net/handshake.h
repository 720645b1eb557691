// The handshake on every connection: magic, version, job, role, rank, a 32-byte nonce each way, HMAC-SHA-256 over the
// transcript both ways, keys separated by role (HKDF). A pure state machine over bytes, so that it can be fuzzed and so
// that one slow client never holds up another; net/listener.h and the connecting side drive it.
//
// Wrong secret, wrong job, garbage: the same refusal. At most 1 KiB is read before authentication.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "esp/base/clock.h"
#include "esp/net/world.h"

namespace esp::net {

enum class Role : uint8_t { store = 1, watch = 2, data = 3 };

// Who is calling and what for.
struct Hello {
  Role role = Role::data;
  int rank = 0;            // world rank of the caller
  std::string job;
  uint64_t group = 0;      // data: which group
  uint32_t stream = 0;     // data: which of several connections
};

class Handshake {
 public:
  static Handshake connecting(const Secret& secret, const Hello& mine);
  static Handshake accepting(const Secret& secret, const std::string& job);

  // Consumes what arrived; returns what is to be sent. Throws CommError(refused).
  std::string feed(std::string_view arrived);
  bool done() const;
  // Exactly how many more bytes it wants, so that a reader never takes what belongs to the protocol above.
  size_t wants() const;
  const Hello& hello() const;  // accepting side, once done

 private:
  Handshake() = default;
  enum class State { send_hello, want_hello, want_challenge, want_proof, want_verdict, done, refused };
  State state_ = State::send_hello;
  bool accepting_ = false;
  Secret secret_;
  Hello hello_;
  std::string job_;
  std::string transcript_;
  std::string buffer_;
};

// Connects to a numeric address and shakes hands, retrying a refused TCP connection until the deadline.
class Socket connect_to(const std::string& address, int port, const Secret& secret, const Hello& mine,
                        const std::string& bind_interface, Deadline deadline);

}  // namespace esp::net
