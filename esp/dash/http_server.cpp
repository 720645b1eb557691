#include "esp/dash/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/clock.h"
#include "esp/base/error.h"

namespace esp::dash {
namespace {

constexpr int kThreads = 12;
constexpr int kRequestMs = 2000, kAnswerMs = 20000, kDrainMs = 500;

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

bool wait_for(int fd, short what, const Deadline& until) {
  pollfd one{fd, what, 0};
  for (;;) {
    const int n = ::poll(&one, 1, until.left_ms());
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

void send_all(int fd, std::string_view text, const Deadline& until) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0)
      text.remove_prefix(static_cast<size_t>(n));
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
      return;  // gone: nobody to tell
    else if (!wait_for(fd, POLLOUT, until))
      return;
  }
}

// The head of a request, or the status that answers what came instead; -1: hung up.
int receive_head(int fd, std::string& head) {
  const Deadline until = Deadline::after_ms(kRequestMs);
  char buffer[4096];
  while (request_end(head) == std::string::npos) {
    if (head.size() > kMaxRequestBytes) return 431;
    if (!wait_for(fd, POLLIN, until)) return head.empty() ? -1 : 408;
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return -1;
    if (n > 0) head.append(buffer, static_cast<size_t>(n));
  }
  head.resize(request_end(head));  // what follows was not asked for
  return 0;
}

// What came and was not read would make closing a reset, and the client might lose the answer to it.
void drain(int fd) {
  const Deadline until = Deadline::after_ms(kDrainMs);
  char buffer[4096];
  for (int i = 0; i < 64 && wait_for(fd, POLLIN, until); ++i)
    if (::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) <= 0) return;
}

}  // namespace

HttpServer::HttpServer(int port) {
  if (port < 0 || port > 65535) throw UsageError(fmt::format("port {}: 0 to 65535", port));
  const auto fail = [&](const char* what) {
    const int error = errno;
    if (listener_ >= 0) ::close(listener_);
    if (wake_ >= 0) ::close(wake_);
    throw IoError(fmt::format("{} 127.0.0.1:{}: {}{}", what, port, std::strerror(error),
                              error == EADDRINUSE ? "; --port 0 takes any free one" : ""));
  };
  wake_ = ::eventfd(0, EFD_CLOEXEC);
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (wake_ < 0 || listener_ < 0) fail("cannot open a socket for");
  const int on = 1;
  ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) < 0 || ::listen(listener_, 64) < 0)
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

void HttpServer::start(Handler handler) {
  handler_ = std::move(handler);
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { serve(); });
    ::pthread_setname_np(threads_.back().native_handle(), "dash");
  }
}

void HttpServer::stop() {
  stopping_ = true;
  const uint64_t one = 1;
  if (::write(wake_, &one, sizeof one) < 0) return;  // never read, so that it wakes every thread
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void HttpServer::serve() {
  while (!stopping_) {
    pollfd fds[2] = {{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (::poll(fds, 2, 1000) <= 0) continue;
    if (fds[1].revents != 0) return;
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) continue;  // another thread took it
    answer(client);
    ::shutdown(client, SHUT_WR);
    drain(client);
    ::close(client);
  }
}

void HttpServer::answer(int client) const {
  std::string head;
  const int status = receive_head(client, head);
  if (status < 0) return;
  ParsedRequest parsed{status, {}};
  if (status == 0) parsed = parse_request(head);
  Response response;
  if (parsed.status != 0) {
    response = {parsed.status, "text/plain", reason(parsed.status), ""};
  } else {
    try {
      response = handler_(parsed.request);
    } catch (const std::exception&) {
      response = {500, "text/plain", "internal error", ""};
    }
  }
  const Deadline until = Deadline::after_ms(kAnswerMs);
  send_all(client, head_of(response), until);
  if (parsed.request.method != "HEAD") send_all(client, response.body, until);
}

}  // namespace esp::dash
