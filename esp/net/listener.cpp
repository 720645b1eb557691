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
#include "esp/net/doorkeeper.h"
#include "esp/net/greeting_filter.h"
#include "esp/net/tcp/dial.h"

namespace esp::net {
namespace {

constexpr auto kHandshakeTime = std::chrono::seconds(2);
// Who says nothing is not let through to us: peers speak first, at once. The kernel keeps the silent that long.
constexpr int kSilentSeconds = 2;
constexpr auto kRestWhenFull = std::chrono::milliseconds(50);  // no descriptor left: stop accepting for that long
constexpr auto kWary = std::chrono::seconds(1);                // after a flood was noticed; then we look again
constexpr uint64_t kStopKey = ~uint64_t{0}, kListenKey = ~uint64_t{0} - 1;

Socket open_listening(const SocketAddress& at) {
  Socket socket(::socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int on = 1;
  if (socket) setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (socket && at.family() == AF_INET6) setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  // What is accepted inherits it. Switching later would not do: bbr leaves its pacing behind (see net/tcp/dial.cpp).
  if (socket && is_loopback(at)) prefer_unpaced(socket.fd(), Log());
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

// IPv6 callers own at least a /64, so that is the source.
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
  using Key = std::tuple<uint64_t, int, uint32_t>;  // group, rank, stream

  Secret secret;
  std::string job;
  bool sealed = false;
  Accepted on_accept;
  std::string address;
  int port = 0;
  Socket listening, epoll, stop;

  // The listener's thread only.
  Doorkeeper door;
  std::map<int, Caller> callers;  // by id
  int next_id = 0;
  bool resting = false, wary = false;
  Clock::time_point rest_until{}, wary_until{};

  std::mutex mutex;                    // guards the two below
  std::multimap<Key, Socket> arrived;  // several of one key: in the order they came
  std::function<bool(const Hello&)> unwanted;
  std::condition_variable changed;

  std::thread thread;

  void run();
  int next_wait_ms() const;
  void accept_all();
  void begin(Socket socket, const std::string& source);
  void proceed(int id);
  void drop(int id, bool failed);
  void expire();
  void be_wary();
  void deliver(Socket socket, const Hello& hello);
};

int Listener::Impl::next_wait_ms() const {
  auto soonest = Clock::time_point::max();
  // Ids grow with time, so the first is the oldest.
  if (!callers.empty()) soonest = callers.begin()->second.until;
  if (resting) soonest = std::min(soonest, rest_until);
  if (wary) soonest = std::min(soonest, wary_until);
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
  // Bounded, so that a flood of new callers never starves those half-way through.
  for (int i = 0; i < 64; ++i) {
    SocketAddress caller;
    caller.length = sizeof caller.storage;
    Socket socket(accept4(listening.fd(), caller.get(), &caller.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
      epoll_ctl(epoll.fd(), EPOLL_CTL_DEL, listening.fd(), nullptr);
      resting = true;
      rest_until = Clock::now() + kRestWhenFull;
      return;
    }
    std::string source = source_of(caller);
    if (door.admit(source, is_loopback(caller), Clock::now())) begin(std::move(socket), source);
  }
}

void Listener::Impl::begin(Socket socket, const std::string& source) {
  while (auto victim = door.evict(source)) drop(*victim, true);
  int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  admit_all(socket.fd());  // it may have come while the port was wary
  int id = next_id++;
  if (!watch_input(epoll.fd(), socket.fd(), static_cast<uint64_t>(id))) return;  // it may call again
  callers.emplace(id, Caller{std::move(socket), Handshake::accepting(secret, job), Clock::now() + kHandshakeTime});
  door.began(source, id);
}

void Listener::Impl::proceed(int id) {
  Caller& caller = callers.at(id);
  int fd = caller.socket.fd();
  char buffer[Handshake::kHelloBytes];
  ssize_t got = recv(fd, buffer, std::min(sizeof buffer, caller.shake.wants()), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return drop(id, true);
  try {
    std::string reply = caller.shake.feed({buffer, static_cast<size_t>(got)});
    // Less than a packet into an empty buffer: what does not go at once is not worth waiting for.
    bool sent =
        reply.empty() || send(fd, reply.data(), reply.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(reply.size());
    if (!sent) return drop(id, true);
  } catch (const CommError&) {
    std::string no = Handshake::refusal();
    [[maybe_unused]] auto sent = send(fd, no.data(), no.size(), MSG_NOSIGNAL);
    return drop(id, true);
  }
  if (!caller.shake.done()) return;
  epoll_ctl(epoll.fd(), EPOLL_CTL_DEL, fd, nullptr);
  Socket socket = std::move(caller.socket);
  Hello hello = caller.shake.hello();
  drop(id, false);
  deliver(std::move(socket), hello);
}

void Listener::Impl::drop(int id, bool failed) {
  if (!failed) {
    door.succeeded(id);
  } else if (door.failed(id, Clock::now())) {
    be_wary();
  }
  callers.erase(id);
}

// A source fails more often than it may, and it may be one that is never turned away: callers have to greet as those of
// this job do to be accepted at all.
void Listener::Impl::be_wary() {
  if (wary) return;
  wary = admit_only_like(listening.fd(), Handshake::connecting(secret, {Role::data, 0, job, 0, 0}).feed(""));
  wary_until = Clock::now() + kWary;
}

void Listener::Impl::expire() {
  auto now = Clock::now();
  while (!callers.empty() && callers.begin()->second.until <= now) drop(callers.begin()->first, true);
  if (resting && rest_until <= now) {
    resting = !watch_input(epoll.fd(), listening.fd(), kListenKey);
    rest_until = now + kRestWhenFull;
  }
  if (wary && wary_until <= now) {
    wary = false;
    admit_all(listening.fd());
  }
}

void Listener::Impl::deliver(Socket socket, const Hello& hello) {
  {
    std::lock_guard lock(mutex);
    if (unwanted && unwanted(hello)) return;
    // A group closed and opened again calls again for the same place, maybe before its first call was taken.
    if (!on_accept) arrived.emplace(Key{hello.group, hello.rank, hello.stream}, std::move(socket));
  }
  on_accept ? on_accept(std::move(socket), hello) : changed.notify_all();
}

Listener::Listener(const std::string& address, int port, Secret secret, std::string job, Accepted on_accept,
                   bool sealed)
    : impl_(std::make_unique<Impl>()) {
  impl_->secret = std::move(secret);
  // So that ends of which one is sealed and one is not find out at the door.
  impl_->job = sealed ? job + "/sealed" : std::move(job);
  impl_->sealed = sealed;
  impl_->on_accept = std::move(on_accept);
  impl_->listening = open_listening(numeric_address(address, port));
  auto bound = local_address(impl_->listening.fd());
  impl_->address = bound.text();
  impl_->port = bound.port();
  impl_->epoll = Socket(epoll_create1(EPOLL_CLOEXEC));
  impl_->stop = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!watch_input(impl_->epoll.fd(), impl_->stop.fd(), kStopKey) ||
      !watch_input(impl_->epoll.fd(), impl_->listening.fd(), kListenKey))
    throw CommError(CommError::Kind::refused, -1, fmt::format("the listener gets no epoll: {}", errno_text(errno)));
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
bool Listener::sealed() const {
  return impl_->sealed;
}
const std::string& Listener::job() const {
  return impl_->job;
}

Socket Listener::take(uint64_t group, int peer, uint32_t stream, Deadline deadline) {
  std::unique_lock lock(impl_->mutex);
  Impl::Key key{group, peer, stream};
  if (!impl_->changed.wait_until(lock, deadline.when(), [&] { return impl_->arrived.contains(key); }))
    throw CommError(CommError::Kind::timeout, peer, fmt::format("rank {} did not connect in time", peer));
  return std::move(impl_->arrived.extract(key).mapped());
}

std::optional<Socket> Listener::try_take(uint64_t group, int peer, uint32_t stream) {
  std::lock_guard lock(impl_->mutex);
  auto found = impl_->arrived.extract(Impl::Key{group, peer, stream});
  if (found.empty()) return {};
  return std::move(found.mapped());
}

void Listener::refuse_if(std::function<bool(const Hello&)> unwanted) {
  std::lock_guard lock(impl_->mutex);
  impl_->unwanted = std::move(unwanted);
}

}  // namespace esp::net
