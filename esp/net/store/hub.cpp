#include "esp/net/store/hub.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "esp/net/crypto.h"
#include "esp/net/keepalive.h"
#include "esp/net/listener.h"
#include "esp/net/store/hub_core.h"

namespace esp::net {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;       // per connection and turn
constexpr size_t kPauseBytes = size_t{1} << 20;       // unread answers: no further requests are taken
constexpr size_t kMaxUnreadBytes = size_t{64} << 20;  // unread answers: the connection is closed
constexpr auto kFaultyLinger = std::chrono::seconds(1);
constexpr int kWake = -1;

}  // namespace

struct Hub::Impl {
  struct Connection {
    Socket socket;
    std::string out;
    uint32_t events = 0;  // what epoll was asked for
  };

  std::optional<HubCore> core;
  Socket epoll, wake;

  // The hub's thread only.
  std::map<int, Connection> connections;  // by id
  std::vector<int> doomed;                // to be closed at the end of the turn
  int next_id = 0;

  std::mutex mutex;  // guards the two below
  std::vector<std::pair<Socket, Hello>> arrivals;
  std::optional<Deadline> stop_by;

  std::thread thread;
  std::optional<Listener> listener;  // last: its thread posts to the above

  void run();
  bool time_to_stop();
  void welcome_arrivals();
  void turn(int id, uint32_t events);
  void read(int id, Connection& connection);
  void flush(int id, Connection& connection);
  void want(int id, Connection& connection);
  void bury_doomed();
};

void Hub::Impl::run() {
  std::vector<epoll_event> events(256);
  while (!time_to_stop()) {
    std::optional<Deadline> until;
    {
      std::lock_guard lock(mutex);
      until = stop_by;
    }
    int count = epoll_wait(epoll.fd(), events.data(), static_cast<int>(events.size()), until ? until->left_ms() : -1);
    for (int i = 0; i < count; ++i) {
      auto id = static_cast<int>(events[static_cast<size_t>(i)].data.u32);
      if (id == kWake) {
        eventfd_t value;
        eventfd_read(wake.fd(), &value);
        welcome_arrivals();
      } else {
        turn(id, events[static_cast<size_t>(i)].events);
      }
    }
    bury_doomed();
  }
  core->announce_closing();
}

bool Hub::Impl::time_to_stop() {
  std::lock_guard lock(mutex);
  if (!stop_by) return false;
  if (core->faulty()) stop_by = stop_by->earlier(kFaultyLinger);
  return stop_by->passed() || core->finished();
}

void Hub::Impl::welcome_arrivals() {
  std::vector<std::pair<Socket, Hello>> fresh;
  {
    std::lock_guard lock(mutex);
    fresh.swap(arrivals);
  }
  for (auto& [socket, hello] : fresh) {
    int id = next_id++;
    keep_alive(socket.fd());
    Connection& connection = connections[id];
    connection.socket = std::move(socket);
    epoll_event event{};
    connection.events = event.events = EPOLLIN;
    event.data.u32 = static_cast<uint32_t>(id);
    if (epoll_ctl(epoll.fd(), EPOLL_CTL_ADD, connection.socket.fd(), &event) != 0) {
      connections.erase(id);
      continue;
    }
    core->opened(id, hello);
  }
}

void Hub::Impl::turn(int id, uint32_t events) {
  auto found = connections.find(id);
  if (found == connections.end()) return;
  if (events & EPOLLOUT) flush(id, found->second);
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read(id, found->second);
}

void Hub::Impl::read(int id, Connection& connection) {
  char buffer[kReadBytes];
  ssize_t got = recv(connection.socket.fd(), buffer, sizeof buffer, 0);
  if (got > 0) {
    core->received(id, {buffer, static_cast<size_t>(got)});
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    doomed.push_back(id);
  }
}

void Hub::Impl::flush(int id, Connection& connection) {
  size_t done = 0;
  while (done < connection.out.size()) {
    ssize_t sent =
        send(connection.socket.fd(), connection.out.data() + done, connection.out.size() - done, MSG_NOSIGNAL);
    if (sent > 0) {
      done += static_cast<size_t>(sent);
    } else {
      if (errno != EAGAIN && errno != EINTR) doomed.push_back(id);
      break;
    }
  }
  connection.out.erase(0, done);
  if (connection.out.size() > kMaxUnreadBytes) doomed.push_back(id);
  want(id, connection);
}

void Hub::Impl::want(int id, Connection& connection) {
  uint32_t events = connection.out.size() < kPauseBytes ? EPOLLIN : 0u;
  if (!connection.out.empty()) events |= EPOLLOUT;
  if (events == connection.events) return;
  epoll_event event{};
  connection.events = event.events = events;
  event.data.u32 = static_cast<uint32_t>(id);
  epoll_ctl(epoll.fd(), EPOLL_CTL_MOD, connection.socket.fd(), &event);
}

// Telling others of a closed connection can close more of them, so this goes on until nothing is left to bury.
void Hub::Impl::bury_doomed() {
  while (!doomed.empty()) {
    int id = doomed.back();
    doomed.pop_back();
    if (connections.erase(id) > 0) core->closed(id);
  }
}

Hub::Hub(const HubOptions& options) : impl_(std::make_unique<Impl>()), linger_(options.linger) {
  if (options.size < 1 || options.size > kMaxWorldSize)
    throw UsageError(fmt::format("a job has 1 to {} ranks, not {}", kMaxWorldSize, options.size));
  Impl* impl = impl_.get();
  Welcome welcome{fmt::format("{}-{}", options.job, to_hex(random_bytes(8))), options.hub_rank};
  auto send = [impl](int id, std::string bytes) {
    auto found = impl->connections.find(id);
    if (found == impl->connections.end()) return;
    found->second.out += bytes;
    impl->flush(id, found->second);
  };
  impl->core.emplace(options.size, welcome, options.log, send, [impl](int id) { impl->doomed.push_back(id); });
  impl->epoll = Socket(epoll_create1(EPOLL_CLOEXEC));
  impl->wake = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = static_cast<uint32_t>(kWake);
  if (!impl->epoll || !impl->wake || epoll_ctl(impl->epoll.fd(), EPOLL_CTL_ADD, impl->wake.fd(), &event) != 0)
    throw CommError(CommError::Kind::refused, -1, fmt::format("the hub gets no epoll: {}", errno_text(errno)));
  impl->listener.emplace(options.address, options.port, options.secret, options.job,
                         [impl](Socket socket, const Hello& hello) {
                           std::lock_guard lock(impl->mutex);
                           impl->arrivals.emplace_back(std::move(socket), hello);
                           eventfd_write(impl->wake.fd(), 1);
                         });
  impl->thread = std::thread([impl] { impl->run(); });
  pthread_setname_np(impl->thread.native_handle(), "esp-hub");
}

Hub::~Hub() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop_by = Deadline::after(linger_);
  }
  eventfd_write(impl_->wake.fd(), 1);
  impl_->thread.join();
  impl_->listener.reset();
}

const std::string& Hub::address() const {
  return impl_->listener->address();
}
int Hub::port() const {
  return impl_->listener->port();
}

}  // namespace esp::net
