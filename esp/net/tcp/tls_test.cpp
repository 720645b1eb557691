// Both ends of a TLS connection in one thread, with a man in the middle that reads the traffic and may modify it.
#include "esp/net/tcp/tls.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <optional>

#include "esp/base/error.h"
#include "esp/net/socket.h"

namespace esp::net {
namespace {

const Secret kSecret(std::string(32, 's'));
const TlsContext kPurpose{"job", 0, 1, 7, 0};

class ManInTheMiddle {
 public:
  ManInTheMiddle() {
    int fds[2];
    for (auto& [end, middle] : {std::pair(&caller, &middle_[0]), std::pair(&callee, &middle_[1])}) {
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
      *end = Socket(fds[0]);
      *middle = Socket(fds[1]);
      const int small = 4096;  // small socket buffers, so that most calls move only part of the data
      setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    }
  }

  // Forwards the available bytes; `change` may modify the caller's bytes.
  void pass(const std::function<void(std::string&)>& change = {}) {
    for (int from : {0, 1}) {
      char buffer[4096];
      const ssize_t got = recv(middle_[from].fd(), buffer, sizeof buffer, 0);
      if (got > 0) {
        std::string bytes(buffer, static_cast<size_t>(got));
        if (from == 0 && change) change(bytes);
        if (from == 0) seen += bytes;
        held_[from] += bytes;
      }
      const ssize_t sent = send(middle_[1 - from].fd(), held_[from].data(), held_[from].size(), MSG_NOSIGNAL);
      if (sent > 0) held_[from].erase(0, static_cast<size_t>(sent));
    }
  }

  Socket caller, callee;
  std::string seen;  // all bytes that the caller has sent

 private:
  Socket middle_[2];
  std::string held_[2];
};

iovec part_of(std::string& text, size_t from, size_t bytes) {
  return {text.data() + from, bytes};
}

// Sends `text` in three parts per call until all of it has arrived.
std::string sent_through(ManInTheMiddle& proxy, Tls& from, Tls& to, std::string& text,
                         const std::function<void(std::string&)>& change = {}) {
  std::string come(text.size(), '\0');
  size_t out = 0, in = 0;
  for (int turn = 0; in < text.size() && turn < 1'000'000; ++turn) {
    if (out < text.size()) {
      const size_t first = std::min<size_t>(64, text.size() - out), rest = text.size() - out - first;
      const iovec parts[] = {part_of(text, out, first), part_of(text, out + first, rest / 2),
                             part_of(text, out + first + rest / 2, rest - rest / 2)};
      if (const ssize_t sent = from.send(parts); sent > 0) out += static_cast<size_t>(sent);
    }
    proxy.pass(change);
    const iovec parts[] = {part_of(come, in, (come.size() - in + 1) / 2),
                           part_of(come, in + (come.size() - in + 1) / 2, (come.size() - in) / 2)};
    const ssize_t got = to.receive(parts);
    if (got == 0) break;
    if (got > 0) in += static_cast<size_t>(got);
  }
  come.resize(in);
  return come;
}

TEST(Tls, HidesDataFromManInTheMiddle) {
  ManInTheMiddle proxy;
  Tls caller(proxy.caller.fd(), true, kSecret, kPurpose), callee(proxy.callee.fd(), false, kSecret, kPurpose);
  std::string text;
  while (text.size() < 300'000) text += "the weights of the model, in plain words; ";
  EXPECT_EQ(sent_through(proxy, caller, callee, text), text);
  EXPECT_TRUE(caller.handshake_done() && callee.handshake_done());
  EXPECT_GE(proxy.seen.size(), text.size());
  EXPECT_EQ(proxy.seen.find("weights"), std::string::npos);
  std::string back(1'000, 'x');
  EXPECT_EQ(sent_through(proxy, callee, caller, back), back);
}

TEST(Tls, CarriesEverySizeAcrossTlsRecords) {
  ManInTheMiddle proxy;
  Tls caller(proxy.caller.fd(), true, kSecret, kPurpose), callee(proxy.callee.fd(), false, kSecret, kPurpose);
  for (size_t bytes : {1, 63, 64, 65, 16383, 16384, 16385, 16448, 32768, 40000, 100'001}) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + i / 251);
    EXPECT_EQ(sent_through(proxy, caller, callee, text), text) << bytes;
  }
}

TEST(Tls, RejectsPeerWithOtherKey) {
  for (const TlsContext& purpose :
       {TlsContext{"another job", 0, 1, 7, 0}, TlsContext{"job", 0, 2, 7, 0}, TlsContext{"job", 0, 1, 8, 0}}) {
    ManInTheMiddle proxy;
    Tls caller(proxy.caller.fd(), true, kSecret, kPurpose), callee(proxy.callee.fd(), false, kSecret, purpose);
    std::string text = "nothing of this arrives";
    EXPECT_THROW(sent_through(proxy, caller, callee, text), CommError);
    EXPECT_FALSE(callee.handshake_done());
  }
  ManInTheMiddle proxy;
  Tls caller(proxy.caller.fd(), true, Secret(std::string(32, 't')), kPurpose);
  Tls callee(proxy.callee.fd(), false, kSecret, kPurpose);
  std::string text = "nothing of this arrives";
  EXPECT_THROW(sent_through(proxy, caller, callee, text), CommError);
}

TEST(Tls, DetectsModifiedData) {
  for (size_t at : {2'000u, 20'000u, 50'000u}) {
    ManInTheMiddle proxy;
    Tls caller(proxy.caller.fd(), true, kSecret, kPurpose), callee(proxy.callee.fd(), false, kSecret, kPurpose);
    std::string text(60'000, 'g');
    const auto flip = [&](std::string& bytes) {
      if (proxy.seen.size() <= at && at < proxy.seen.size() + bytes.size()) bytes[at - proxy.seen.size()] ^= 4;
    };
    try {
      sent_through(proxy, caller, callee, text, flip);
      ADD_FAILURE() << "a flipped bit at byte " << at << " was not detected";
    } catch (const CommError& error) {
      EXPECT_EQ(error.kind(), CommError::Kind::corrupt);
      EXPECT_EQ(error.peer(), 0);
    }
  }
}

TEST(Tls, DetectsConnectionClosedByPeer) {
  ManInTheMiddle proxy;
  Tls caller(proxy.caller.fd(), true, kSecret, kPurpose);
  auto callee = std::make_unique<Tls>(proxy.callee.fd(), false, kSecret, kPurpose);
  std::string text = "first words";
  EXPECT_EQ(sent_through(proxy, caller, *callee, text), text);
  callee.reset();
  proxy.callee.close();
  const iovec more = part_of(text, 0, text.size());
  for (int turn = 0; turn < 10; ++turn) proxy.pass();
  EXPECT_EQ(caller.receive({&more, 1}) > 0, false);
}

}  // namespace
}  // namespace esp::net
