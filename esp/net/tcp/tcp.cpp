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
#include "esp/net/doorbell.h"
#include "esp/net/link.h"
#include "esp/net/listener.h"
#include "esp/net/tcp/dial.h"
#include "esp/net/tcp/stream.h"
#include "esp/net/watch.h"

namespace esp::net {
namespace {

constexpr size_t kStagingBytes = size_t{256} << 10;
// A peer that closes may be a victim, not the cause: it closes because it was told of somebody else's end. The one who
// told it is about to tell us; only if nobody does within this time, and the peer knows of nothing when asked, the peer
// itself is declared lost.
constexpr Duration kGrace = std::chrono::milliseconds(50);
constexpr Duration kAnswer = std::chrono::seconds(5);
// How long a wait looks again before it blocks in epoll (a wake-up costs some 30 us), with a core for each rank and
// without, when looking means yielding.
constexpr Duration kSpin = std::chrono::microseconds(200);
constexpr Duration kSpinCrowded = std::chrono::microseconds(50);

int num_usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

bool ended_unused(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// All connections to one peer.
struct Link {
  std::vector<Stream> streams;
  std::vector<std::unique_ptr<Dial>> dials;  // by stream; null when none is under way
  uint64_t num_sent = 0, num_received = 0;   // messages posted so far
  bool listed = false;                       // among the active
  std::optional<Clock::time_point> suspected;
  std::optional<LinkState> host;  // of a peer on another one
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
  void suspect(int peer);
  void check_links(Clock::time_point now);
  int world_rank(int peer) const { return group_.members[static_cast<size_t>(peer)]; }

  std::vector<Link> links_;  // by group rank
  std::vector<int> active_;  // peers with something posted
  std::vector<std::byte> staging_;
  Socket epoll_, wake_;
  int subscription_ = -1;
  const bool crowded_;
  Yield yield_;
  bool fresh_ = false;   // posted or moved since the last look: sleeping would be wrong
  bool making_ = false;  // a connection is under way
  std::optional<Clock::time_point> barren_since_;
  Clock::time_point next_link_check_{};
};

Tcp::Tcp(const World& world, const Group& group)
    : Transport(world, group),
      links_(group.members.size()),
      staging_(kStagingBytes),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      crowded_(std::count_if(world.peers.begin(), world.peers.end(), [&](const Peer& peer) {
                 return peer.host == world.peers[static_cast<size_t>(world.rank)].host;
               }) > num_usable_cores()) {
  if (!epoll_ || !wake_)
    throw CommError(CommError::Kind::refused, -1, fmt::format("epoll or eventfd: {}", errno_text(errno)));
  epoll_event event{EPOLLIN, {.fd = wake_.fd()}};
  ESP_CHECK(epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, wake_.fd(), &event) == 0, "{}", errno_text(errno));
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    // Within one host a second stream adds system calls and no bandwidth. Both ends come to the same number.
    bool own_host = world.same_host(world.rank, group.members[peer]);
    if (!own_host)
      links_[peer].host.emplace(host_name(world.peers[static_cast<size_t>(group.members[peer])].host),
                                world.options.link_timeout);
    int num_streams = own_host ? 1 : std::clamp(world.options.streams_per_peer, 1, kMaxStripes);
    for (int k = 0; k < num_streams; ++k) {
      links_[peer].streams.emplace_back(k, group.members[peer], world.options.payload_checksum);
      links_[peer].dials.emplace_back();
    }
  }
  subscription_ = world.fate->subscribe([fd = wake_.fd()] {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(fd, &one, sizeof one);
  });
}

Tcp::~Tcp() {
  world_.fate->unsubscribe(subscription_);
}

void Tcp::abandon() noexcept {
  for (Link& link : links_) {
    for (Stream& stream : link.streams) stream.abandon();
    for (auto& dial : link.dials) dial.reset();
    link.listed = false;
  }
  active_.clear();
}

void Tcp::post(Transfer& transfer, bool out) {
  ESP_CHECK(transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank(), "peer {}", transfer.peer);
  if (transfer.bytes > kMaxMessageBytes)
    throw UsageError(fmt::format("a message of {} bytes, at most {} travel as one", transfer.bytes, kMaxMessageBytes));
  Link& link = links_[static_cast<size_t>(transfer.peer)];
  transfer.state = Transfer::State::posted;
  transfer.moved = 0;
  uint64_t number = out ? link.num_sent++ : link.num_received++;
  int stripes = num_stripes(transfer.bytes, static_cast<int>(link.streams.size()));
  for (int k = 0; k < stripes; ++k) {
    Stripe stripe = stripe_of(transfer.bytes, stripes, k);
    Stream& stream = link.streams[static_cast<size_t>(k)];
    (out ? stream.outgoing : stream.incoming)
        .push({&transfer, stripe.offset, stripe.bytes, number, static_cast<uint8_t>(stripes)});
  }
  if (!link.listed) {
    link.listed = true;
    active_.push_back(transfer.peer);
  }
  fresh_ = true;
}

bool Tcp::poll() {
  check_fate();
  bool moved = false;
  making_ = false;
  try {
    for (size_t i = 0; i < active_.size();) {
      moved |= advance(active_[i]);
      Link& link = links_[static_cast<size_t>(active_[i])];
      if (std::all_of(link.streams.begin(), link.streams.end(), [](const Stream& stream) { return stream.idle(); })) {
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
  fresh_ = moved;
  if (moved) barren_since_.reset();
  return moved;
}

bool Tcp::advance(int peer) {
  Link& link = links_[static_cast<size_t>(peer)];
  Traffic& traffic = traffic_[static_cast<size_t>(peer)];
  bool moved = false, broken = false;
  for (size_t k = 0; k < link.streams.size(); ++k) {
    Stream& stream = link.streams[k];
    if (stream.idle()) continue;
    if (!stream.attached() && !connect(peer, k)) continue;
    moved |= stream.push(traffic);
    moved |= stream.pull(traffic, staging_);
    broken |= stream.broken();
  }
  if (broken) suspect(peer);
  return moved;
}

void Tcp::suspect(int peer) {
  Link& link = links_[static_cast<size_t>(peer)];
  auto now = Clock::now();
  if (!link.suspected) link.suspected = now + kGrace;
  if (now < *link.suspected) return;
  const int other = world_rank(peer);
  if (world_.watch) {
    // The way of its answer, through the Hub, is that of all news: what was known before has come once it is here.
    world_.watch->ask({group_.id, {world_.rank, other}, 0}, Deadline::after(kAnswer));
    check_fate();
    if (world_.fate->left(other)) throw world_.fate->gone(other);
  }
  world_.fate->lose(other, "closed its connection");
  check_fate();
}

// Of the peers that something is expected of or sent to, those on other hosts.
void Tcp::check_links(Clock::time_point now) {
  if (now < next_link_check_) return;
  next_link_check_ = now + kLinkCheckPeriod;
  for (int peer : active_) {
    Link& link = links_[static_cast<size_t>(peer)];
    if (!link.host) continue;
    Duration silence = Duration::zero();
    for (const Stream& stream : link.streams)
      if (stream.attached() && !stream.idle()) silence = std::max(silence, unanswered_for(stream.fd()));
    if (link.host->update(silence, world_.log))
      world_.fate->lose(world_rank(peer), fmt::format("is lost: {}", link.host->text()));
  }
  check_fate();
}

// The lower world rank dials, the higher waits for the call. True once the stream has its connection.
bool Tcp::connect(int peer, size_t k) {
  Link& link = links_[static_cast<size_t>(peer)];
  int other = world_rank(peer);
  if (world_.fate->lost(other))
    throw CommError(CommError::Kind::lost, other, fmt::format("rank {} was lost and is not called again", other));
  std::optional<Socket> socket;
  if (world_.rank < other) {
    auto& dial = link.dials[k];
    if (!dial)
      dial = std::make_unique<Dial>(
          world_, other, Hello{Role::data, world_.rank, world_.listener->job(), group_.id, static_cast<uint32_t>(k)});
    socket = dial->advance();
    if (socket) dial.reset();
  } else {
    socket = world_.listener->try_take(group_.id, other, static_cast<uint32_t>(k));
    // A call its maker gave up half-way; the one it made instead comes next.
    if (socket && ended_unused(socket->fd())) socket.reset();
  }
  making_ |= !socket;
  if (socket) attach(peer, k, std::move(*socket));
  return static_cast<bool>(socket);
}

void Tcp::attach(int peer, size_t k, Socket socket) {
  int fd = socket.fd();
  tune_data_socket(fd, world_.same_host(world_.rank, world_rank(peer)), world_.log);
  // Edge-triggered: a message nobody has posted a receive for must not keep sleepers awake. Safe because sleep blocks
  // only after a poll that tried every socket with something queued and moved nothing.
  epoll_event event{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.fd = fd}};
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw CommError(CommError::Kind::refused, -1, fmt::format("epoll: {}", errno_text(errno)));
  std::unique_ptr<Tls> tls;
  if (world_.listener->sealed()) {
    const int other = world_rank(peer);
    tls = std::make_unique<Tls>(fd, world_.rank < other, world_.secret,
                                TlsPurpose{world_.job, std::min(world_.rank, other), std::max(world_.rank, other),
                                           group_.id, static_cast<uint32_t>(k)});
  }
  links_[static_cast<size_t>(peer)].streams[k].attach(std::move(socket), std::move(tls));
}

void Tcp::sleep(Deadline deadline) {
  if (fresh_) {
    fresh_ = false;
    return;
  }
  auto now = Clock::now();
  check_links(now);
  if (!barren_since_) barren_since_ = now;
  // With a core to itself, the system calls of the next look are pause enough.
  if (now - *barren_since_ < (crowded_ ? kSpinCrowded : kSpin) && (!crowded_ || yield_.give())) return;
  if (making_) deadline = deadline.earlier(std::chrono::milliseconds(1));
  for (int peer : active_) {
    const Link& link = links_[static_cast<size_t>(peer)];
    if (link.suspected) deadline = Deadline::at(std::min(deadline.when(), *link.suspected));
    if (link.host) deadline = Deadline::at(std::min(deadline.when(), next_link_check_));
  }
  std::array<epoll_event, 16> events;
  int num_events = epoll_wait(epoll_.fd(), events.data(), events.size(), deadline.left_ms());
  for (int i = 0; i < num_events; ++i)
    if (events[static_cast<size_t>(i)].data.fd == wake_.fd()) {
      uint64_t count;
      [[maybe_unused]] ssize_t drained = ::read(wake_.fd(), &count, sizeof count);
    }
  barren_since_.reset();
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
