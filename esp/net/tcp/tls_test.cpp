// Both ends in one thread, and somebody in between who reads what passes and may change it.
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
const TlsPurpose kPurpose{"job", 0, 1, 7, 0};

class Between {
 public:
  Between() {
    int fds[2];
    for (auto& [end, middle] : {std::pair(&caller, &middle_[0]), std::pair(&callee, &middle_[1])}) {
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
      *end = Socket(fds[0]);
      *middle = Socket(fds[1]);
      const int small = 4096;  // so that most calls move a part
      setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    }
  }

  // Passes on what there is; `change` may alter what the caller sent.
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
  std::string seen;  // of what the caller sent

 private:
  Socket middle_[2];
  std::string held_[2];
};

iovec part_of(std::string& text, size_t from, size_t bytes) {
  return {text.data() + from, bytes};
}

// Sends `text` in three parts at a time until all of it has come.
std::string sent_through(Between& between, Tls& from, Tls& to, std::string& text,
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
    between.pass(change);
    const iovec parts[] = {part_of(come, in, (come.size() - in + 1) / 2),
                           part_of(come, in + (come.size() - in + 1) / 2, (come.size() - in) / 2)};
    const ssize_t got = to.receive(parts);
    if (got == 0) break;
    if (got > 0) in += static_cast<size_t>(got);
  }
  come.resize(in);
  return come;
}

TEST(Tls, CarriesBytesThatNobodyBetweenCanRead) {
  Between between;
  Tls caller(between.caller.fd(), true, kSecret, kPurpose), callee(between.callee.fd(), false, kSecret, kPurpose);
  std::string text;
  while (text.size() < 300'000) text += "the weights of the model, in plain words; ";
  EXPECT_EQ(sent_through(between, caller, callee, text), text);
  EXPECT_TRUE(caller.shaken() && callee.shaken());
  EXPECT_GE(between.seen.size(), text.size());
  EXPECT_EQ(between.seen.find("weights"), std::string::npos);
  std::string back(1'000, 'x');
  EXPECT_EQ(sent_through(between, callee, caller, back), back);
}

TEST(Tls, CarriesEverySizeAcrossRecords) {
  Between between;
  Tls caller(between.caller.fd(), true, kSecret, kPurpose), callee(between.callee.fd(), false, kSecret, kPurpose);
  for (size_t bytes : {1, 63, 64, 65, 16383, 16384, 16385, 16448, 32768, 40000, 100'001}) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + i / 251);
    EXPECT_EQ(sent_through(between, caller, callee, text), text) << bytes;
  }
}

TEST(Tls, RefusesAnotherKey) {
  for (const TlsPurpose& purpose :
       {TlsPurpose{"another job", 0, 1, 7, 0}, TlsPurpose{"job", 0, 2, 7, 0}, TlsPurpose{"job", 0, 1, 8, 0}}) {
    Between between;
    Tls caller(between.caller.fd(), true, kSecret, kPurpose), callee(between.callee.fd(), false, kSecret, purpose);
    std::string text = "nothing of this arrives";
    EXPECT_THROW(sent_through(between, caller, callee, text), CommError);
    EXPECT_FALSE(callee.shaken());
  }
  Between between;
  Tls caller(between.caller.fd(), true, Secret(std::string(32, 't')), kPurpose);
  Tls callee(between.callee.fd(), false, kSecret, kPurpose);
  std::string text = "nothing of this arrives";
  EXPECT_THROW(sent_through(between, caller, callee, text), CommError);
}

TEST(Tls, FindsWhatWasChangedOnTheWay) {
  for (size_t at : {2'000u, 20'000u, 50'000u}) {
    Between between;
    Tls caller(between.caller.fd(), true, kSecret, kPurpose), callee(between.callee.fd(), false, kSecret, kPurpose);
    std::string text(60'000, 'g');
    const auto flip = [&](std::string& bytes) {
      if (between.seen.size() <= at && at < between.seen.size() + bytes.size()) bytes[at - between.seen.size()] ^= 4;
    };
    try {
      sent_through(between, caller, callee, text, flip);
      ADD_FAILURE() << "a bit turned over at " << at << " went unseen";
    } catch (const CommError& error) {
      EXPECT_EQ(error.kind(), CommError::Kind::corrupt);
      EXPECT_EQ(error.peer(), 0);
    }
  }
}

TEST(Tls, AnEndThatClosesIsSeen) {
  Between between;
  Tls caller(between.caller.fd(), true, kSecret, kPurpose);
  auto callee = std::make_unique<Tls>(between.callee.fd(), false, kSecret, kPurpose);
  std::string text = "first words";
  EXPECT_EQ(sent_through(between, caller, *callee, text), text);
  callee.reset();
  between.callee.close();
  const iovec more = part_of(text, 0, text.size());
  for (int turn = 0; turn < 10; ++turn) between.pass();
  EXPECT_EQ(caller.receive({&more, 1}) > 0, false);
}

}  // namespace
}  // namespace esp::net
