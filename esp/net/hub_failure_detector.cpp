#include "esp/net/hub_failure_detector.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "esp/net/address.h"

namespace esp::net {
namespace {

constexpr auto kByeTimeout = std::chrono::seconds(5);  // maximum wait for the Hub's acknowledgement of a bye

std::string host_of_hub(const Socket& socket, const World& world, int hub_rank) {
  return hub_rank >= 0 ? host_name(world.peers[static_cast<size_t>(hub_rank)].host)
                       : remote_address(socket.fd()).text();
}

}  // namespace

HubFailureDetector::HubFailureDetector(Socket socket, const World& world, int hub_rank)
    : rank_(world.rank),
      log_(world.log),
      peer_status_(world.peer_status),
      socket_(std::move(socket)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      core_(world.rank, hub_rank, world.options.heartbeat, world.peer_status, world.log, core_callbacks(),
            Clock::now()),
      hub_host_(host_of_hub(socket_, world, hub_rank), world.options.link_timeout) {
  configure_keepalive(socket_.fd());
  monitor_local_peers(world);
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "esp-failures");
}

FailureDetectorCore::Callbacks HubFailureDetector::core_callbacks() {
  return {[this](FrameKind kind, std::string body) { post(kind, body); },
          [this](uint64_t group) { return position_in(group); },
          [this](const PositionReport& report) {
            std::lock_guard lock(mutex_);
            if (auto found = queries_.find(report.id); found != queries_.end())
              found->second.answers[report.rank] = report.position;
            changed_.notify_all();
          }};
}

HubFailureDetector::~HubFailureDetector() {
  post(FrameKind::bye, {});
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  eventfd_write(wake_.fd(), 1);
  thread_.join();
}

void HubFailureDetector::monitor_local_peers(const World& world) {
  for (int peer = 0; peer < world.size; ++peer) {
    if (peer == world.rank || !world.same_host(peer, world.rank) || world.same_process(peer, world.rank)) continue;
    int pid = world.peers[static_cast<size_t>(peer)].pid;
    Socket pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (pidfd) {
      local_peers_.emplace_back(peer, std::move(pidfd));
    } else if (errno == ESRCH) {
      core_.on_local_peer_exit(peer, Clock::now(), true);
    } else {
      // This process has no free file descriptor, or the Linux version is too old. The Hub still reports the failure of
      // this rank.
      log_.debug("no pidfd for rank {} (process {}): {}", peer, pid, errno_text(errno));
    }
  }
}

void HubFailureDetector::post(FrameKind kind, std::string_view body) {
  {
    std::lock_guard lock(mutex_);
    out_ += writer_.encode(kind, body);
  }
  eventfd_write(wake_.fd(), 1);
}

void HubFailureDetector::abort(uint64_t group, const std::vector<int>& members, const CommError& cause) {
  peer_status_->abort(group, cause);
  post(FrameKind::abort, encode_abort({group, members, cause}));
}

void HubFailureDetector::register_position(uint64_t group, const LiveCallPosition* position) {
  std::lock_guard lock(mutex_);
  positions_[group] = position;
}

void HubFailureDetector::unregister_position(uint64_t group) {
  std::lock_guard lock(mutex_);
  positions_.erase(group);
}

std::vector<CallPosition> HubFailureDetector::query_positions(const Group& group, Deadline deadline) {
  std::unique_lock lock(mutex_);
  uint64_t id = next_query_++;
  PositionReplies& replies = queries_[id];
  CallPosition mine{true, {}, false};
  if (auto found = positions_.find(group.id); found != positions_.end()) mine = found->second->read();
  replies.answers[rank_] = mine;
  out_ += writer_.encode(FrameKind::query_positions, encode_position_query({id, group.id, group.members}));
  eventfd_write(wake_.fd(), 1);
  // A rank that failed or left will not reply.
  auto finished = [&](int member) {
    return replies.answers.contains(member) || peer_status_->is_lost(member) || peer_status_->has_left(member);
  };
  changed_.wait_until(lock, deadline.when(),
                      [&] { return replies_stopped_ || std::ranges::all_of(group.members, finished); });
  std::vector<CallPosition> positions;
  for (int member : group.members) positions.push_back(replies.answers[member]);
  queries_.erase(id);
  return positions;
}

std::vector<std::pair<uint64_t, CallPosition>> HubFailureDetector::local_positions() {
  std::lock_guard lock(mutex_);
  std::vector<std::pair<uint64_t, CallPosition>> all;
  for (const auto& [group, position] : positions_) all.emplace_back(group, position->read());
  return all;
}

void HubFailureDetector::run() {
  std::optional<Deadline> bye_deadline;
  for (;;) {
    flush();
    if (bool stopping =
            [&] {
              std::lock_guard lock(mutex_);
              return stopping_;
            }();
        stopping) {
      if (!bye_deadline) bye_deadline = Deadline::after(kByeTimeout);
      if (core_.bye_acknowledged() || core_.hub_gone() || bye_deadline->passed()) return;
    }
    bool more;
    {
      std::lock_guard lock(mutex_);
      more = !out_.empty();
    }
    std::vector<pollfd> items{
        {wake_.fd(), POLLIN, 0},
        {core_.hub_gone() ? -1 : socket_.fd(), static_cast<short>(POLLIN | (more ? POLLOUT : 0)), 0}};
    for (const auto& [rank, pidfd] : local_peers_) items.push_back({pidfd.fd(), POLLIN, 0});
    const Deadline tick = Deadline::at(core_.next_tick());
    int wait_ms = bye_deadline ? std::min(bye_deadline->left_ms(), tick.left_ms()) : tick.left_ms();
    if (poll(items.data(), items.size(), wait_ms) < 0) continue;
    eventfd_t value;
    if (items[0].revents) eventfd_read(wake_.fd(), &value);
    if (items[1].revents & (POLLIN | POLLHUP | POLLERR)) read_hub();
    for (size_t i = items.size(); i-- > 2;) {
      if (!items[i].revents) continue;
      const int rank = local_peers_[i - 2].first;
      local_peers_.erase(local_peers_.begin() + static_cast<ptrdiff_t>(i - 2));
      core_.on_local_peer_exit(rank, Clock::now());
    }
    core_.tick(Clock::now());
    check_link();
    std::lock_guard lock(mutex_);
    if (!queries_.empty()) changed_.notify_all();  // wakes query_positions: a queried rank may have failed or left
  }
}

void HubFailureDetector::flush() {
  std::lock_guard lock(mutex_);
  while (!out_.empty() && !core_.hub_gone()) {
    ssize_t sent = send(socket_.fd(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // a full send buffer is retried later; read_hub() detects a closed connection
    out_.erase(0, static_cast<size_t>(sent));
  }
}

void HubFailureDetector::read_hub() {
  char buffer[size_t{16} << 10];
  ssize_t got = recv(socket_.fd(), buffer, sizeof buffer, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    core_.on_hub_closed("closed its connection");
  } else {
    core_.received({buffer, static_cast<size_t>(got)});
  }
  if (core_.hub_gone()) stop_replies();
}

void HubFailureDetector::check_link() {
  const auto now = Clock::now();
  if (core_.hub_gone() || now < next_link_check_) return;
  next_link_check_ = now + kLinkCheckPeriod;
  if (!hub_host_.update(unanswered_time(socket_.fd()), log_)) return;
  core_.on_hub_closed(fmt::format("is lost: {}", hub_host_.text()));
  stop_replies();
}

// A rank without a registered position in the group (not yet, or no longer) replies "not inside a call".
CallPosition HubFailureDetector::position_in(uint64_t group) {
  std::lock_guard lock(mutex_);
  auto found = positions_.find(group);
  return found == positions_.end() ? CallPosition{true, {}, false} : found->second->read();
}

void HubFailureDetector::stop_replies() {
  std::lock_guard lock(mutex_);
  replies_stopped_ = true;
  out_.clear();
  changed_.notify_all();
}

}  // namespace esp::net
