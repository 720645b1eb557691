// The handshake on every connection: magic, version, job, role, rank, a 32-byte nonce each way, HMAC-SHA-256 over the
// transcript both ways, keys separated by role and direction (HKDF). A pure state machine over bytes, so that it can be
// fuzzed and so that one slow client never holds up another; net/listener.h and the connecting side drive it.
//
//   caller  → hello      96 bytes: magic 8, version 2, role 1, zero 1, rank 4, group 8, stream 4, zero 4,
//                                  SHA-256 of the job 32, nonce 32
//   callee  → challenge  32 bytes: nonce
//   caller  → proof      32 bytes: HMAC(caller's key, hello challenge)
//   callee  → verdict    32 bytes: HMAC(callee's key, hello challenge proof), or 32 zeros: refused
//
// Wrong secret, wrong job, wrong version, garbage: the same steps and the same refusal, after the proof. A connection
// that closes without a verdict was dropped (the callee was busy or is gone), and calling again makes sense.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "esp/base/clock.h"
#include "esp/net/socket.h"
#include "esp/net/world.h"

namespace esp::net {

enum class Role : uint8_t { store = 1, watch = 2, data = 3 };

// Who is calling and what for.
struct Hello {
  Role role = Role::data;
  int rank = 0;  // world rank of the caller; -1: no rank (a tool)
  std::string job;
  uint64_t group = 0;   // data: which group
  uint32_t stream = 0;  // data: which of several connections
};

class Handshake {
 public:
  static constexpr size_t kHelloBytes = 96, kChallengeBytes = 32, kProofBytes = 32, kVerdictBytes = 32;
  // What the accepting side sends when feed threw.
  static std::string refusal() { return std::string(kVerdictBytes, '\0'); }

  static Handshake connecting(const Secret& secret, const Hello& mine);
  static Handshake accepting(const Secret& secret, const std::string& job);

  // Consumes what arrived; returns what is to be sent. Throws CommError(refused). The connecting side begins with
  // feed("").
  std::string feed(std::string_view arrived);
  bool done() const { return state_ == State::done; }
  // Exactly how many more bytes it wants, so that a reader never takes what belongs to the protocol above.
  size_t wants() const;
  const Hello& hello() const { return hello_; }  // accepting side, once done

 private:
  enum class State { send_hello, want_hello, want_challenge, want_proof, want_verdict, done, refused };

  Handshake() = default;
  std::string step();
  void read_hello(std::string_view bytes);
  std::string key(std::string_view direction) const;
  [[noreturn]] void refuse();

  State state_ = State::send_hello;
  bool sound_ = true;  // accepting: the hello made sense; looked at only with the proof
  Secret secret_;
  Hello hello_;
  std::string job_;
  std::string transcript_;
  std::string buffer_;
};

// Connects to a numeric address and shakes hands, retrying a TCP connection that is refused, unreachable or dropped
// until the deadline. `bind_interface` (a name or an address of this host; may be empty) is where the connection leaves
// from. The socket comes back nonblocking, close-on-exec, without delay. Throws CommError: refused (by the handshake),
// timeout.
Socket connect_to(const std::string& address, int port, const Secret& secret, const Hello& mine,
                  const std::string& bind_interface, Deadline deadline);
// The same, once. Throws CommError(refused); an empty socket otherwise, and why in `fault`.
Socket try_connect(const std::string& address, int port, const Secret& secret, const Hello& mine,
                   const std::string& bind_interface, Deadline deadline, std::string& fault);

}  // namespace esp::net
