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
constexpr size_t kMaxPending = 64;
// ids of these two descriptors in epoll events; ids of connections begin at 2
constexpr uint64_t kListener = 0, kWake = 1;

// State of a connection. All connections in one state have the same timeout, so the list of a state is ordered by
// deadline.
enum ConnectionState : size_t { kReading, kWaitingForWorker, kSending, kClosing, kNumStates };
constexpr std::array<Duration, kNumStates> kTimeouts = {std::chrono::seconds(5), std::chrono::minutes(10),
                                                        std::chrono::seconds(20), std::chrono::milliseconds(500)};

const char* reason_phrase(int status) {
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

std::string response_head(const Response& r) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n"
      "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
      "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n"
      "Cross-Origin-Opener-Policy: same-origin\r\nContent-Security-Policy: {}\r\n{}\r\n",
      r.status, reason_phrase(r.status), r.type, r.body.size(),
      r.policy.empty() ? "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" : r.policy,
      r.status == 405 ? "Allow: GET, HEAD\r\n" : "");
}

Response plain_response(int status) {
  return {status, "text/plain", reason_phrase(status), ""};
}

// Half of this process's file descriptors stay free for the files of runs.
size_t connection_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return HttpServer::kMaxConnections;
  return std::clamp<size_t>(limit.rlim_cur / 2, 1, HttpServer::kMaxConnections);
}

bool would_block(ssize_t result) {
  return result < 0 && (errno == EAGAIN || errno == EINTR);
}

}  // namespace

// The epoll loop. Only its own thread uses its members.
class HttpServer::Loop {
 public:
  explicit Loop(HttpServer& server) : server_(server), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_ < 0) throw IoError(fmt::format("dashboard: cannot create its epoll descriptor: {}", errno_text(errno)));
    watch(EPOLL_CTL_ADD, server_.listener_, EPOLLIN, kListener);
    watch(EPOLL_CTL_ADD, server_.wake_, EPOLLIN, kWake);
  }
  ~Loop() {
    for (const auto& connections : by_state_)
      for (const Connection& connection : connections) ::close(connection.fd);
    ::close(epoll_);
  }

  void run() {
    std::array<epoll_event, kMaxEvents> events{};
    for (;;) {
      const int n = ::epoll_wait(epoll_, events.data(), kMaxEvents, wait_ms());
      if (n == 0) set_accepting(true);
      bool has_new_clients = false, woken = false;
      for (int i = 0; i < n; ++i) {
        const uint64_t id = events[static_cast<size_t>(i)].data.u64;
        has_new_clients |= id == kListener;
        woken |= id == kWake;
        if (const auto found = by_id_.find(id); found != by_id_.end())
          advance(found->second, events[static_cast<size_t>(i)].events);
      }
      if (woken && !send_completed()) return;
      close_expired();
      // open connections are handled first, because accepting may close one of them
      if (has_new_clients) accept_clients();
    }
  }

 private:
  struct Connection {
    uint64_t id = 0;
    int fd = -1;
    ConnectionState state = kReading;
    Clock::time_point until;
    bool head_only = false;
    std::string bytes;  // first the received part of the request, then the response
    size_t num_sent = 0;
  };
  using ConnectionIterator = std::list<Connection>::iterator;

  void watch(int operation, int fd, uint32_t events, uint64_t id) const {
    epoll_event event{events, {.u64 = id}};
    ::epoll_ctl(epoll_, operation, fd, &event);
  }

  int wait_ms() const {
    Deadline first = Deadline::after_ms(1000);
    for (const auto& connections : by_state_)
      if (!connections.empty() && connections.front().until < first.when())
        first = Deadline::at(connections.front().until);
    return first.left_ms();
  }

  // While accepting is off, new clients wait in the listen queue of the socket. Accepting is switched on again when a
  // connection closes, or when no event has arrived for one second.
  void set_accepting(bool on) {
    if (accepting_ != on) watch(EPOLL_CTL_MOD, server_.listener_, on ? uint32_t{EPOLLIN} : 0, kListener);
    accepting_ = on;
  }

  void set_state(ConnectionIterator connection, ConnectionState state, uint32_t events) {
    by_state_[state].splice(by_state_[state].end(), by_state_[connection->state], connection);
    connection->state = state;
    connection->until = Clock::now() + kTimeouts[state];
    watch(EPOLL_CTL_MOD, connection->fd, events, connection->id);
  }

  void close(ConnectionIterator connection) {
    if (connection->state == kWaitingForWorker) {
      const std::lock_guard lock(server_.mutex_);
      std::erase_if(server_.pending_,
                    [&](const PendingRequest& pending) { return pending.connection == connection->id; });
    }
    if (connection->state == kSending) unsent_bytes_ -= connection->bytes.size();
    ::close(connection->fd);
    by_id_.erase(connection->id);
    by_state_[connection->state].erase(connection);
    set_accepting(true);
  }

  // Chooses the connection to close so that a new one can be accepted. The order is: a connection that is being
  // closed; the oldest one without a complete request; the one whose client has been reading its response longest.
  // A connection that waits for a worker is never chosen.
  std::optional<ConnectionIterator> connection_to_evict() {
    for (const ConnectionState state : {kClosing, kReading, kSending})
      if (!by_state_[state].empty()) return by_state_[state].begin();
    return std::nullopt;
  }

  void close_expired() {
    const auto now = Clock::now();
    for (auto& connections : by_state_)
      while (!connections.empty() && connections.front().until <= now) {
        const ConnectionIterator expired = connections.begin();
        if (expired->state == kReading && !expired->bytes.empty())
          send(expired, plain_response(408));
        else
          close(expired);
      }
  }

  void accept_clients() {
    for (int i = 0; i < kMaxAccepts; ++i) {
      const bool full = by_id_.size() >= max_connections_;
      const std::optional<ConnectionIterator> evictable = connection_to_evict();
      if (full && !evictable) return set_accepting(false);
      const int fd = ::accept4(server_.listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0 && errno != EMFILE && errno != ENFILE) return;  // no more clients are waiting, or the client has gone
      if (fd < 0 && !evictable) return set_accepting(false);
      if (fd < 0 || full) close(*evictable);
      if (fd < 0) continue;
      auto& readers = by_state_[kReading];
      const ConnectionIterator connection =
          readers.insert(readers.end(), {next_id_++, fd, kReading, Clock::now() + kTimeouts[kReading], false, {}, 0});
      by_id_.emplace(connection->id, connection);
      watch(EPOLL_CTL_ADD, fd, EPOLLIN, connection->id);
      receive(connection);
    }
  }

  void advance(ConnectionIterator connection, uint32_t events) {
    switch (connection->state) {
      case kReading:
        return receive(connection);
      case kWaitingForWorker:  // the client has closed the connection
        return close(connection);
      case kSending:
        return (events & (EPOLLERR | EPOLLHUP)) != 0 ? close(connection) : send_more(connection);
      default:
        return drain(connection);
    }
  }

  void receive(ConnectionIterator connection) {
    std::array<char, 4096> buffer;
    std::string& head = connection->bytes;
    while (request_end(head) == std::string::npos) {
      if (head.size() > kMaxRequestBytes) return send(connection, plain_response(431));
      const ssize_t n = ::recv(connection->fd, buffer.data(), buffer.size(), 0);
      if (would_block(n)) return;
      if (n <= 0) return close(connection);
      head.append(buffer.data(), static_cast<size_t>(n));
    }
    head.resize(request_end(head));  // bytes after the head are ignored
    ParsedRequest parsed = parse_request(head);
    connection->head_only = parsed.request.method == "HEAD";
    if (parsed.status != 0) return send(connection, plain_response(parsed.status));
    std::optional<Response> response;
    try {
      response = server_.handlers_.respond_inline(parsed.request);
    } catch (const std::exception&) {
      response = plain_response(500);
    }
    if (response) return send(connection, *response);
    connection->bytes = {};
    PendingRequest pending{connection->id, server_.handlers_.key(parsed.request), std::move(parsed.request)};
    {
      const std::lock_guard lock(server_.mutex_);
      if (server_.pending_.size() >= kMaxPending)
        response = plain_response(503);
      else
        server_.pending_.push_back(std::move(pending));
    }
    if (response) return send(connection, *response);
    server_.request_ready_.notify_one();
    set_state(connection, kWaitingForWorker, EPOLLRDHUP);
  }

  void send(ConnectionIterator connection, const Response& response) {
    connection->bytes = response_head(response);
    if (!connection->head_only) connection->bytes += response.body;
    connection->num_sent = 0;
    unsent_bytes_ += connection->bytes.size();
    set_state(connection, kSending, EPOLLOUT);
    while (unsent_bytes_ > kMaxUnsentBytes && by_state_[kSending].begin() != connection)
      close(by_state_[kSending].begin());
    send_more(connection);
  }

  void send_more(ConnectionIterator connection) {
    while (connection->num_sent < connection->bytes.size()) {
      const ssize_t n = ::send(connection->fd, connection->bytes.data() + connection->num_sent,
                               connection->bytes.size() - connection->num_sent, MSG_NOSIGNAL);
      if (would_block(n)) return;
      if (n < 0) return close(connection);
      connection->num_sent += static_cast<size_t>(n);
    }
    unsent_bytes_ -= connection->bytes.size();
    connection->bytes = {};
    ::shutdown(connection->fd, SHUT_WR);
    set_state(connection, kClosing, EPOLLIN);
    drain(connection);
  }

  // Reads and discards further input. Closing a socket with unread input would send a reset, and the client could lose
  // the response.
  void drain(ConnectionIterator connection) {
    std::array<char, 4096> buffer;
    for (int i = 0; i < 16; ++i) {
      const ssize_t n = ::recv(connection->fd, buffer.data(), buffer.size(), 0);
      if (would_block(n)) return;
      if (n <= 0) return close(connection);
    }
  }

  bool send_completed() {
    uint64_t count = 0;
    if (::read(server_.wake_, &count, sizeof count) < 0 && errno != EAGAIN) return false;
    std::vector<CompletedResponse> completed;
    {
      const std::lock_guard lock(server_.mutex_);
      if (server_.stopping_) return false;
      completed.swap(server_.completed_);
    }
    for (const CompletedResponse& done : completed)
      if (const auto found = by_id_.find(done.connection); found != by_id_.end()) send(found->second, done.response);
    return true;
  }

  HttpServer& server_;
  int epoll_;
  const size_t max_connections_ = connection_limit();
  bool accepting_ = true;
  uint64_t next_id_ = 2;
  size_t unsent_bytes_ = 0;  // total size of all responses that are being sent
  std::array<std::list<Connection>, kNumStates> by_state_;
  std::unordered_map<uint64_t, ConnectionIterator> by_id_;
};

HttpServer::HttpServer(int port) {
  if (port < 0 || port > 65535) throw UsageError(fmt::format("port: got {}; expected 0 to 65535", port));
  const auto fail = [&](const char* what) {
    const int error = errno;
    if (listener_ >= 0) ::close(listener_);
    if (wake_ >= 0) ::close(wake_);
    throw IoError(fmt::format("{} 127.0.0.1:{}: {}{}", what, port, errno_text(error),
                              error == EADDRINUSE ? "; --port 0 selects a free port" : ""));
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
    threads_.emplace_back([this] { run_worker(); });
    ::pthread_setname_np(threads_.back().native_handle(), "dash-worker");
  }
}

void HttpServer::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  request_ready_.notify_all();
  wake_loop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  loop_ = nullptr;
}

void HttpServer::wake_loop() const {
  const uint64_t value = 1;
  while (::write(wake_, &value, sizeof value) < 0 && errno == EINTR) {
  }
}

std::optional<HttpServer::PendingRequest> HttpServer::next_request() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stopping_) return std::nullopt;
    for (auto at = pending_.begin(); at != pending_.end(); ++at) {
      if (std::find(busy_keys_.begin(), busy_keys_.end(), at->key) != busy_keys_.end()) continue;
      PendingRequest pending = std::move(*at);
      pending_.erase(at);
      busy_keys_.push_back(pending.key);
      return pending;
    }
    request_ready_.wait(lock);
  }
}

Response HttpServer::call_handler(const Request& request) const {
  try {
    return handlers_.respond(request);
  } catch (const std::exception&) {
    return plain_response(500);
  }
}

void HttpServer::run_worker() {
  while (const std::optional<PendingRequest> pending = next_request()) {
    Response response = call_handler(pending->request);
    {
      const std::lock_guard lock(mutex_);
      completed_.push_back({pending->connection, std::move(response)});
      busy_keys_.erase(std::find(busy_keys_.begin(), busy_keys_.end(), pending->key));
    }
    request_ready_.notify_all();  // all workers are notified: a waiting request may have the same key
    wake_loop();
  }
}

}  // namespace esp::dash
