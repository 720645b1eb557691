// Tests of the server with bad clients: silent ones, clients that do not read, many at once, and long responses.
#include "esp/dash/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "esp/base/clock.h"

namespace esp::dash {
namespace {

constexpr int kGenerous_ms = 20000;

class Client {
 public:
  explicit Client(int port, const std::string& bytes = "", int receive_buffer = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << strerror(errno);
    say(bytes);
  }
  ~Client() { ::close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void say(const std::string& bytes) const { (void)::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // Returns everything received until the server closes the connection. Fails if that takes too long.
  std::string answer() const {
    const Deadline until = Deadline::after_ms(kGenerous_ms);
    std::string all;
    std::vector<char> buffer(1 << 16);
    for (;;) {
      pollfd one{fd_, POLLIN, 0};
      if (::poll(&one, 1, until.left_ms()) <= 0) return "no answer in time";
      const ssize_t n = ::recv(fd_, buffer.data(), buffer.size(), 0);
      if (n <= 0) return all;
      all.append(buffer.data(), static_cast<size_t>(n));
    }
  }
  bool is_closed(int within_ms) const {
    pollfd one{fd_, POLLIN | POLLRDHUP, 0};
    return ::poll(&one, 1, within_ms) > 0 && (one.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
  }

 private:
  int fd_;
};

std::string get(const std::string& target) {
  return "GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n";
}

bool says(const std::string& answer, const std::string& body) {
  return answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n" + body);
}

// Clients and server run in one process, so both ends of a connection use file descriptors of this process.
void allow_descriptors(rlim_t number) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, number));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < number) GTEST_SKIP() << "only " << limit.rlim_cur << " file descriptors are available";
}

class DashHttpServer : public ::testing::Test {
 protected:
  void SetUp() override {
    allow_descriptors(4096);
    if (IsSkipped()) return;
    server_.start({[](const Request& request) -> std::optional<Response> {
                     if (request.path == "/refused") return Response{403, "text/plain", "refused", ""};
                     return std::nullopt;
                   },
                   [this](const Request& request) { return answer(request); },
                   [](const Request& request) { return request.parameter("run"); }});
  }
  void TearDown() override {
    held_ = false;
    server_.stop();
  }
  int port() const { return server_.port(); }

  HttpServer server_{0};
  std::atomic<bool> held_{true};
  std::atomic<int> num_held_{0};

 private:
  Response answer(const Request& request) {
    if (request.path == "/throws") throw std::runtime_error("a secret");
    if (request.path == "/big") return {200, "text/plain", std::string(size_t{12} << 20, 'x'), ""};
    if (request.path == "/held") {
      ++num_held_;
      for (const Deadline until = Deadline::after_ms(kGenerous_ms); held_ && !until.passed();) ::usleep(1000);
      --num_held_;
    }
    return {200, "text/plain", request.path, ""};
  }
};

TEST_F(DashHttpServer, RespondsInTimeDespiteSilentAndNewClients) {
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 1000; ++i)
    silent.push_back(std::make_unique<Client>(port(), i % 2 ? "GET / HTTP/1.1\r\nHost:" : ""));
  std::atomic<bool> done{false};
  std::thread crowd([&] {
    std::vector<std::unique_ptr<Client>> newest(100);
    for (size_t i = 0; !done; ++i) {
      newest[i % newest.size()] = std::make_unique<Client>(port(), "GET /");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  std::vector<double> milliseconds;
  for (int i = 0; i < 50; ++i) {
    const int64_t begun = now_ns();
    EXPECT_TRUE(says(Client(port(), get("/valid")).answer(), "/valid"));
    milliseconds.push_back(static_cast<double>(now_ns() - begun) * 1e-6);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  done = true;
  crowd.join();
  std::sort(milliseconds.begin(), milliseconds.end());
  fmt::print("1,000 silent clients and 100 new ones a second: a request takes {:.2f} ms (median), {:.2f} ms at most\n",
             milliseconds[milliseconds.size() / 2], milliseconds.back());
  if (std::getenv("ESPALIER_TEST_LONG")) {
    EXPECT_LE(milliseconds.back(), 100);
  }
}

TEST_F(DashHttpServer, ClosesOldestSilentClientAtConnectionLimit) {
  std::vector<std::unique_ptr<Client>> silent;
  for (size_t i = 0; i < HttpServer::kMaxConnections + 3; ++i) silent.push_back(std::make_unique<Client>(port()));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(silent[i]->is_closed(kGenerous_ms)) << i;
  silent.back()->say(get("/late"));
  EXPECT_TRUE(says(silent.back()->answer(), "/late"));
  silent[3]->say(get("/kept"));
  EXPECT_TRUE(says(silent[3]->answer(), "/kept"));
}

TEST_F(DashHttpServer, KeepsWaitingRequestAtConnectionLimit) {
  const Client patient(port(), get("/held?run=a"));
  for (const Deadline until = Deadline::after_ms(kGenerous_ms); num_held_ < 1 && !until.passed();) ::usleep(1000);
  std::vector<std::unique_ptr<Client>> silent;
  for (size_t i = 0; i < 2 * HttpServer::kMaxConnections; ++i) silent.push_back(std::make_unique<Client>(port()));
  EXPECT_TRUE(says(Client(port(), get("/other?run=b")).answer(), "/other"));
  held_ = false;
  EXPECT_TRUE(says(patient.answer(), "/held"));
}

TEST_F(DashHttpServer, ServesOtherRunsDuringLongRequest) {
  std::vector<std::unique_ptr<Client>> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(std::make_unique<Client>(port(), get("/held?run=big")));
  for (const Deadline until = Deadline::after_ms(kGenerous_ms); num_held_ < 1 && !until.passed();) ::usleep(1000);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(says(Client(port(), get("/quick?run=small")).answer(), "/quick"));
  EXPECT_EQ(num_held_, 1);  // other requests of this run wait without a worker
  held_ = false;
  for (const auto& one : waiting) EXPECT_TRUE(says(one->answer(), "/held"));
}

TEST_F(DashHttpServer, RejectsInvalidRequestsAtOnceWhileWorkersAreBusy) {
  std::vector<std::unique_ptr<Client>> waiting;
  for (int i = 0; i < 100; ++i)
    waiting.push_back(std::make_unique<Client>(port(), get(fmt::format("/held?run={}", i))));
  EXPECT_TRUE(Client(port(), get("/refused")).answer().ends_with("\r\n\r\nrefused"));
  EXPECT_TRUE(Client(port(), "nonsense\r\n\r\n").answer().starts_with("HTTP/1.1 400 "));
  held_ = false;
  int num_answered = 0, num_refused = 0;
  for (const auto& one : waiting) {
    const std::string answer = one->answer();
    num_answered += says(answer, "/held");
    num_refused += answer.starts_with("HTTP/1.1 503 ");
  }
  EXPECT_EQ(num_answered + num_refused, 100);
  EXPECT_GE(num_answered, 64);
  EXPECT_GE(num_refused, 1);
}

TEST_F(DashHttpServer, ClosesSlowReadersAtLimitOfUnsentBytes) {
  std::vector<std::unique_ptr<Client>> deaf;
  for (int i = 0; i < 20; ++i) {  // the responses have 240 MB in total
    deaf.push_back(std::make_unique<Client>(port(), get(fmt::format("/big?run={}", i)), 4096));
    EXPECT_TRUE(says(Client(port(), get("/valid")).answer(), "/valid"));
  }
  // The client gets the first part of its response, which is in the socket buffer. Then the connection ends.
  EXPECT_LT(deaf.front()->answer().size(), size_t{12} << 20);
  EXPECT_GT(Client(port(), get("/big")).answer().size(), size_t{12} << 20);
}

TEST_F(DashHttpServer, SurvivesDisconnectingClients) {
  for (int i = 0; i < 50; ++i) {
    Client(port(), "GET");
    Client(port(), get("/big"));
    Client(port(), get("/held?run=" + std::to_string(i % 2)));
  }
  held_ = false;
  EXPECT_TRUE(says(Client(port(), get("/valid")).answer(), "/valid"));
}

TEST_F(DashHttpServer, HidesExceptionDetails) {
  const std::string answer = Client(port(), get("/throws")).answer();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 500 "));
  EXPECT_EQ(answer.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace esp::dash
