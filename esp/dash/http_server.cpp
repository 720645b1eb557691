#include "esp/dash/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <list>
#include <unordered_map>

#include <fmt/format.h>

#include "esp/base/clock.h"
#include "esp/base/error.h"

namespace esp::dash {
namespace {

constexpr int kNumWorkers = 4, kBacklog = 4096, kMaxAccepts = 32, kMaxEvents = 128;
constexpr size_t kMaxJobs = 64;
constexpr uint64_t kListener = 0, kWake = 1;  // what epoll reports; connections count from 2

// What a connection is doing. Connections of one state have equal time for it, so each list of them is in the order
// of their deadlines.
enum State : size_t { kReading, kInWork, kSending, kClosing, kNumStates };
constexpr std::array<Duration, kNumStates> kTimeouts = {std::chrono::seconds(5), std::chrono::minutes(10),
                                                        std::chrono::seconds(20), std::chrono::milliseconds(500)};

const char* reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

std::string head_of(const Response& r) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n"
      "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
      "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n"
      "Cross-Origin-Opener-Policy: same-origin\r\nContent-Security-Policy: {}\r\n{}\r\n",
      r.status, reason(r.status), r.type, r.body.size(),
      r.policy.empty() ? "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" : r.policy,
      r.status == 405 ? "Allow: GET, HEAD\r\n" : "");
}

Response plain(int status) {
  return {status, "text/plain", reason(status), ""};
}

// Half of the descriptors this process may have are for the files of runs.
size_t connection_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return HttpServer::kMaxConnections;
  return std::clamp<size_t>(limit.rlim_cur / 2, 1, HttpServer::kMaxConnections);
}

bool would_block(ssize_t result) {
  return result < 0 && (errno == EAGAIN || errno == EINTR);
}

}  // namespace

// Everything in here is of the loop's thread alone.
class HttpServer::Loop {
 public:
  explicit Loop(HttpServer& server) : server_(server), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_ < 0) throw IoError(fmt::format("cannot make an epoll instance: {}", errno_text(errno)));
    watch(EPOLL_CTL_ADD, server_.listener_, EPOLLIN, kListener);
    watch(EPOLL_CTL_ADD, server_.wake_, EPOLLIN, kWake);
  }
  ~Loop() {
    for (const auto& connections : by_state_)
      for (const Connection& one : connections) ::close(one.fd);
    ::close(epoll_);
  }

  void run() {
    std::array<epoll_event, kMaxEvents> events{};
    for (;;) {
      const int n = ::epoll_wait(epoll_, events.data(), kMaxEvents, wait_ms());
      if (n == 0) set_accepting(true);
      bool callers = false, woken = false;
      for (int i = 0; i < n; ++i) {
        const uint64_t number = events[static_cast<size_t>(i)].data.u64;
        callers |= number == kListener;
        woken |= number == kWake;
        if (const auto found = by_number_.find(number); found != by_number_.end())
          advance(found->second, events[static_cast<size_t>(i)].events);
      }
      if (woken && !take_answers()) return;
      close_late_ones();
      if (callers) accept_some();  // last: open connections are served before a new one replaces one
    }
  }

 private:
  struct Connection {
    uint64_t number = 0;
    int fd = -1;
    State state = kReading;
    Clock::time_point until;
    bool head_only = false;
    std::string bytes;  // the request so far, then the answer
    size_t num_sent = 0;
  };
  using Place = std::list<Connection>::iterator;

  void watch(int operation, int fd, uint32_t events, uint64_t number) const {
    epoll_event event{events, {.u64 = number}};
    ::epoll_ctl(epoll_, operation, fd, &event);
  }

  int wait_ms() const {
    Deadline first = Deadline::after_ms(1000);
    for (const auto& connections : by_state_)
      if (!connections.empty() && connections.front().until < first.when())
        first = Deadline::at(connections.front().until);
    return first.left_ms();
  }

  // Callers wait in the kernel's queue until a connection is closed, or a second has passed.
  void set_accepting(bool on) {
    if (accepting_ != on) watch(EPOLL_CTL_MOD, server_.listener_, on ? uint32_t{EPOLLIN} : 0, kListener);
    accepting_ = on;
  }

  void set_state(Place one, State state, uint32_t events) {
    by_state_[state].splice(by_state_[state].end(), by_state_[one->state], one);
    one->state = state;
    one->until = Clock::now() + kTimeouts[state];
    watch(EPOLL_CTL_MOD, one->fd, events, one->number);
  }

  void close(Place one) {
    if (one->state == kInWork) {
      const std::lock_guard lock(server_.mutex_);
      std::erase_if(server_.jobs_, [&](const Job& job) { return job.connection == one->number; });
    }
    if (one->state == kSending) unsent_bytes_ -= one->bytes.size();
    ::close(one->fd);
    by_number_.erase(one->number);
    by_state_[one->state].erase(one);
    set_accepting(true);
  }

  // The connection to close for a new one: of those that have not asked yet the one that came first, else the one that
  // has been reading its answer for longest. Who waits for a worker is not at fault.
  std::optional<Place> oldest() {
    for (const State state : {kClosing, kReading, kSending})
      if (!by_state_[state].empty()) return by_state_[state].begin();
    return std::nullopt;
  }

  void close_late_ones() {
    const auto now = Clock::now();
    for (auto& connections : by_state_)
      while (!connections.empty() && connections.front().until <= now) {
        const Place late = connections.begin();
        if (late->state == kReading && !late->bytes.empty())
          send(late, plain(408));
        else
          close(late);
      }
  }

  void accept_some() {
    for (int i = 0; i < kMaxAccepts; ++i) {
      const bool full = by_number_.size() >= max_connections_;
      const std::optional<Place> silent = oldest();
      if (full && !silent) return set_accepting(false);
      const int fd = ::accept4(server_.listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0 && errno != EMFILE && errno != ENFILE) return;  // no more callers, or one that is gone
      if (fd < 0 && !silent) return set_accepting(false);
      if (fd < 0 || full) close(*silent);
      if (fd < 0) continue;
      auto& readers = by_state_[kReading];
      const Place one = readers.insert(
          readers.end(), {next_number_++, fd, kReading, Clock::now() + kTimeouts[kReading], false, {}, 0});
      by_number_.emplace(one->number, one);
      watch(EPOLL_CTL_ADD, fd, EPOLLIN, one->number);
      receive(one);
    }
  }

  void advance(Place one, uint32_t events) {
    switch (one->state) {
      case kReading:
        return receive(one);
      case kInWork:  // the client has closed its side: it is gone
        return close(one);
      case kSending:
        return (events & (EPOLLERR | EPOLLHUP)) != 0 ? close(one) : send_more(one);
      default:
        return drain(one);
    }
  }

  void receive(Place one) {
    std::array<char, 4096> buffer;
    std::string& head = one->bytes;
    while (request_end(head) == std::string::npos) {
      if (head.size() > kMaxRequestBytes) return send(one, plain(431));
      const ssize_t n = ::recv(one->fd, buffer.data(), buffer.size(), 0);
      if (would_block(n)) return;
      if (n <= 0) return close(one);
      head.append(buffer.data(), static_cast<size_t>(n));
    }
    head.resize(request_end(head));  // what follows was not asked for
    ParsedRequest parsed = parse_request(head);
    one->head_only = parsed.request.method == "HEAD";
    if (parsed.status != 0) return send(one, plain(parsed.status));
    std::optional<Response> response;
    try {
      response = server_.handlers_.screen(parsed.request);
    } catch (const std::exception&) {
      response = plain(500);
    }
    if (response) return send(one, *response);
    one->bytes = {};
    Job job{one->number, server_.handlers_.key(parsed.request), std::move(parsed.request)};
    {
      const std::lock_guard lock(server_.mutex_);
      if (server_.jobs_.size() >= kMaxJobs)
        response = plain(503);
      else
        server_.jobs_.push_back(std::move(job));
    }
    if (response) return send(one, *response);
    server_.job_came_.notify_one();
    set_state(one, kInWork, EPOLLRDHUP);
  }

  void send(Place one, const Response& response) {
    one->bytes = head_of(response);
    if (!one->head_only) one->bytes += response.body;
    one->num_sent = 0;
    unsent_bytes_ += one->bytes.size();
    set_state(one, kSending, EPOLLOUT);
    while (unsent_bytes_ > kMaxUnsentBytes && by_state_[kSending].begin() != one) close(by_state_[kSending].begin());
    send_more(one);
  }

  void send_more(Place one) {
    while (one->num_sent < one->bytes.size()) {
      const ssize_t n =
          ::send(one->fd, one->bytes.data() + one->num_sent, one->bytes.size() - one->num_sent, MSG_NOSIGNAL);
      if (would_block(n)) return;
      if (n < 0) return close(one);
      one->num_sent += static_cast<size_t>(n);
    }
    unsent_bytes_ -= one->bytes.size();
    one->bytes = {};
    ::shutdown(one->fd, SHUT_WR);
    set_state(one, kClosing, EPOLLIN);
    drain(one);
  }

  // What came and was not read would make closing a reset, and the client might lose the answer to it.
  void drain(Place one) {
    std::array<char, 4096> buffer;
    for (int i = 0; i < 16; ++i) {
      const ssize_t n = ::recv(one->fd, buffer.data(), buffer.size(), 0);
      if (would_block(n)) return;
      if (n <= 0) return close(one);
    }
  }

  bool take_answers() {
    uint64_t count = 0;
    if (::read(server_.wake_, &count, sizeof count) < 0 && errno != EAGAIN) return false;
    std::vector<Answer> answers;
    {
      const std::lock_guard lock(server_.mutex_);
      if (server_.stopping_) return false;
      answers.swap(server_.answers_);
    }
    for (const Answer& one : answers)
      if (const auto found = by_number_.find(one.connection); found != by_number_.end())
        send(found->second, one.response);
    return true;
  }

  HttpServer& server_;
  int epoll_;
  const size_t max_connections_ = connection_limit();
  bool accepting_ = true;
  uint64_t next_number_ = 2;
  size_t unsent_bytes_ = 0;  // of all answers on their way, whole
  std::array<std::list<Connection>, kNumStates> by_state_;
  std::unordered_map<uint64_t, Place> by_number_;
};

HttpServer::HttpServer(int port) {
  if (port < 0 || port > 65535) throw UsageError(fmt::format("port {}: 0 to 65535", port));
  const auto fail = [&](const char* what) {
    const int error = errno;
    if (listener_ >= 0) ::close(listener_);
    if (wake_ >= 0) ::close(wake_);
    throw IoError(fmt::format("{} 127.0.0.1:{}: {}{}", what, port, errno_text(error),
                              error == EADDRINUSE ? "; --port 0 takes any free one" : ""));
  };
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (wake_ < 0 || listener_ < 0) fail("cannot open a socket for");
  const int on = 1;
  ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) < 0 || ::listen(listener_, kBacklog) < 0)
    fail("cannot listen on");
  socklen_t size = sizeof address;
  if (::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) < 0) fail("cannot listen on");
  port_ = ntohs(address.sin_port);
}

HttpServer::~HttpServer() {
  stop();
  ::close(listener_);
  ::close(wake_);
}

void HttpServer::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  loop_ = std::make_unique<Loop>(*this);
  threads_.emplace_back([this] { loop_->run(); });
  ::pthread_setname_np(threads_.back().native_handle(), "dash-loop");
  for (int i = 0; i < kNumWorkers; ++i) {
    threads_.emplace_back([this] { work(); });
    ::pthread_setname_np(threads_.back().native_handle(), "dash-worker");
  }
}

void HttpServer::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  job_came_.notify_all();
  wake_loop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  loop_ = nullptr;
}

void HttpServer::wake_loop() const {
  const uint64_t one = 1;
  while (::write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

std::optional<HttpServer::Job> HttpServer::next_job() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stopping_) return std::nullopt;
    for (auto at = jobs_.begin(); at != jobs_.end(); ++at) {
      if (std::find(keys_in_work_.begin(), keys_in_work_.end(), at->key) != keys_in_work_.end()) continue;
      Job job = std::move(*at);
      jobs_.erase(at);
      keys_in_work_.push_back(job.key);
      return job;
    }
    job_came_.wait(lock);
  }
}

Response HttpServer::handled(const Request& request) const {
  try {
    return handlers_.answer(request);
  } catch (const std::exception&) {
    return plain(500);
  }
}

void HttpServer::work() {
  while (const std::optional<Job> job = next_job()) {
    Response response = handled(job->request);
    {
      const std::lock_guard lock(mutex_);
      answers_.push_back({job->connection, std::move(response)});
      keys_in_work_.erase(std::find(keys_in_work_.begin(), keys_in_work_.end(), job->key));
    }
    job_came_.notify_all();  // one of the same key may have waited
    wake_loop();
  }
}

}  // namespace esp::dash
