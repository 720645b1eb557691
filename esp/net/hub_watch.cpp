#include "esp/net/hub_watch.h"

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

constexpr auto kGoodbye = std::chrono::seconds(5);  // how long the Hub may take to hear a bye

std::string host_of_hub(const Socket& socket, const World& world, int hub_rank) {
  return hub_rank >= 0 ? host_name(world.peers[static_cast<size_t>(hub_rank)].host)
                       : remote_address(socket.fd()).text();
}

}  // namespace

HubWatch::HubWatch(Socket socket, const World& world, int hub_rank)
    : rank_(world.rank),
      log_(world.log),
      fate_(world.fate),
      socket_(std::move(socket)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      core_(world.rank, hub_rank, world.options.heartbeat, world.fate, world.log, as_owner(), Clock::now()),
      hub_host_(host_of_hub(socket_, world, hub_rank), world.options.link_timeout) {
  tolerate_interruptions(socket_.fd());
  watch_neighbours(world);
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "esp-watch");
}

WatchCore::Owner HubWatch::as_owner() {
  return {[this](Kind kind, std::string body) { post(kind, body); },
          [this](uint64_t group) { return standing_in(group); },
          [this](const Report& report) {
            std::lock_guard lock(mutex_);
            if (auto found = questions_.find(report.id); found != questions_.end())
              found->second.answers[report.rank] = report.standing;
            changed_.notify_all();
          }};
}

HubWatch::~HubWatch() {
  post(Kind::bye, {});
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  eventfd_write(wake_.fd(), 1);
  thread_.join();
}

void HubWatch::watch_neighbours(const World& world) {
  for (int peer = 0; peer < world.size; ++peer) {
    if (peer == world.rank || !world.same_host(peer, world.rank) || world.same_process(peer, world.rank)) continue;
    int pid = world.peers[static_cast<size_t>(peer)].pid;
    Socket pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (pidfd) {
      neighbours_.emplace_back(peer, std::move(pidfd));
    } else if (errno == ESRCH) {
      core_.neighbour_ended(peer, Clock::now(), true);
    } else {
      // Out of descriptors, or an old kernel: the Hub tells us of this one.
      log_.debug("rank {} (process {}) is not watched directly: {}", peer, pid, errno_text(errno));
    }
  }
}

void HubWatch::post(Kind kind, std::string_view body) {
  {
    std::lock_guard lock(mutex_);
    out_ += writer_.encode(kind, body);
  }
  eventfd_write(wake_.fd(), 1);
}

void HubWatch::abort(uint64_t group, const std::vector<int>& members, const CommError& cause) {
  fate_->abort(group, cause);
  post(Kind::abort, encode_abort({group, members, cause}));
}

void HubWatch::enroll(uint64_t group, const LiveStanding* standing) {
  std::lock_guard lock(mutex_);
  enrolled_[group] = standing;
}

void HubWatch::withdraw(uint64_t group) {
  std::lock_guard lock(mutex_);
  enrolled_.erase(group);
}

std::vector<Standing> HubWatch::ask(const Group& group, Deadline deadline) {
  std::unique_lock lock(mutex_);
  uint64_t id = next_question_++;
  Question& question = questions_[id];
  Standing mine{true, {}, false};
  if (auto found = enrolled_.find(group.id); found != enrolled_.end()) mine = found->second->read();
  question.answers[rank_] = mine;
  out_ += writer_.encode(Kind::ask, encode_ask({id, group.id, group.members}));
  eventfd_write(wake_.fd(), 1);
  // Who is gone will not answer any more.
  auto heard = [&](int member) {
    return question.answers.contains(member) || fate_->lost(member) || fate_->left(member);
  };
  changed_.wait_until(lock, deadline.when(), [&] { return deaf_ || std::ranges::all_of(group.members, heard); });
  std::vector<Standing> standings;
  for (int member : group.members) standings.push_back(question.answers[member]);
  questions_.erase(id);
  return standings;
}

std::vector<std::pair<uint64_t, Standing>> HubWatch::here() {
  std::lock_guard lock(mutex_);
  std::vector<std::pair<uint64_t, Standing>> all;
  for (const auto& [group, standing] : enrolled_) all.emplace_back(group, standing->read());
  return all;
}

void HubWatch::run() {
  std::optional<Deadline> goodbye;
  for (;;) {
    flush();
    if (bool stopping =
            [&] {
              std::lock_guard lock(mutex_);
              return stopping_;
            }();
        stopping) {
      if (!goodbye) goodbye = Deadline::after(kGoodbye);
      if (core_.bye_heard() || core_.hub_gone() || goodbye->passed()) return;
    }
    bool more;
    {
      std::lock_guard lock(mutex_);
      more = !out_.empty();
    }
    std::vector<pollfd> items{
        {wake_.fd(), POLLIN, 0},
        {core_.hub_gone() ? -1 : socket_.fd(), static_cast<short>(POLLIN | (more ? POLLOUT : 0)), 0}};
    for (const auto& [rank, pidfd] : neighbours_) items.push_back({pidfd.fd(), POLLIN, 0});
    const Deadline tick = Deadline::at(core_.next_tick());
    int wait_ms = goodbye ? std::min(goodbye->left_ms(), tick.left_ms()) : tick.left_ms();
    if (poll(items.data(), items.size(), wait_ms) < 0) continue;
    eventfd_t value;
    if (items[0].revents) eventfd_read(wake_.fd(), &value);
    if (items[1].revents & (POLLIN | POLLHUP | POLLERR)) read_hub();
    for (size_t i = items.size(); i-- > 2;) {
      if (!items[i].revents) continue;
      const int rank = neighbours_[i - 2].first;
      neighbours_.erase(neighbours_.begin() + static_cast<ptrdiff_t>(i - 2));
      core_.neighbour_ended(rank, Clock::now());
    }
    core_.tick(Clock::now());
    check_link();
    std::lock_guard lock(mutex_);
    if (!questions_.empty()) changed_.notify_all();  // somebody who was asked may have gone
  }
}

void HubWatch::flush() {
  std::lock_guard lock(mutex_);
  while (!out_.empty() && !core_.hub_gone()) {
    ssize_t sent = send(socket_.fd(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // a full buffer empties by itself; a closed connection shows when reading
    out_.erase(0, static_cast<size_t>(sent));
  }
}

void HubWatch::read_hub() {
  char buffer[size_t{16} << 10];
  ssize_t got = recv(socket_.fd(), buffer, sizeof buffer, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    core_.hub_closed("closed its connection");
  } else {
    core_.received({buffer, static_cast<size_t>(got)});
  }
  if (core_.hub_gone()) deafen();
}

void HubWatch::check_link() {
  const auto now = Clock::now();
  if (core_.hub_gone() || now < next_link_check_) return;
  next_link_check_ = now + kLinkCheckPeriod;
  if (!hub_host_.update(unanswered_for(socket_.fd()), log_)) return;
  core_.hub_closed(fmt::format("is lost: {}", hub_host_.text()));
  deafen();
}

// Here, and not in that group (yet, or any more), unless it has enrolled.
Standing HubWatch::standing_in(uint64_t group) {
  std::lock_guard lock(mutex_);
  auto found = enrolled_.find(group);
  return found == enrolled_.end() ? Standing{true, {}, false} : found->second->read();
}

void HubWatch::deafen() {
  std::lock_guard lock(mutex_);
  deaf_ = true;
  out_.clear();
  changed_.notify_all();
}

}  // namespace esp::net
