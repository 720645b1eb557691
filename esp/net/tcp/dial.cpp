#include "esp/net/tcp/dial.h"

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

constexpr auto kPause = std::chrono::milliseconds(5);  // between two attempts

}  // namespace

void prefer_unpaced(int fd, const Log& log) {
  std::array<char, 16> current{};
  socklen_t bytes = current.size();
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, current.data(), &bytes) != 0) {
    log.debug("the congestion control could not be read: {}", errno_text(errno));
  } else if (std::string_view(current.data()).starts_with("bbr") &&
             setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) != 0) {
    log.debug("congestion control stays {} on this host, reno was refused: {}", current.data(), errno_text(errno));
  }
}

void tune_data_socket(int fd, bool own_host, const Log& log) {
  int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
    log.debug("TCP_NODELAY was refused: {}", errno_text(errno));
  own_host ? prefer_unpaced(fd, log) : tolerate_interruptions(fd);
}

Dial::Dial(const World& world, int peer, const Hello& mine)
    : world_(world), peer_(peer), mine_(mine), deadline_(Deadline::after(world.options.start_timeout)) {
  begin();
}

void Dial::give_up() const {
  const Peer& peer = world_.peers[static_cast<size_t>(peer_)];
  throw CommError(CommError::Kind::timeout, peer_,
                  fmt::format("no connection to rank {} on host {} ({} port {}) within {:g} s (start_timeout_s): {}",
                              peer_, host_name(peer.host), peer.address, peer.port,
                              std::chrono::duration<double>(world_.options.start_timeout).count(),
                              last_error_.empty() ? "no answer" : last_error_));
}

void Dial::begin() {
  const Peer& peer = world_.peers[static_cast<size_t>(peer_)];
  SocketAddress to = numeric_address(peer.address, peer.port);
  socket_ = Socket(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_) throw CommError(CommError::Kind::refused, peer_, fmt::format("socket: {}", errno_text(errno)));
  tune_data_socket(socket_.fd(), world_.same_host(world_.rank, peer_), world_.log);
  // A chosen interface carries what we send too, not only what we listen for.
  if (!world_.options.interface.empty()) {
    SocketAddress from = numeric_address(interface_address(world_.options.interface, to.family()), 0);
    if (bind(socket_.fd(), from.get(), from.length) != 0) return retry(errno_text(errno));
  }
  connected_ = false;
  handshake_.emplace(Handshake::connecting(world_.secret, mine_));
  outbox_ = handshake_->feed({});
  if (::connect(socket_.fd(), to.get(), to.length) != 0 && errno != EINPROGRESS) retry(errno_text(errno));
}

void Dial::retry(const std::string& why) {
  last_error_ = why;
  socket_.close();
  try_again_ = Clock::now() + kPause;
}

bool Dial::connected() {
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
  if (getpeername(socket_.fd(), end.get(), &end.length) != 0) return false;  // still under way
  // A call to a free port of the ephemeral range can meet itself.
  SocketAddress mine = local_address(socket_.fd());
  if (mine.port() == end.port() && mine.text() == end.text()) {
    retry("no program listens there");
    return false;
  }
  connected_ = true;
  return true;
}

bool Dial::flush() {
  while (!outbox_.empty()) {
    ssize_t sent = ::send(socket_.fd(), outbox_.data(), outbox_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) retry(errno_text(errno));
    if (sent < 0) return false;
    outbox_.erase(0, static_cast<size_t>(sent));
  }
  return true;
}

std::optional<Socket> Dial::advance() {
  if (deadline_.passed()) give_up();
  if (!socket_ && Clock::now() >= try_again_) begin();
  if (!socket_ || !connected()) return std::nullopt;
  while (flush()) {
    if (handshake_->done()) return std::move(socket_);
    std::array<char, 128> buffer;
    ssize_t got = ::recv(socket_.fd(), buffer.data(), std::min(buffer.size(), handshake_->wants()), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0) {  // dropped without a verdict: it was busy
      retry("it closed the connection during the handshake");
      break;
    }
    outbox_ = handshake_->feed({buffer.data(), static_cast<size_t>(got)});
  }
  return std::nullopt;
}

}  // namespace esp::net
