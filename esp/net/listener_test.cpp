#include "esp/net/listener.h"

#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "esp/net/address.h"
#include "esp/net/connection_limiter.h"
#include "esp/net/reserved_port.h"

namespace esp::net {
namespace {

const Secret kSecret(std::string(32, 's'));
Deadline soon() {
  return Deadline::after_ms(20'000);
}

Socket raw_connection(const Listener& listener) {
  auto target = numeric_address(listener.address(), listener.port());
  Socket socket(::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.fd(), target.get(), target.length), 0);
  return socket;
}

class ListenerAddress : public testing::TestWithParam<const char*> {};

TEST_P(ListenerAddress, ReturnsConnectionOfGroupPeerAndStream) {
  Listener listener(GetParam(), 0, kSecret, "job");
  std::vector<Socket> callers;
  for (int rank : {1, 2})
    for (uint32_t stream : {0u, 1u})
      callers.push_back(
          connect_to(listener.address(), listener.port(), kSecret, {Role::data, rank, "job", 9, stream}, "", soon()));
  Socket callee = listener.take(9, 2, 1, soon());
  char byte = 'x';
  ASSERT_EQ(send(callers[3].fd(), &byte, 1, 0), 1);
  for (byte = 0; recv(callee.fd(), &byte, 1, 0) < 0;) std::this_thread::yield();
  EXPECT_EQ(byte, 'x');
  EXPECT_TRUE(listener.take(9, 1, 0, soon()));
  EXPECT_FALSE(listener.try_take(9, 1, 0)) << "the connection was already taken";
  EXPECT_FALSE(listener.try_take(8, 1, 1));
}

TEST_P(ListenerAddress, RejectsOtherSecretAndOtherJob) {
  Listener listener(GetParam(), 0, kSecret, "job");
  auto kind = [&](const Secret& secret, const std::string& job) {
    try {
      connect_to(listener.address(), listener.port(), secret, {Role::data, 1, job, 0, 0}, "", soon());
    } catch (const CommError& error) {
      return error.kind();
    }
    return CommError::Kind::lost;
  };
  EXPECT_EQ(kind(Secret(std::string(32, 'x')), "job"), CommError::Kind::refused);
  EXPECT_EQ(kind(kSecret, "another"), CommError::Kind::refused);
  EXPECT_FALSE(listener.try_take(0, 1, 0));
}

INSTANTIATE_TEST_SUITE_P(Loopback, ListenerAddress, testing::Values("127.0.0.1", "::1"));

TEST(Listener, SlowCallersDoNotDelayOthers) {
  Listener listener("127.0.0.1", 0, kSecret, "job");
  // Opens more incomplete connections than the limit. Some have sent half a request. All stay open until the end of the
  // test.
  std::vector<Socket> slow;
  for (int i = 0; i < 200; ++i) {
    slow.push_back(raw_connection(listener));
    if (i % 2) send(slow.back().fd(), "ESPALIER", 8, MSG_NOSIGNAL);
  }
  for (int rank = 0; rank < 50; ++rank) {
    auto caller = connect_to("127.0.0.1", listener.port(), kSecret, {Role::data, rank, "job", 0, 0}, "", soon());
    EXPECT_TRUE(listener.take(0, rank, 0, soon()));
  }
}

TEST(Listener, DropsOldestConnectionWhenFull) {
  Listener listener("127.0.0.1", 0, kSecret, "job");
  Socket first = raw_connection(listener);
  std::vector<Socket> more;
  for (size_t i = 0; i < ConnectionLimiter::kMaxPending; ++i) more.push_back(raw_connection(listener));
  char byte;
  EXPECT_EQ(recv(first.fd(), &byte, 1, 0), 0) << "closed by the listener";
}

TEST(Listener, RefusesAndClosesGarbage) {
  Listener listener("127.0.0.1", 0, kSecret, "job");
  Socket caller = raw_connection(listener);
  std::string garbage(128, 'G');
  ASSERT_EQ(send(caller.fd(), garbage.data(), garbage.size(), 0), 128);
  std::string seen;
  char buffer[256];
  for (ssize_t got; (got = recv(caller.fd(), buffer, sizeof buffer, 0)) > 0;) seen.append(buffer, size_t(got));
  ASSERT_EQ(seen.size(), Handshake::kChallengeBytes + Handshake::kConfirmationBytes);
  EXPECT_EQ(seen.substr(Handshake::kChallengeBytes), Handshake::refusal());
}

TEST(Listener, RejectsCallersByPredicate) {
  Listener listener("127.0.0.1", 0, kSecret, "job");
  listener.reject_if([](const HandshakeRequest& request) { return request.rank == 2; });
  auto bad = connect_to("127.0.0.1", listener.port(), kSecret, {Role::data, 2, "job", 0, 0}, "", soon());
  auto good = connect_to("127.0.0.1", listener.port(), kSecret, {Role::data, 3, "job", 0, 0}, "", soon());
  EXPECT_TRUE(listener.take(0, 3, 0, soon()));
  EXPECT_FALSE(listener.try_take(0, 2, 0));
}

TEST(Listener, TakeTimeoutNamesPeer) {
  Listener listener("127.0.0.1", 0, kSecret, "job");
  try {
    listener.take(0, 5, 0, Deadline::after_ms(20));
    FAIL() << "take() returned, but no caller had connected";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), CommError::Kind::timeout);
    EXPECT_EQ(error.peer(), 5);
  }
}

TEST(Connect, WaitsForLateListener) {
  const ReservedPort held;
  const int port = held.number();
  std::atomic<bool> connected = false;
  std::thread caller([&] {
    try {
      connect_to("127.0.0.1", port, kSecret, {Role::data, 0, "job", 0, 0}, "", soon());
      connected = true;
    } catch (const CommError& error) {
      ADD_FAILURE() << error.what();
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(connected);
  Listener late("127.0.0.1", port, kSecret, "job");
  late.take(0, 0, 0, soon());
  caller.join();
  EXPECT_TRUE(connected);
}

TEST(Connect, TimesOutAtDeadline) {
  const ReservedPort held;
  EXPECT_THROW(connect_to("127.0.0.1", held.number(), kSecret, {}, "", Deadline::after_ms(50)), CommError);
}

TEST(ConnectionLimiter, RejectsFailingSourceUntilTokensRefill) {
  ConnectionLimiter limiter;
  auto now = Clock::now();
  int id = 0, admitted = 0;
  for (; limiter.admit("10.0.0.9", false, now); ++id, ++admitted) {
    ASSERT_LT(admitted, 1000);
    limiter.record_start("10.0.0.9", id);
    limiter.record_failure(id, now);
  }
  EXPECT_EQ(admitted, static_cast<int>(ConnectionLimiter::kFailureBurst));
  EXPECT_TRUE(limiter.admit("10.0.0.8", false, now)) << "other sources must not be rejected";
  EXPECT_TRUE(limiter.admit("10.0.0.9", false, now + std::chrono::seconds(1)));
}

TEST(ConnectionLimiter, AlwaysAdmitsSourceWithAuthenticatedPeer) {
  ConnectionLimiter limiter;
  auto now = Clock::now();
  limiter.admit("10.0.0.9", false, now);
  limiter.record_start("10.0.0.9", 0);
  limiter.record_success(0);
  for (int id = 1; id < 1000; ++id) {
    ASSERT_TRUE(limiter.admit("10.0.0.9", false, now));
    limiter.record_start("10.0.0.9", id);
    limiter.record_failure(id, now);
  }
}

TEST(ConnectionLimiter, EvictsConnectionsOfFloodingSource) {
  ConnectionLimiter limiter;
  auto now = Clock::now();
  limiter.admit("10.0.0.1", false, now);
  limiter.record_start("10.0.0.1", 0);
  for (int id = 1; id < 500; ++id) {
    if (!limiter.admit("10.0.0.9", false, now)) break;
    while (auto victim = limiter.evict("10.0.0.9")) {
      EXPECT_NE(*victim, 0);
      limiter.record_failure(*victim, now);
    }
    limiter.record_start("10.0.0.9", id);
    EXPECT_LE(limiter.pending(), ConnectionLimiter::kMaxPending);
  }
}

}  // namespace
}  // namespace esp::net
