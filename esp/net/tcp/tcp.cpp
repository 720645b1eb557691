#include "esp/net/tcp/tcp.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/net/failure_detector.h"
#include "esp/net/futex_event.h"
#include "esp/net/link.h"
#include "esp/net/listener.h"
#include "esp/net/tcp/peer_connector.h"
#include "esp/net/tcp/tcp_connection.h"

namespace esp::net {
namespace {

constexpr size_t kStagingBytes = size_t{256} << 10;
// A peer that closes its connection is often not the cause: it closes because another rank's failure was reported to
// it. The same report is then on its way to this rank. This rank declares the peer lost only if no report arrives
// within kCloseGrace and the peer, when queried, knows of no failure.
constexpr Duration kCloseGrace = std::chrono::milliseconds(50);
constexpr Duration kAnswer = std::chrono::seconds(5);
// How long a wait polls before it blocks in epoll; a wake-up costs about 30 us. kSpin applies with one core per rank.
// kSpinOversubscribed applies with more ranks than cores: each poll then also yields the core.
constexpr Duration kSpin = std::chrono::microseconds(200);
constexpr Duration kSpinOversubscribed = std::chrono::microseconds(50);

int num_usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

bool closed_unused(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// All connections to one peer.
struct PeerLink {
  std::vector<TcpConnection> connections;
  // index: connection; null unless that connection is being made
  std::vector<std::unique_ptr<PeerConnector>> connectors;
  uint64_t num_sent = 0, num_received = 0;  // messages posted to and from this peer so far
  bool listed = false;                      // true if this peer is in active_
  std::optional<Clock::time_point> lost_after;
  std::optional<LinkState> host;  // set only if the peer is on another host
};

class Tcp final : public Transport {
 public:
  Tcp(const World& world, const Group& group);
  ~Tcp() override;

  std::string_view name() const override { return "tcp"; }
  void send(Transfer& transfer) override { post(transfer, true); }
  void receive(Transfer& transfer) override { post(transfer, false); }
  bool poll() override;
  void sleep(Deadline deadline) override;
  void abandon() noexcept override;

 private:
  void post(Transfer& transfer, bool out);
  bool advance(int peer);
  bool connect(int peer, size_t k);
  void attach(int peer, size_t k, Socket socket);
  void handle_closed(int peer);
  void check_links(Clock::time_point now);
  int world_rank(int peer) const { return group_.members[static_cast<size_t>(peer)]; }

  std::vector<PeerLink> links_;  // index: group rank
  std::vector<int> active_;      // peers with posted transfers
  std::vector<std::byte> staging_;
  Socket epoll_, wake_;
  int subscription_ = -1;
  const bool oversubscribed_;
  YieldPolicy yield_;
  bool retry_poll_ = false;  // true if a transfer was posted or moved since the last poll; sleep then returns at once
  bool connecting_ = false;  // true if at least one connection is being made
  std::optional<Clock::time_point> idle_since_;
  Clock::time_point next_link_check_{};
};

Tcp::Tcp(const World& world, const Group& group)
    : Transport(world, group),
      links_(group.members.size()),
      staging_(kStagingBytes),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      oversubscribed_(std::count_if(world.peers.begin(), world.peers.end(), [&](const Peer& peer) {
                        return peer.host == world.peers[static_cast<size_t>(world.rank)].host;
                      }) > num_usable_cores()) {
  if (!epoll_ || !wake_)
    throw CommError(CommError::Kind::refused, -1,
                    fmt::format("tcp: cannot create its epoll or eventfd descriptor: {}", errno_text(errno)));
  epoll_event event{EPOLLIN, {.fd = wake_.fd()}};
  ESP_CHECK(epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, wake_.fd(), &event) == 0, "tcp: cannot add the eventfd to epoll: {}",
            errno_text(errno));
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    // Within one host a second connection costs system calls and adds no bandwidth. Both ends compute the same number
    // of connections.
    bool own_host = world.same_host(world.rank, group.members[peer]);
    if (!own_host)
      links_[peer].host.emplace(host_name(world.peers[static_cast<size_t>(group.members[peer])].host),
                                world.options.link_timeout);
    int num_streams = own_host ? 1 : std::clamp(world.options.streams_per_peer, 1, kMaxStripes);
    for (int k = 0; k < num_streams; ++k) {
      links_[peer].connections.emplace_back(k, group.members[peer], world.options.payload_checksum);
      links_[peer].connectors.emplace_back();
    }
  }
  subscription_ = world.peer_status->subscribe([fd = wake_.fd()] {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(fd, &one, sizeof one);
  });
}

Tcp::~Tcp() {
  world_.peer_status->unsubscribe(subscription_);
}

void Tcp::abandon() noexcept {
  for (PeerLink& link : links_) {
    for (TcpConnection& connection : link.connections) connection.abandon();
    for (auto& connector : link.connectors) connector.reset();
    link.listed = false;
  }
  active_.clear();
}

void Tcp::post(Transfer& transfer, bool out) {
  ESP_CHECK(transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank(),
            "peer: got {}; expected another rank of the group", transfer.peer);
  if (transfer.bytes > kMaxMessageBytes)
    throw UsageError(fmt::format("message: got {} bytes; expected at most {}", transfer.bytes, kMaxMessageBytes));
  PeerLink& link = links_[static_cast<size_t>(transfer.peer)];
  transfer.state = Transfer::State::posted;
  transfer.moved = 0;
  uint64_t number = out ? link.num_sent++ : link.num_received++;
  int stripes = num_stripes(transfer.bytes, static_cast<int>(link.connections.size()));
  for (int k = 0; k < stripes; ++k) {
    Stripe stripe = stripe_of(transfer.bytes, stripes, k);
    TcpConnection& connection = link.connections[static_cast<size_t>(k)];
    (out ? connection.outgoing : connection.incoming)
        .push({&transfer, stripe.offset, stripe.bytes, number, static_cast<uint8_t>(stripes)});
  }
  if (!link.listed) {
    link.listed = true;
    active_.push_back(transfer.peer);
  }
  retry_poll_ = true;
}

bool Tcp::poll() {
  check_peer_status();
  bool moved = false;
  connecting_ = false;
  try {
    for (size_t i = 0; i < active_.size();) {
      moved |= advance(active_[i]);
      PeerLink& link = links_[static_cast<size_t>(active_[i])];
      if (std::all_of(link.connections.begin(), link.connections.end(),
                      [](const TcpConnection& connection) { return connection.idle(); })) {
        link.listed = false;
        active_[i] = active_.back();
        active_.pop_back();
      } else {
        ++i;
      }
    }
  } catch (...) {
    abandon();
    throw;
  }
  retry_poll_ = moved;
  if (moved) idle_since_.reset();
  return moved;
}

bool Tcp::advance(int peer) {
  PeerLink& link = links_[static_cast<size_t>(peer)];
  Traffic& traffic = traffic_[static_cast<size_t>(peer)];
  bool moved = false, broken = false;
  for (size_t k = 0; k < link.connections.size(); ++k) {
    TcpConnection& connection = link.connections[k];
    if (connection.idle()) continue;
    if (!connection.attached() && !connect(peer, k)) continue;
    moved |= connection.push(traffic);
    moved |= connection.pull(traffic, staging_);
    broken |= connection.broken();
  }
  if (broken) handle_closed(peer);
  return moved;
}

void Tcp::handle_closed(int peer) {
  PeerLink& link = links_[static_cast<size_t>(peer)];
  auto now = Clock::now();
  if (!link.lost_after) link.lost_after = now + kCloseGrace;
  if (now < *link.lost_after) return;
  const int other = world_rank(peer);
  if (world_.failure_detector) {
    // The reply takes the same path through the Hub as all failure reports. When it arrives, every report that the peer
    // knew of has arrived too.
    world_.failure_detector->query_positions({group_.id, {world_.rank, other}, 0}, Deadline::after(kAnswer));
    check_peer_status();
    if (world_.peer_status->has_left(other)) throw world_.peer_status->peer_left_error(other);
  }
  world_.peer_status->mark_lost(other, "closed its connection");
  check_peer_status();
}

// Checks the links to peers on other hosts with posted transfers.
void Tcp::check_links(Clock::time_point now) {
  if (now < next_link_check_) return;
  next_link_check_ = now + kLinkCheckPeriod;
  for (int peer : active_) {
    PeerLink& link = links_[static_cast<size_t>(peer)];
    if (!link.host) continue;
    Duration silence = Duration::zero();
    for (const TcpConnection& connection : link.connections)
      if (connection.attached() && !connection.idle()) silence = std::max(silence, unanswered_time(connection.fd()));
    if (link.host->update(silence, world_.log))
      world_.peer_status->mark_lost(world_rank(peer), fmt::format("is lost: {}", link.host->text()));
  }
  check_peer_status();
}

// The lower world rank connects, the higher one waits for the connection. True once the connection exists.
bool Tcp::connect(int peer, size_t k) {
  PeerLink& link = links_[static_cast<size_t>(peer)];
  int other = world_rank(peer);
  if (world_.peer_status->is_lost(other))
    throw CommError(CommError::Kind::lost, other, fmt::format("cannot connect to rank {}: it was lost before", other));
  std::optional<Socket> socket;
  if (world_.rank < other) {
    auto& connector = link.connectors[k];
    if (!connector)
      connector = std::make_unique<PeerConnector>(
          world_, other,
          HandshakeRequest{Role::data, world_.rank, world_.listener->job(), group_.id, static_cast<uint32_t>(k)});
    socket = connector->advance();
    if (socket) connector.reset();
  } else {
    socket = world_.listener->try_take(group_.id, other, static_cast<uint32_t>(k));
    // The peer gave up this connection attempt and will retry; wait for the next connection.
    if (socket && closed_unused(socket->fd())) socket.reset();
  }
  connecting_ |= !socket;
  if (socket) attach(peer, k, std::move(*socket));
  return static_cast<bool>(socket);
}

void Tcp::attach(int peer, size_t k, Socket socket) {
  int fd = socket.fd();
  tune_data_socket(fd, world_.same_host(world_.rank, world_rank(peer)), world_.log);
  // Edge-triggered, so that a received message without a posted receive does not wake this thread again and again. No
  // event is lost: sleep blocks only after a poll that tried every socket with queued transfers and moved nothing.
  epoll_event event{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.fd = fd}};
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw CommError(CommError::Kind::refused, -1,
                    fmt::format("tcp: cannot add a connection to epoll: {}", errno_text(errno)));
  std::unique_ptr<Tls> tls;
  if (world_.listener->encrypted()) {
    const int other = world_rank(peer);
    tls = std::make_unique<Tls>(fd, world_.rank < other, world_.secret,
                                TlsContext{world_.job, std::min(world_.rank, other), std::max(world_.rank, other),
                                           group_.id, static_cast<uint32_t>(k)});
  }
  links_[static_cast<size_t>(peer)].connections[k].attach(std::move(socket), std::move(tls));
}

void Tcp::sleep(Deadline deadline) {
  if (retry_poll_) {
    retry_poll_ = false;
    return;
  }
  auto now = Clock::now();
  check_links(now);
  if (!idle_since_) idle_since_ = now;
  // Poll again instead of blocking. With one core per rank no pause is needed, because the next poll makes system
  // calls.
  if (now - *idle_since_ < (oversubscribed_ ? kSpinOversubscribed : kSpin) && (!oversubscribed_ || yield_.try_yield()))
    return;
  if (connecting_) deadline = deadline.earlier(std::chrono::milliseconds(1));
  for (int peer : active_) {
    const PeerLink& link = links_[static_cast<size_t>(peer)];
    if (link.lost_after) deadline = Deadline::at(std::min(deadline.when(), *link.lost_after));
    if (link.host) deadline = Deadline::at(std::min(deadline.when(), next_link_check_));
  }
  std::array<epoll_event, 16> events;
  int num_events = epoll_wait(epoll_.fd(), events.data(), events.size(), deadline.left_ms());
  for (int i = 0; i < num_events; ++i)
    if (events[static_cast<size_t>(i)].data.fd == wake_.fd()) {
      uint64_t count;
      [[maybe_unused]] ssize_t drained = ::read(wake_.fd(), &count, sizeof count);
    }
  idle_since_.reset();
}

}  // namespace

bool tcp_reaches(const World& world, int a, int b) {
  auto listens = [&](int rank) {
    const Peer& peer = world.peers[static_cast<size_t>(rank)];
    return !peer.address.empty() && peer.port != 0;
  };
  return world.listener != nullptr && listens(a) && listens(b);
}

std::unique_ptr<Transport> open_tcp(const World& world, const Group& group) {
  return std::make_unique<Tcp>(world, group);
}

}  // namespace esp::net
