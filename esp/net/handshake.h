// Authentication handshake of every connection: challenge and response with HMAC-SHA-256 over the transcript, in both
// directions. Each side sends a 32-byte nonce; keys are separated by role and direction (HKDF). Handshake is a pure
// state machine over bytes: it can be fuzzed, and one slow client never delays another. net/listener.h (callee, the
// accepting side) and net/connect.cpp (caller, the connecting side) drive it.
//
//   caller  → request       96 bytes: magic 8, version 2, role 1, zero 1, rank 4, group 8, stream 4, zero 4,
//                                     SHA-256 of the job 32, nonce 32
//   callee  → challenge     32 bytes: nonce
//   caller  → proof         32 bytes: HMAC(caller's key, request challenge)
//   callee  → confirmation  32 bytes: HMAC(callee's key, request challenge proof), or 32 zeros: refused
//
// A caller with a wrong secret, job or version, or one that sends garbage, sees the same steps and the same refusal,
// after its proof. If a connection closes without a confirmation, the callee dropped it (it is overloaded or has
// exited), and a retry makes sense.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "esp/base/clock.h"
#include "esp/net/socket.h"
#include "esp/net/world.h"

namespace esp::net {

enum class Role : uint8_t { store = 1, failure_detector = 2, data = 3 };

// First message of the caller: its rank, its job and the purpose of the connection.
struct HandshakeRequest {
  Role role = Role::data;
  int rank = 0;  // world rank of the caller; -1: a tool without a rank
  std::string job;
  uint64_t group = 0;   // for Role::data: the id of the group
  uint32_t stream = 0;  // for Role::data: index of the connection within the group
};

class Handshake {
 public:
  static constexpr size_t kRequestBytes = 96, kChallengeBytes = 32, kProofBytes = 32, kConfirmationBytes = 32;
  // The refusal that the callee sends instead of a confirmation, after feed() has thrown.
  static std::string refusal() { return std::string(kConfirmationBytes, '\0'); }

  static Handshake make_caller(const Secret& secret, const HandshakeRequest& mine);
  static Handshake make_callee(const Secret& secret, const std::string& job);

  // Consumes received bytes and returns the bytes to send. Throws CommError(refused). The caller side starts with
  // feed("").
  std::string feed(std::string_view arrived);
  bool done() const { return state_ == State::done; }
  // The exact number of missing bytes, so that a reader never consumes bytes of the next protocol.
  size_t bytes_needed() const;
  const HandshakeRequest& request() const { return request_; }  // callee side, valid once done

 private:
  enum class State { send_request, want_request, want_challenge, want_proof, want_confirmation, done, refused };

  Handshake() = default;
  std::string step();
  void read_request(std::string_view bytes);
  // the HMAC of `transcript` with the key of a direction
  std::string proof_of(std::string_view direction, std::string_view transcript) const;
  [[noreturn]] void refuse();

  State state_ = State::send_request;
  bool request_valid_ = true;  // callee: whether the request was valid; checked only together with the proof
  Secret secret_;
  HandshakeRequest request_;
  std::string job_;
  std::string transcript_;
  std::string buffer_;
};

// Connects to a numeric address and runs the handshake. A TCP connection that is refused, unreachable or dropped is
// retried until the deadline. `bind_interface` (interface name or local address; may be empty) selects the source of
// the connection. The returned socket is nonblocking, close-on-exec and has TCP_NODELAY. Throws CommError: refused (by
// the handshake) or timeout.
Socket connect_to(const std::string& address, int port, const Secret& secret, const HandshakeRequest& mine,
                  const std::string& bind_interface, Deadline deadline);
// One attempt of connect_to. Throws CommError(refused); any other failure returns an empty socket and the reason in
// `fault`.
Socket try_connect(const std::string& address, int port, const Secret& secret, const HandshakeRequest& mine,
                   const std::string& bind_interface, Deadline deadline, std::string& fault);

}  // namespace esp::net
