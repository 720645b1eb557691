#include "esp/net/hub_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "esp/net/keepalive.h"

namespace esp::net {
namespace {

constexpr auto kWordFromHub = std::chrono::milliseconds(100);  // after a neighbour's end, before we judge ourselves
constexpr auto kGoodbye = std::chrono::seconds(5);             // how long the Hub may take to hear a bye

}  // namespace

HubWatch::HubWatch(Socket socket, const World& world, int hub_rank)
    : rank_(world.rank),
      hub_rank_(hub_rank),
      heartbeat_(world.options.heartbeat),
      log_(world.log),
      fate_(world.fate),
      socket_(std::move(socket)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      next_beat_(Clock::now() + world.options.heartbeat) {
  keep_alive(socket_.fd());
  watch_neighbours(world);
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "esp-watch");
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
      ended_.push_back({peer, Deadline::after(kWordFromHub)});
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
  changed_.wait_until(lock, deadline.when(), [&] { return deaf_ || question.answers.size() >= group.members.size(); });
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
      if (bye_heard_ || hub_gone_ || goodbye->passed()) return;
    }
    bool more;
    {
      std::lock_guard lock(mutex_);
      more = !out_.empty();
    }
    std::vector<pollfd> items{{wake_.fd(), POLLIN, 0},
                              {hub_gone_ ? -1 : socket_.fd(), static_cast<short>(POLLIN | (more ? POLLOUT : 0)), 0}};
    for (const auto& [rank, pidfd] : neighbours_) items.push_back({pidfd.fd(), POLLIN, 0});
    int wait_ms = goodbye ? std::min(goodbye->left_ms(), next_wait_ms()) : next_wait_ms();
    if (poll(items.data(), items.size(), wait_ms) < 0) continue;
    eventfd_t value;
    if (items[0].revents) eventfd_read(wake_.fd(), &value);
    if (items[1].revents & (POLLIN | POLLHUP | POLLERR)) read_hub();
    for (size_t i = items.size(); i-- > 2;)
      if (items[i].revents) neighbour_ended(i - 2);
    judge_ended();
    if (Clock::now() >= next_beat_) {
      next_beat_ = Clock::now() + heartbeat_;
      if (!hub_gone_) post(Kind::beat, {});
    }
  }
}

int HubWatch::next_wait_ms() const {
  auto soonest = next_beat_;
  for (const Ended& each : ended_) soonest = std::min(soonest, each.word_by.when());
  return Deadline::at(soonest).left_ms();
}

void HubWatch::flush() {
  std::lock_guard lock(mutex_);
  while (!out_.empty() && !hub_gone_) {
    ssize_t sent = send(socket_.fd(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // a full buffer empties by itself; a closed connection shows when reading
    out_.erase(0, static_cast<size_t>(sent));
  }
}

void HubWatch::read_hub() {
  char buffer[size_t{16} << 10];
  ssize_t got = recv(socket_.fd(), buffer, sizeof buffer, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return hub_gone("closed its connection");
  try {
    reader_.append({buffer, static_cast<size_t>(got)});
    while (auto frame = reader_.next()) heed(*frame);
  } catch (const CommError& error) {
    hub_gone(fmt::format("sent what cannot be read: {}", error.what()));
  }
}

void HubWatch::heed(const Frame& frame) {
  switch (frame.kind) {
    case Kind::lost: {
      Loss loss = decode_loss(frame.body);
      log_.debug("the hub says: rank {} {}", loss.rank, loss.how);
      return fate_->lose(loss.rank, loss.how);
    }
    case Kind::left: {
      int rank = decode_rank(frame.body);
      std::erase_if(ended_, [&](const Ended& each) { return each.rank == rank; });
      return fate_->leave(rank);
    }
    case Kind::aborted: {
      Abort abort = decode_abort(frame.body);
      return fate_->abort(abort.group, abort.cause);
    }
    case Kind::question:
      return answer(decode_report(frame.body));
    case Kind::answer: {
      Report report = decode_report(frame.body);
      std::lock_guard lock(mutex_);
      if (auto found = questions_.find(report.id); found != questions_.end())
        found->second.answers[report.rank] = report.standing;
      return changed_.notify_all();
    }
    case Kind::bye_heard:
      bye_heard_ = true;
      return;
    case Kind::closing:
      hub_closing_ = true;
      return;
    default:
      throw CommError(CommError::Kind::corrupt, -1, "a frame that does not belong on a watch connection");
  }
}

void HubWatch::answer(const Report& question) {
  Report report = question;
  report.standing = {true, {}, false};  // here, and not in that group (yet, or any more)
  {
    std::lock_guard lock(mutex_);
    auto found = enrolled_.find(question.group);
    if (found != enrolled_.end()) report.standing = found->second->read();
  }
  post(Kind::standing, encode_report(report));
}

// The process has ended, and whether it had left in order the Hub knows: it told us before it answered the bye. Should
// the Hub be slow or gone, we say so ourselves a little later.
void HubWatch::neighbour_ended(size_t index) {
  int rank = neighbours_[index].first;
  neighbours_.erase(neighbours_.begin() + static_cast<ptrdiff_t>(index));
  if (fate_->left(rank) || fate_->lost(rank)) return;
  ended_.push_back({rank, Deadline::after(kWordFromHub)});
  post(Kind::query, encode_number(static_cast<uint64_t>(rank)));
}

void HubWatch::judge_ended() {
  for (const Ended& each : ended_)
    if (each.word_by.passed() && !fate_->left(each.rank)) fate_->lose(each.rank, "was killed or ended early");
  std::erase_if(ended_, [&](const Ended& each) { return each.word_by.passed() || fate_->lost(each.rank); });
}

void HubWatch::hub_gone(const std::string& how) {
  hub_gone_ = true;
  {
    std::lock_guard lock(mutex_);
    deaf_ = true;
    out_.clear();
    changed_.notify_all();
  }
  if (hub_closing_ || bye_heard_) return;
  if (hub_rank_ >= 0 && hub_rank_ != rank_) fate_->lose(hub_rank_, fmt::format("(the hub) {}", how));
  fate_->doom(CommError(CommError::Kind::lost, hub_rank_, fmt::format("the hub (rank 0 or the launcher) {}", how)));
}

}  // namespace esp::net
