#include "esp/net/handshake_filter.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "esp/net/address.h"
#include "esp/net/handshake.h"
#include "esp/net/listener.h"

namespace esp::net {
namespace {

constexpr int kSoon_ms = 20'000;
const Secret kSecret(std::string(32, 's'));

std::string request_of(const std::string& job) {
  return Handshake::make_caller(kSecret, {Role::failure_detector, 7, job, 5, 1}).feed("");
}

Socket listening_on(const char* address) {
  auto at = numeric_address(address, 0);
  Socket socket(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int seconds = 120;  // Linux would pass a connection without data to accept() after this time
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
  EXPECT_EQ(bind(socket.fd(), at.get(), at.length), 0);
  EXPECT_EQ(listen(socket.fd(), 100), 0);
  return socket;
}

Socket caller_with(const Socket& listening, const std::string& words) {
  auto target = local_address(listening.fd());
  Socket socket(::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.fd(), target.get(), target.length), 0);
  EXPECT_EQ(send(socket.fd(), words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
  return socket;
}

bool has_input(int fd) {
  pollfd one{fd, POLLIN, 0};
  return poll(&one, 1, kSoon_ms) == 1;
}

// Accepts the next connection and returns the first message received on it.
std::string accepted(const Socket& listening, Socket* kept = nullptr) {
  if (!has_input(listening.fd())) return "no connection";
  Socket socket(accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  detach_handshake_filter(socket.fd());
  char buffer[256];
  const ssize_t got = has_input(socket.fd()) ? recv(socket.fd(), buffer, sizeof buffer, 0) : 0;
  if (kept) *kept = std::move(socket);
  return std::string(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0)));
}

class HandshakeFilter : public testing::TestWithParam<const char*> {};

TEST_P(HandshakeFilter, AcceptsOnlyCallersOfThisJob) {
  const Socket listening = listening_on(GetParam());
  ASSERT_TRUE(attach_handshake_filter(listening.fd(), request_of("job")));
  const std::string right = request_of("job");
  std::string other_magic = right, other_job = right;
  other_magic[6] = 'x';
  other_job[38] = static_cast<char>(~other_job[38]);
  std::vector<Socket> foreign;
  for (const std::string& words : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(96, '\0'), right.substr(0, 8),
                                   right.substr(0, 95), other_magic, other_job, request_of("another")})
    foreign.push_back(caller_with(listening, words));
  // The foreign connections above came first. Their dropped segments are retransmitted while these callers connect.
  for (int i = 0; i < 3; ++i) {
    const Socket peer = caller_with(listening, right);
    EXPECT_EQ(accepted(listening), right);
  }
}

TEST_P(HandshakeFilter, AcceptedPeerMaySendAnything) {
  const Socket listening = listening_on(GetParam());
  ASSERT_TRUE(attach_handshake_filter(listening.fd(), request_of("job")));
  const Socket peer = caller_with(listening, request_of("job"));
  Socket kept;
  ASSERT_EQ(accepted(listening, &kept).size(), Handshake::kRequestBytes);
  ASSERT_EQ(send(peer.fd(), "anything", 8, MSG_NOSIGNAL), 8);
  char buffer[8];
  ASSERT_TRUE(has_input(kept.fd()));
  EXPECT_EQ(recv(kept.fd(), buffer, sizeof buffer, 0), 8);
}

TEST_P(HandshakeFilter, AcceptsForeignConnectionsAfterDetach) {
  const Socket listening = listening_on(GetParam());
  ASSERT_TRUE(attach_handshake_filter(listening.fd(), request_of("job")));
  const Socket foreign_one = caller_with(listening, "GET /");
  detach_handshake_filter(listening.fd());
  EXPECT_EQ(accepted(listening), "GET /");
}

INSTANTIATE_TEST_SUITE_P(Loopback, HandshakeFilter, testing::Values("127.0.0.1", "::1"));

TEST(Listener, AcceptsPeersDuringFloodAndRefusesOthers) {
  Listener listener("127.0.0.1", 0, kSecret, "job");
  auto target = numeric_address("127.0.0.1", listener.port());
  std::vector<Socket> foreign;
  const std::string garbage(Handshake::kRequestBytes + Handshake::kProofBytes, 'G');
  for (int i = 0; i < 300; ++i) {  // many more failures than the limit of one source
    foreign.emplace_back(::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(foreign.back().fd(), target.get(), target.length), 0);
    send(foreign.back().fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  }
  for (int rank = 0; rank < 20; ++rank) {
    auto caller = connect_to("127.0.0.1", listener.port(), kSecret, {Role::data, rank, "job", 0, 0}, "",
                             Deadline::after_ms(kSoon_ms));
    EXPECT_TRUE(listener.take(0, rank, 0, Deadline::after_ms(kSoon_ms)));
  }
  EXPECT_TRUE(has_input(foreign.back().fd())) << "the listener neither replied to the connection nor closed it";
}

}  // namespace
}  // namespace esp::net
