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
#include "esp/net/link.h"
#include "esp/net/listener.h"
#include "esp/net/store/hub_core.h"

namespace esp::net {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;  // bytes read per connection and loop iteration
// With more unsent reply bytes than this, the Hub reads no further requests of the connection.
constexpr size_t kPauseBytes = size_t{1} << 20;
// With more unsent reply bytes than this, the Hub closes the connection.
constexpr size_t kMaxUnreadBytes = size_t{64} << 20;
constexpr auto kFailureLinger = std::chrono::seconds(1);
constexpr int kWake = -1;
// After a world size mismatch: how long the sizes of the other ranks are collected before all ranks are refused, and
// how long the Hub stays for late ranks.
constexpr auto kSizeGatherTime = std::chrono::milliseconds(500);
constexpr auto kSizeMismatchLinger = std::chrono::seconds(5);

}  // namespace

struct Hub::Impl {
  struct Connection {
    Socket socket;
    std::string out;
    uint32_t events = 0;  // epoll events for which the socket is registered
  };

  std::optional<HubCore> core;
  Socket epoll, wake;

  // Used by the Hub's thread only.
  std::map<int, Connection> connections;  // key: connection id
  std::vector<int> closing;               // connections to close at the end of the loop iteration
  int next_id = 0;
  std::optional<Deadline> reject_sizes_by;
  Deadline next_link_check = Deadline::after(kLinkCheckPeriod);

  std::mutex mutex;  // guards the two members below
  std::vector<std::pair<Socket, HandshakeRequest>> arrivals;
  std::optional<Deadline> stop_by;

  std::thread thread;
  std::optional<Listener> listener;  // declared last: its thread uses the members above

  void run();
  bool should_stop();
  void open_arrivals();
  void handle_events(int id, uint32_t events);
  void read(int id, Connection& connection);
  void flush(int id, Connection& connection);
  void update_events(int id, Connection& connection);
  void close_connections();
  int next_wait_ms();
  void reject_sizes();
  void check_links();
};

void Hub::Impl::run() {
  std::vector<epoll_event> events(256);
  while (!should_stop()) {
    int count = epoll_wait(epoll.fd(), events.data(), static_cast<int>(events.size()), next_wait_ms());
    for (int i = 0; i < count; ++i) {
      auto id = static_cast<int>(events[static_cast<size_t>(i)].data.u32);
      if (id == kWake) {
        eventfd_t value;
        eventfd_read(wake.fd(), &value);
        open_arrivals();
      } else {
        handle_events(id, events[static_cast<size_t>(i)].events);
      }
    }
    reject_sizes();
    check_links();
    close_connections();
  }
  core->announce_closing();
}

int Hub::Impl::next_wait_ms() {
  std::lock_guard lock(mutex);
  int wait_ms = connections.empty() ? -1 : next_link_check.left_ms();
  for (const std::optional<Deadline>& until : {stop_by, reject_sizes_by})
    if (until) wait_ms = wait_ms < 0 ? until->left_ms() : std::min(wait_ms, until->left_ms());
  return wait_ms;
}

void Hub::Impl::reject_sizes() {
  if (!core->sizes_differ()) return;
  if (!reject_sizes_by) reject_sizes_by = Deadline::after(kSizeGatherTime);
  if (!reject_sizes_by->passed() && !core->all_sizes_known()) return;
  core->reject_sizes();
  reject_sizes_by.reset();
}

void Hub::Impl::check_links() {
  if (!next_link_check.passed()) return;
  next_link_check = Deadline::after(kLinkCheckPeriod);
  core->check_links([this](int id) {
    auto found = connections.find(id);
    return found == connections.end() ? Duration::zero() : unanswered_time(found->second.socket.fd());
  });
}

bool Hub::Impl::should_stop() {
  std::lock_guard lock(mutex);
  if (!stop_by) return false;
  if (core->failed()) stop_by = stop_by->earlier(kFailureLinger);
  if (core->sizes_differ()) stop_by = stop_by->earlier(kSizeMismatchLinger);
  return stop_by->passed() || core->finished();
}

void Hub::Impl::open_arrivals() {
  std::vector<std::pair<Socket, HandshakeRequest>> fresh;
  {
    std::lock_guard lock(mutex);
    fresh.swap(arrivals);
  }
  for (auto& [socket, request] : fresh) {
    int id = next_id++;
    configure_keepalive(socket.fd());
    Connection& connection = connections[id];
    connection.socket = std::move(socket);
    epoll_event event{};
    connection.events = event.events = EPOLLIN;
    event.data.u32 = static_cast<uint32_t>(id);
    if (epoll_ctl(epoll.fd(), EPOLL_CTL_ADD, connection.socket.fd(), &event) != 0) {
      connections.erase(id);
      continue;
    }
    core->opened(id, request);
  }
}

void Hub::Impl::handle_events(int id, uint32_t events) {
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
    closing.push_back(id);
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
      if (errno != EAGAIN && errno != EINTR) closing.push_back(id);
      break;
    }
  }
  connection.out.erase(0, done);
  if (connection.out.size() > kMaxUnreadBytes) closing.push_back(id);
  update_events(id, connection);
}

void Hub::Impl::update_events(int id, Connection& connection) {
  uint32_t events = connection.out.size() < kPauseBytes ? EPOLLIN : 0u;
  if (!connection.out.empty()) events |= EPOLLOUT;
  if (events == connection.events) return;
  epoll_event event{};
  connection.events = event.events = events;
  event.data.u32 = static_cast<uint32_t>(id);
  epoll_ctl(epoll.fd(), EPOLL_CTL_MOD, connection.socket.fd(), &event);
}

// Reporting a closed connection to the other ranks can make more connections fail. The loop repeats until none is left
// to close.
void Hub::Impl::close_connections() {
  while (!closing.empty()) {
    int id = closing.back();
    closing.pop_back();
    if (connections.erase(id) > 0) core->closed(id);
  }
}

Hub::Hub(const HubOptions& options) : impl_(std::make_unique<Impl>()), linger_(options.linger) {
  if (options.size < 1 || options.size > kMaxWorldSize)
    throw UsageError(fmt::format("world size: got {}; expected 1 to {}", options.size, kMaxWorldSize));
  Impl* impl = impl_.get();
  HubInfo hub_info{fmt::format("{}-{}", options.job, to_hex(random_bytes(8))), options.hub_rank};
  auto send = [impl](int id, std::string bytes) {
    auto found = impl->connections.find(id);
    if (found == impl->connections.end()) return;
    found->second.out += bytes;
    impl->flush(id, found->second);
  };
  impl->core.emplace(
      options.size, hub_info, options.log, send, [impl](int id) { impl->closing.push_back(id); },
      HubCoreOptions{options.member, options.link_timeout});
  impl->epoll = Socket(epoll_create1(EPOLL_CLOEXEC));
  impl->wake = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = static_cast<uint32_t>(kWake);
  if (!impl->epoll || !impl->wake || epoll_ctl(impl->epoll.fd(), EPOLL_CTL_ADD, impl->wake.fd(), &event) != 0)
    throw CommError(
        CommError::Kind::refused, -1,
        fmt::format("rendezvous server: cannot create an epoll or eventfd descriptor: {}", errno_text(errno)));
  impl->listener.emplace(options.address, options.port, options.secret, options.job,
                         [impl](Socket socket, const HandshakeRequest& request) {
                           std::lock_guard lock(impl->mutex);
                           impl->arrivals.emplace_back(std::move(socket), request);
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
