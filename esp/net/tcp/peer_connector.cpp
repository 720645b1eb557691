#include "esp/net/tcp/peer_connector.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/address.h"
#include "esp/net/link.h"

namespace esp::net {
namespace {

constexpr auto kPause = std::chrono::milliseconds(5);  // pause between two connection attempts

}  // namespace

void disable_bbr_pacing(int fd, const Log& log) {
  std::array<char, 16> current{};
  socklen_t bytes = current.size();
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, current.data(), &bytes) != 0) {
    log.debug("cannot read the congestion control of a connection: {}", errno_text(errno));
  } else if (std::string_view(current.data()).starts_with("bbr") &&
             setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) != 0) {
    log.debug("a connection within this host keeps congestion control {}: Linux refused reno: {}", current.data(),
              errno_text(errno));
  }
}

void tune_data_socket(int fd, bool own_host, const Log& log) {
  int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
    log.debug("Linux refused TCP_NODELAY for a connection: {}", errno_text(errno));
  own_host ? disable_bbr_pacing(fd, log) : configure_keepalive(fd);
}

PeerConnector::PeerConnector(const World& world, int peer, const HandshakeRequest& mine)
    : world_(world), peer_(peer), mine_(mine), deadline_(Deadline::after(world.options.start_timeout)) {
  begin();
}

void PeerConnector::give_up() const {
  const Peer& peer = world_.peers[static_cast<size_t>(peer_)];
  throw CommError(CommError::Kind::timeout, peer_,
                  fmt::format("no connection to rank {} on host {} ({} port {}) within {:g} s (start_timeout_s): {}",
                              peer_, host_name(peer.host), peer.address, peer.port,
                              std::chrono::duration<double>(world_.options.start_timeout).count(),
                              last_error_.empty() ? "no answer" : last_error_));
}

void PeerConnector::begin() {
  const Peer& peer = world_.peers[static_cast<size_t>(peer_)];
  SocketAddress to = numeric_address(peer.address, peer.port);
  socket_ = Socket(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_)
    throw CommError(CommError::Kind::refused, peer_,
                    fmt::format("cannot create a socket for rank {}: {}", peer_, errno_text(errno)));
  tune_data_socket(socket_.fd(), world_.same_host(world_.rank, peer_), world_.log);
  // A configured interface selects the listen address and also the source of outgoing connections.
  if (!world_.options.interface.empty()) {
    SocketAddress from = numeric_address(interface_address(world_.options.interface, to.family()), 0);
    if (bind(socket_.fd(), from.get(), from.length) != 0) return retry(errno_text(errno));
  }
  connected_ = false;
  handshake_.emplace(Handshake::make_caller(world_.secret, mine_));
  outbox_ = handshake_->feed({});
  if (::connect(socket_.fd(), to.get(), to.length) != 0 && errno != EINPROGRESS) retry(errno_text(errno));
}

void PeerConnector::retry(const std::string& why) {
  last_error_ = why;
  socket_.close();
  try_again_ = Clock::now() + kPause;
}

bool PeerConnector::connected() {
  if (connected_) return true;
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error != 0) {
    retry(errno_text(error));
    return false;
  }
  SocketAddress end;
  end.length = sizeof end.storage;
  if (getpeername(socket_.fd(), end.get(), &end.length) != 0) return false;  // the connection is not established yet
  // TCP self-connection: a connect() to a free port of the ephemeral range can choose that port as its source.
  SocketAddress mine = local_address(socket_.fd());
  if (mine.port() == end.port() && mine.text() == end.text()) {
    retry("no program listens on this port");
    return false;
  }
  connected_ = true;
  return true;
}

bool PeerConnector::flush() {
  while (!outbox_.empty()) {
    ssize_t sent = ::send(socket_.fd(), outbox_.data(), outbox_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) retry(errno_text(errno));
    if (sent < 0) return false;
    outbox_.erase(0, static_cast<size_t>(sent));
  }
  return true;
}

std::optional<Socket> PeerConnector::advance() {
  if (deadline_.passed()) give_up();
  if (!socket_ && Clock::now() >= try_again_) begin();
  if (!socket_ || !connected()) return std::nullopt;
  while (flush()) {
    if (handshake_->done()) return std::move(socket_);
    std::array<char, 128> buffer;
    ssize_t got =
        ::recv(socket_.fd(), buffer.data(), std::min(buffer.size(), handshake_->bytes_needed()), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0) {  // the peer closed the connection without a confirmation, because it was busy
      retry("the peer closed the connection during the handshake");
      break;
    }
    outbox_ = handshake_->feed({buffer.data(), static_cast<size_t>(got)});
  }
  return std::nullopt;
}

}  // namespace esp::net
