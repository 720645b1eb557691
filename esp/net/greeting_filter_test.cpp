#include "esp/net/greeting_filter.h"

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

std::string hello_of(const std::string& job) {
  return Handshake::connecting(kSecret, {Role::watch, 7, job, 5, 1}).feed("");
}

Socket listening_on(const char* address) {
  auto at = numeric_address(address, 0);
  Socket socket(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int seconds = 120;  // after which the kernel lets the silent in
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

// What the next one said who is accepted.
std::string accepted(const Socket& listening, Socket* kept = nullptr) {
  if (!has_input(listening.fd())) return "nobody";
  Socket socket(accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  admit_all(socket.fd());
  char buffer[256];
  const ssize_t got = has_input(socket.fd()) ? recv(socket.fd(), buffer, sizeof buffer, 0) : 0;
  if (kept) *kept = std::move(socket);
  return std::string(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0)));
}

class GreetingFilter : public testing::TestWithParam<const char*> {};

TEST_P(GreetingFilter, AcceptsCallersOfThisJobAlone) {
  const Socket listening = listening_on(GetParam());
  ASSERT_TRUE(admit_only_like(listening.fd(), hello_of("job")));
  const std::string right = hello_of("job");
  std::string other_magic = right, other_job = right;
  other_magic[6] = 'x';
  other_job[38] = static_cast<char>(~other_job[38]);
  std::vector<Socket> strangers;
  for (const std::string& words : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(96, '\0'), right.substr(0, 8),
                                   right.substr(0, 95), other_magic, other_job, hello_of("another")})
    strangers.push_back(caller_with(listening, words));
  // They were all earlier, and what was dropped is sent again meanwhile.
  for (int i = 0; i < 3; ++i) {
    const Socket peer = caller_with(listening, right);
    EXPECT_EQ(accepted(listening), right);
  }
}

TEST_P(GreetingFilter, WhoWasAcceptedIsHeardWhateverHeSays) {
  const Socket listening = listening_on(GetParam());
  ASSERT_TRUE(admit_only_like(listening.fd(), hello_of("job")));
  const Socket peer = caller_with(listening, hello_of("job"));
  Socket kept;
  ASSERT_EQ(accepted(listening, &kept).size(), Handshake::kHelloBytes);
  ASSERT_EQ(send(peer.fd(), "anything", 8, MSG_NOSIGNAL), 8);
  char buffer[8];
  ASSERT_TRUE(has_input(kept.fd()));
  EXPECT_EQ(recv(kept.fd(), buffer, sizeof buffer, 0), 8);
}

TEST_P(GreetingFilter, OnceItIsGoneStrangersAreHeard) {
  const Socket listening = listening_on(GetParam());
  ASSERT_TRUE(admit_only_like(listening.fd(), hello_of("job")));
  const Socket stranger = caller_with(listening, "GET /");
  admit_all(listening.fd());
  EXPECT_EQ(accepted(listening), "GET /");
}

INSTANTIATE_TEST_SUITE_P(Loopback, GreetingFilter, testing::Values("127.0.0.1", "::1"));

TEST(Listener, PeersGetInWhileStrangersFloodAndStrangersHearNoInTheEnd) {
  Listener listener("127.0.0.1", 0, kSecret, "job");
  auto target = numeric_address("127.0.0.1", listener.port());
  std::vector<Socket> strangers;
  const std::string garbage(Handshake::kHelloBytes + Handshake::kProofBytes, 'G');
  for (int i = 0; i < 300; ++i) {  // many more failures than a source may have
    strangers.emplace_back(::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(strangers.back().fd(), target.get(), target.length), 0);
    send(strangers.back().fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  }
  for (int rank = 0; rank < 20; ++rank) {
    auto caller = connect_to("127.0.0.1", listener.port(), kSecret, {Role::data, rank, "job", 0, 0}, "",
                             Deadline::after_ms(kSoon_ms));
    EXPECT_TRUE(listener.take(0, rank, 0, Deadline::after_ms(kSoon_ms)));
  }
  EXPECT_TRUE(has_input(strangers.back().fd())) << "an answer, or that it was closed";
}

}  // namespace
}  // namespace esp::net
