#include "esp/net/listener.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include <fmt/format.h>

#include "esp/net/address.h"
#include "esp/net/connection_limiter.h"
#include "esp/net/handshake_filter.h"
#include "esp/net/tcp/peer_connector.h"

namespace esp::net {
namespace {

constexpr auto kHandshakeTime = std::chrono::seconds(2);
// TCP_DEFER_ACCEPT in seconds: Linux hides a connection from accept() until it has sent data, for at most this time.
// Peers send their first message at once.
constexpr int kSilentSeconds = 2;
// how long accept() pauses when this process has no free file descriptor
constexpr auto kPauseWithoutDescriptors = std::chrono::milliseconds(50);
// how long the handshake filter stays attached after a flood; a continuing flood attaches it again
constexpr auto kFilterTime = std::chrono::seconds(1);
constexpr uint64_t kStopKey = ~uint64_t{0}, kListenKey = ~uint64_t{0} - 1;

Socket open_listening(const SocketAddress& at) {
  Socket socket(::socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int on = 1;
  if (socket) setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (socket && at.family() == AF_INET6) setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  // Accepted sockets inherit the listening socket's congestion control. Switching them later does not help, because the
  // pacing of bbr stays active (see net/tcp/peer_connector.cpp).
  if (socket && is_loopback(at)) disable_bbr_pacing(socket.fd(), Log());
  if (socket) setsockopt(socket.fd(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &kSilentSeconds, sizeof kSilentSeconds);
  if (!socket || bind(socket.fd(), at.get(), at.length) != 0 || listen(socket.fd(), SOMAXCONN) != 0)
    throw CommError(CommError::Kind::refused, -1,
                    fmt::format("cannot listen on {} port {}: {}", at.text(), at.port(), errno_text(errno)));
  return socket;
}

bool watch_input(int epoll, int fd, uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

// For IPv6 the source is the /64 prefix of the caller's address, because every caller owns at least a /64.
std::string source_of(const SocketAddress& caller) {
  if (caller.family() != AF_INET6) return caller.text();
  auto* v6 = reinterpret_cast<const sockaddr_in6*>(&caller.storage);
  return std::string(reinterpret_cast<const char*>(&v6->sin6_addr), 8);
}

}  // namespace

struct Listener::Impl {
  struct Caller {
    Socket socket;
    Handshake shake;
    Clock::time_point until;
  };
  using Key = std::tuple<uint64_t, int, uint32_t>;  // group, world rank, stream

  Secret secret;
  std::string job;
  bool encrypted = false;
  Accepted on_accept;
  std::string address;
  int port = 0;
  Socket listening, epoll, stop;

  // Used by the listener's thread only.
  ConnectionLimiter limiter;
  std::map<int, Caller> callers;  // key: connection id
  int next_id = 0;
  bool accept_paused = false, filtering = false;
  Clock::time_point accept_paused_until{}, filter_until{};

  std::mutex mutex;                    // guards the two members below
  std::multimap<Key, Socket> arrived;  // connections with equal keys stay in order of arrival
  std::function<bool(const HandshakeRequest&)> is_rejected;
  std::condition_variable changed;

  std::thread thread;

  void run();
  int next_wait_ms() const;
  void accept_all();
  void begin(Socket socket, const std::string& source);
  void proceed(int id);
  void drop(int id, bool failed);
  void expire();
  void install_filter();
  void deliver(Socket socket, const HandshakeRequest& request);
};

int Listener::Impl::next_wait_ms() const {
  auto soonest = Clock::time_point::max();
  // Ids increase with time, so the first entry has the earliest deadline.
  if (!callers.empty()) soonest = callers.begin()->second.until;
  if (accept_paused) soonest = std::min(soonest, accept_paused_until);
  if (filtering) soonest = std::min(soonest, filter_until);
  return soonest == Clock::time_point::max() ? -1 : Deadline::at(soonest).left_ms();
}

void Listener::Impl::run() {
  epoll_event events[64];
  for (;;) {
    int count = epoll_wait(epoll.fd(), events, 64, next_wait_ms());
    for (int i = 0; i < count; ++i) {
      uint64_t key = events[i].data.u64;
      if (key == kStopKey) return;
      if (key == kListenKey) {
        accept_all();
      } else if (callers.contains(static_cast<int>(key))) {
        proceed(static_cast<int>(key));
      }
    }
    expire();
  }
}

void Listener::Impl::accept_all() {
  // At most 64 connections per turn, so that a flood of new connections never starves handshakes in progress.
  for (int i = 0; i < 64; ++i) {
    SocketAddress caller;
    caller.length = sizeof caller.storage;
    Socket socket(accept4(listening.fd(), caller.get(), &caller.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
      epoll_ctl(epoll.fd(), EPOLL_CTL_DEL, listening.fd(), nullptr);
      accept_paused = true;
      accept_paused_until = Clock::now() + kPauseWithoutDescriptors;
      return;
    }
    std::string source = source_of(caller);
    if (limiter.admit(source, is_loopback(caller), Clock::now())) begin(std::move(socket), source);
  }
}

void Listener::Impl::begin(Socket socket, const std::string& source) {
  while (auto victim = limiter.evict(source)) drop(*victim, true);
  int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  detach_handshake_filter(socket.fd());  // the connection may have been accepted while the filter was attached
  int id = next_id++;
  // closes the connection; the caller may retry
  if (!watch_input(epoll.fd(), socket.fd(), static_cast<uint64_t>(id))) return;
  callers.emplace(id, Caller{std::move(socket), Handshake::make_callee(secret, job), Clock::now() + kHandshakeTime});
  limiter.record_start(source, id);
}

void Listener::Impl::proceed(int id) {
  Caller& caller = callers.at(id);
  int fd = caller.socket.fd();
  char buffer[Handshake::kRequestBytes];
  ssize_t got = recv(fd, buffer, std::min(sizeof buffer, caller.shake.bytes_needed()), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return drop(id, true);
  try {
    std::string reply = caller.shake.feed({buffer, static_cast<size_t>(got)});
    // The reply is smaller than a packet and the send buffer is empty. A partial send therefore means a broken
    // connection.
    bool sent =
        reply.empty() || send(fd, reply.data(), reply.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(reply.size());
    if (!sent) return drop(id, true);
  } catch (const CommError&) {
    std::string refusal = Handshake::refusal();
    [[maybe_unused]] auto sent = send(fd, refusal.data(), refusal.size(), MSG_NOSIGNAL);
    return drop(id, true);
  }
  if (!caller.shake.done()) return;
  epoll_ctl(epoll.fd(), EPOLL_CTL_DEL, fd, nullptr);
  Socket socket = std::move(caller.socket);
  HandshakeRequest request = caller.shake.request();
  drop(id, false);
  deliver(std::move(socket), request);
}

void Listener::Impl::drop(int id, bool failed) {
  if (!failed) {
    limiter.record_success(id);
  } else if (limiter.record_failure(id, Clock::now())) {
    install_filter();
  }
  callers.erase(id);
}

// Called when a source exceeds its failure limit. Closing its connections may not be enough, because local sources are
// always admitted. The BPF filter lets only connections pass that begin with a handshake request of this job.
void Listener::Impl::install_filter() {
  if (filtering) return;
  filtering =
      attach_handshake_filter(listening.fd(), Handshake::make_caller(secret, {Role::data, 0, job, 0, 0}).feed(""));
  filter_until = Clock::now() + kFilterTime;
}

void Listener::Impl::expire() {
  auto now = Clock::now();
  while (!callers.empty() && callers.begin()->second.until <= now) drop(callers.begin()->first, true);
  if (accept_paused && accept_paused_until <= now) {
    accept_paused = !watch_input(epoll.fd(), listening.fd(), kListenKey);
    accept_paused_until = now + kPauseWithoutDescriptors;
  }
  if (filtering && filter_until <= now) {
    filtering = false;
    detach_handshake_filter(listening.fd());
  }
}

void Listener::Impl::deliver(Socket socket, const HandshakeRequest& request) {
  {
    std::lock_guard lock(mutex);
    if (is_rejected && is_rejected(request)) return;
    // Two connections may have one key: a group that is closed and opened again may connect before the first connection
    // was taken.
    if (!on_accept) arrived.emplace(Key{request.group, request.rank, request.stream}, std::move(socket));
  }
  on_accept ? on_accept(std::move(socket), request) : changed.notify_all();
}

Listener::Listener(const std::string& address, int port, Secret secret, std::string job, Accepted on_accept,
                   bool encrypted)
    : impl_(std::make_unique<Impl>()) {
  impl_->secret = std::move(secret);
  // Encrypted jobs use another job name, so the handshake fails if only one side encrypts.
  impl_->job = encrypted ? job + "/sealed" : std::move(job);
  impl_->encrypted = encrypted;
  impl_->on_accept = std::move(on_accept);
  impl_->listening = open_listening(numeric_address(address, port));
  auto bound = local_address(impl_->listening.fd());
  impl_->address = bound.text();
  impl_->port = bound.port();
  impl_->epoll = Socket(epoll_create1(EPOLL_CLOEXEC));
  impl_->stop = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!watch_input(impl_->epoll.fd(), impl_->stop.fd(), kStopKey) ||
      !watch_input(impl_->epoll.fd(), impl_->listening.fd(), kListenKey))
    throw CommError(CommError::Kind::refused, -1, fmt::format("listener: cannot set up epoll: {}", errno_text(errno)));
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
  pthread_setname_np(impl_->thread.native_handle(), "esp-listener");
}

Listener::~Listener() {
  eventfd_write(impl_->stop.fd(), 1);
  impl_->thread.join();
}

const std::string& Listener::address() const {
  return impl_->address;
}
int Listener::port() const {
  return impl_->port;
}
bool Listener::encrypted() const {
  return impl_->encrypted;
}
const std::string& Listener::job() const {
  return impl_->job;
}

Socket Listener::take(uint64_t group, int peer, uint32_t stream, Deadline deadline) {
  std::unique_lock lock(impl_->mutex);
  Impl::Key key{group, peer, stream};
  if (!impl_->changed.wait_until(lock, deadline.when(), [&] { return impl_->arrived.contains(key); }))
    throw CommError(CommError::Kind::timeout, peer, fmt::format("rank {}: no connection before the deadline", peer));
  return std::move(impl_->arrived.extract(key).mapped());
}

std::optional<Socket> Listener::try_take(uint64_t group, int peer, uint32_t stream) {
  std::lock_guard lock(impl_->mutex);
  auto found = impl_->arrived.extract(Impl::Key{group, peer, stream});
  if (found.empty()) return {};
  return std::move(found.mapped());
}

void Listener::reject_if(std::function<bool(const HandshakeRequest&)> is_rejected) {
  std::lock_guard lock(impl_->mutex);
  impl_->is_rejected = std::move(is_rejected);
}

}  // namespace esp::net
