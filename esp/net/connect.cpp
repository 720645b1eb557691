// Connecting side of the handshake: connect_to and try_connect of net/handshake.h.
#include <netinet/tcp.h>
#include <poll.h>

#include <thread>

#include <fmt/format.h>

#include "esp/net/address.h"
#include "esp/net/handshake.h"

namespace esp::net {
namespace {

// Error text of one connection attempt; empty on success.
using Fault = std::string;

bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd item{fd, events, 0};
    int ready = poll(&item, 1, deadline.left_ms());
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return false;
  }
}

// TCP self-connection: a connect() to a free port of the ephemeral range can choose the same port as its source, and
// the socket is then connected to itself.
bool is_self_connection(int fd, const SocketAddress& target) {
  auto mine = local_address(fd);
  return mine.port() == target.port() && mine.text() == target.text();
}

Fault connect_once(Socket& socket, const SocketAddress& target, const std::string& source, Deadline deadline) {
  socket = Socket(::socket(target.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return errno_text(errno);
  int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (!source.empty()) {
    auto from = numeric_address(source, 0);
    if (bind(socket.fd(), from.get(), from.length) != 0) return errno_text(errno);
  }
  if (connect(socket.fd(), target.get(), target.length) != 0) {
    if (errno != EINPROGRESS) return errno_text(errno);
    if (!wait_for(socket.fd(), POLLOUT, deadline)) return "no answer";
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return errno_text(error);
  }
  if (is_self_connection(socket.fd(), target)) return "no program listens on this port";
  return {};
}

Fault run_handshake(int fd, Handshake& shake, Deadline deadline) {
  std::string out = shake.feed("");
  for (;;) {
    while (!out.empty()) {
      ssize_t sent = send(fd, out.data(), out.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        out.erase(0, static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        if (!wait_for(fd, POLLOUT, deadline)) return "no answer to the handshake";
      } else if (errno != EINTR) {
        return fmt::format("the peer closed the connection during the handshake: {}", errno_text(errno));
      }
    }
    if (shake.done()) return {};
    char buffer[Handshake::kRequestBytes];
    ssize_t got = recv(fd, buffer, std::min(sizeof buffer, shake.bytes_needed()), 0);
    if (got > 0) {
      out = shake.feed({buffer, static_cast<size_t>(got)});
    } else if (got == 0) {
      return "the peer closed the connection during the handshake";
    } else if (errno == EAGAIN) {
      if (!wait_for(fd, POLLIN, deadline)) return "no answer to the handshake";
    } else if (errno != EINTR) {
      return fmt::format("the peer closed the connection during the handshake: {}", errno_text(errno));
    }
  }
}

}  // namespace

Socket try_connect(const std::string& address, int port, const Secret& secret, const HandshakeRequest& mine,
                   const std::string& bind_interface, Deadline deadline, std::string& fault) {
  auto target = numeric_address(address, port);
  std::string source = bind_interface.empty() ? "" : interface_address(bind_interface, target.family());
  Socket socket;
  fault = connect_once(socket, target, source, deadline);
  if (fault.empty()) {
    auto shake = Handshake::make_caller(secret, mine);
    fault = run_handshake(socket.fd(), shake, deadline);
  }
  return fault.empty() ? std::move(socket) : Socket();
}

Socket connect_to(const std::string& address, int port, const Secret& secret, const HandshakeRequest& mine,
                  const std::string& bind_interface, Deadline deadline) {
  auto pause = std::chrono::milliseconds(2);
  for (;;) {
    std::string fault;
    if (Socket socket = try_connect(address, port, secret, mine, bind_interface, deadline, fault)) return socket;
    if (deadline.left() <= pause)
      throw CommError(CommError::Kind::timeout, -1,
                      fmt::format("cannot connect to {} port {} before the deadline: {}", address, port, fault));
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(100));
  }
}

}  // namespace esp::net
