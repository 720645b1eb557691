#include "esp/launch/local.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/launch/merge.h"
#include "esp/launch/secret.h"
#include "esp/launch/spawn.h"

namespace esp::launch {
namespace {

constexpr size_t kLastWordsBytes = 2000;

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

// The count in a file of lines "name value"; -1: there is none.
long oom_kills_in(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  long value = 0;
  while (file >> name >> value)
    if (name == "oom_kill") return value;
  return -1;
}

// Where the kernel counts the processes of our control group that it has killed for memory: version 2 or 1. In a
// container the root of what is mounted may be that group.
std::vector<std::string> oom_files() {
  std::vector<std::string> files;
  std::ifstream cgroups("/proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty())
      for (const std::string& at : {path, std::string()})
        for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"})
          files.push_back(mount + at + "/memory.events");
    else if (("," + controllers + ",").find(",memory,") != std::string::npos)
      for (const std::string& at : {path, std::string()})
        files.push_back("/sys/fs/cgroup/memory" + at + "/memory.oom_control");
  }
  return files;
}

// How many processes of our control group the kernel has killed for memory, -1 when it does not say.
long out_of_memory_kills() {
  for (const std::string& path : oom_files())
    if (const long kills = oom_kills_in(path); kills >= 0) return kills;
  return -1;
}

// The likelier origin of a failure first: a signal, then an error of one's own, then «a peer was lost».
int suspicion(const Failure& failure) {
  if (failure.exit_code > 128) return 2;
  return failure.exit_code == static_cast<int>(ExitCode::comm) ? 0 : 1;
}

}  // namespace

struct LocalJob::Impl {
  struct Rank {
    Child child;
    net::Socket control;
    bool running = true, only_lost_peer = false;
    std::string last_words;
  };

  LocalOptions options;
  Environment base;  // of every rank
  pid_t group = 0;
  long kills_before = 0;
  net::Socket wake;

  mutable std::mutex ranks_mutex;  // guards the ranks and their output; taken before `mutex`
  std::vector<Rank> ranks;
  LineMerger out, err;
  bool stdout_lost = false;  // it could not be written

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::optional<Failure> failure;
  std::vector<Failure> failures;                   // not yet taken
  std::vector<std::pair<int, std::string>> words;  // not yet taken
  bool ended = false, requeue = false, done = false;
  std::atomic<bool> stop{false}, kill_now{false};
  std::thread thread;

  explicit Impl(const LocalOptions& given)
      : options(given),
        kills_before(out_of_memory_kills()),
        out(given.num_ranks, given.first_rank),
        err(given.num_ranks, given.first_rank) {
    if (options.world == 0) options.world = options.num_ranks;
  }

  void start();
  Rank spawn_rank(int rank, const Environment& changed);
  void run();
  void rouse();
  void send(int number);
  void listen(Rank& rank, int index);
  void listen_to_all();
  bool any_running() const;
  void forward(Rank& rank, int index, bool is_out, Clock::time_point now);
  void reap(Rank& rank, int index);
  void flush(bool all);
  void print(std::string_view text);
  // Then a rank's own error is the news; that others missed it is none. Under `mutex`.
  bool own_error() const { return !options.outlast && failure && suspicion(*failure) == 1; }
};

void LocalJob::Impl::start() {
  wake = net::Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  base = process_environment();
  for (std::string_view name : placement_variables()) base.erase(std::string(name));
  for (const char* name : {"ESPALIER_SECRET_FILE", "ESPALIER_CONTROL_FD", "ESPALIER_SNAPSHOTS", "ESPALIER_ROUND"})
    base.erase(name);
  for (const auto& [name, value] : options.environment) base[name] = value;
  base["WORLD_SIZE"] = std::to_string(options.world);
  base["LOCAL_WORLD_SIZE"] = std::to_string(options.num_ranks);
  base["MASTER_ADDR"] = options.master_address;
  base["MASTER_PORT"] = std::to_string(options.master_port);
  if (!options.secret.bytes().empty()) base["ESPALIER_SECRET_FD"] = std::to_string(kSecretFd);
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    ranks.push_back(spawn_rank(rank, {}));
    if (rank == 0) group = ranks[0].child.pid;
  }
  if (!ranks[0].child.pidfd)
    write_all(2, "pidfd_open is refused here: the launcher asks every 20 ms whether ranks have ended\n");
}

LocalJob::Impl::Rank LocalJob::Impl::spawn_rank(int rank, const Environment& changes) {
  Environment environment = base;
  for (const auto& [name, value] : changes) environment[name] = value;
  environment["RANK"] = std::to_string(options.first_rank + rank);
  environment["LOCAL_RANK"] = std::to_string(rank);
  const net::Socket secret(options.secret.bytes().empty() ? -1 : secret_pipe(options.secret));
  Rank made;
  net::Socket theirs;
  if (options.outlast) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      throw IoError("cannot make a socket pair: " + errno_text(errno));
    made.control = net::Socket(ends[0]);
    theirs = net::Socket(ends[1]);
    environment["ESPALIER_CONTROL_FD"] = std::to_string(kControlFd);
  }
  SpawnOptions spawning{options.command, std::move(environment), group, secret.fd(), theirs.fd()};
  spawning.capture_stdout = options.output == LocalOptions::Output::forward;
  made.child = spawn(spawning);
  return made;
}

void LocalJob::Impl::rouse() {
  uint64_t one = 1;
  if (::write(wake.fd(), &one, sizeof one) < 0) return;  // full: the thread is awake anyway
}

// To each rank, and to what they started: a rank may have come too late for the group.
void LocalJob::Impl::send(int number) {
  if (group > 0) ::kill(-group, number);
  for (const Rank& rank : ranks)
    if (rank.running && ::getpgid(rank.child.pid) != group) ::kill(rank.child.pid, number);
}

void LocalJob::Impl::listen(Rank& rank, int index) {
  char buffer[1024];
  while (rank.control) {
    const ssize_t got = ::recv(rank.control.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return rank.control.close();
    std::lock_guard lock(mutex);
    words.emplace_back(index, std::string(buffer, static_cast<size_t>(got)));
    changed.notify_all();
  }
}

void LocalJob::Impl::listen_to_all() {
  for (size_t i = 0; i < ranks.size(); ++i) listen(ranks[i], static_cast<int>(i));
}

bool LocalJob::Impl::any_running() const {
  for (const Rank& rank : ranks)
    if (rank.running) return true;
  return false;
}

void LocalJob::Impl::forward(Rank& rank, int index, bool is_out, Clock::time_point now) {
  net::Socket& pipe = is_out ? rank.child.out : rank.child.err;
  LineMerger& merger = is_out ? out : err;
  char buffer[16384];
  while (pipe) {
    ssize_t got = ::read(pipe.fd(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return;
    if (got == 0) {
      merger.end(index, now);
      pipe.close();
      return;
    }
    std::string_view bytes(buffer, static_cast<size_t>(got));
    if (!is_out) {
      rank.last_words += bytes;
      if (rank.last_words.size() > kLastWordsBytes) rank.last_words.erase(0, rank.last_words.size() - kLastWordsBytes);
    }
    if (options.output != LocalOptions::Output::forward) continue;
    if (index == options.plain_rank && is_out && options.plain_stdout) {
      print(bytes);
    } else if (index == options.plain_rank && !is_out) {
      write_all(2, bytes);
    } else {
      merger.feed(index, bytes, now);
    }
  }
}

// To stdout. A reader that is gone, or a full disk, does not end the ranks: what they write from then on is dropped.
void LocalJob::Impl::print(std::string_view text) {
  if (stdout_lost || write_all(1, text)) return;
  stdout_lost = true;
  write_all(2, fmt::format("stdout cannot be written ({}): the ranks continue, their output to stdout is dropped\n",
                           errno_text(errno)));
}

void LocalJob::Impl::flush(bool all) {
  auto now = Clock::now();
  for (const std::string& line : out.take(now, all)) print(line);
  {
    std::lock_guard lock(mutex);
    if (own_error() && !all) return;  // what others say waits for how they end, which is soon
  }
  for (const std::string& line : err.take(now, all)) write_all(2, line);
}

void LocalJob::Impl::reap(Rank& rank, int index) {
  int status = 0;
  if (::waitpid(rank.child.pid, &status, WNOHANG) != rank.child.pid) return;
  listen_to_all();  // what was said before it ended is heard before its end
  auto now = Clock::now();
  forward(rank, index, true, now);
  forward(rank, index, false, now);
  rank.running = false;
  rank.child.pidfd.close();
  if (status == 0) {
    std::lock_guard lock(mutex);
    done = true;
    return;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::requeue)) {
    std::lock_guard lock(mutex);
    requeue = true;
    return;
  }
  Failure seen{options.first_rank + index, 1, "", rank.last_words, options.output == LocalOptions::Output::forward};
  if (WIFSIGNALED(status)) {
    seen.exit_code = 128 + WTERMSIG(status);
    const bool no_memory = WTERMSIG(status) == SIGKILL && kills_before >= 0 && out_of_memory_kills() > kills_before;
    seen.how = fmt::format("killed ({}{})", signal_name(WTERMSIG(status)),
                           no_memory ? ", out of memory: give the job more, or use fewer ranks" : "");
  } else {
    seen.exit_code = WEXITSTATUS(status);
    seen.how = fmt::format("exited with code {}", seen.exit_code);
  }
  std::lock_guard lock(mutex);
  const bool ended_by_us = stop;
  rank.only_lost_peer = suspicion(seen) == 0 || (ended_by_us && seen.exit_code > 128);
  if (!ended_by_us && (!failure || suspicion(seen) > suspicion(*failure))) failure = seen;
  if (own_error())
    for (size_t i = 0; i < ranks.size(); ++i)
      if (ranks[i].only_lost_peer) err.drop_error(static_cast<int>(i));
  if (ended_by_us) return;  // what dies because we ended it is not news
  failures.push_back(std::move(seen));
  changed.notify_all();
}

void LocalJob::Impl::run() {
  ::pthread_setname_np(::pthread_self(), "esp-launch");
  std::optional<Clock::time_point> failed_at, terminated_at;
  bool killed = false;
  std::vector<pollfd> waiting;
  for (;;) {
    bool soon = failed_at || terminated_at;
    {
      std::lock_guard ranks_lock(ranks_mutex);
      if (!any_running()) {
        flush(true);
        std::lock_guard lock(mutex);
        ended = true;
        changed.notify_all();
        return;
      }
      waiting.assign(1, {wake.fd(), POLLIN, 0});
      for (const Rank& rank : ranks) soon = soon || (rank.running && !rank.child.pidfd);  // its end wakes nobody
      for (const Rank& rank : ranks)
        for (int fd : {rank.child.pidfd.fd(), rank.child.out.fd(), rank.child.err.fd(), rank.control.fd()})
          if (fd >= 0) waiting.push_back({fd, POLLIN, 0});
      soon = soon || out.pending() || err.pending();
    }
    ::poll(waiting.data(), waiting.size(), soon ? 20 : 1000);
    uint64_t count = 0;
    if (::read(wake.fd(), &count, sizeof count) < 0) count = 0;  // emptied; EAGAIN is the usual answer

    auto now = Clock::now();
    std::lock_guard ranks_lock(ranks_mutex);
    listen_to_all();
    for (size_t i = 0; i < ranks.size(); ++i) {
      forward(ranks[i], static_cast<int>(i), true, now);
      forward(ranks[i], static_cast<int>(i), false, now);
      if (ranks[i].running) reap(ranks[i], static_cast<int>(i));
    }
    flush(false);
    {
      std::lock_guard lock(mutex);
      if (failure && !failed_at && !options.outlast) failed_at = now;
      bool settled = failed_at && (suspicion(*failure) > 0 || now - *failed_at > options.cause_window);
      if ((settled || stop) && !terminated_at) {
        stop = true;
        terminated_at = now;
        if (!kill_now) send(SIGTERM);
      }
    }
    if (!killed && terminated_at && (kill_now || now - *terminated_at > options.grace)) {
      send(SIGKILL);
      killed = true;
    }
  }
}

LocalJob::LocalJob(const LocalOptions& options) : impl_(std::make_unique<Impl>(options)) {
  ESP_CHECK(options.num_ranks >= 1 && !options.command.empty(), "{} ranks", options.num_ranks);
  try {
    impl_->start();
  } catch (...) {
    if (impl_->group > 0) ::kill(-impl_->group, SIGKILL);
    for (auto& rank : impl_->ranks) ::waitpid(rank.child.pid, nullptr, 0);
    throw;
  }
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

LocalJob::~LocalJob() {
  impl_->kill_now = true;
  terminate();
  impl_->thread.join();
}

int LocalJob::num_ranks() const {
  return impl_->options.num_ranks;
}
int LocalJob::pid(int rank) const {
  return impl_->ranks[static_cast<size_t>(rank)].child.pid;
}

bool LocalJob::wait(Deadline deadline) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_until(lock, deadline.when(), [&] { return impl_->ended; });
}

std::optional<Failure> LocalJob::failure() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->failure;
}

bool LocalJob::wants_requeue() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->requeue;
}

void LocalJob::signal(int number) {
  std::lock_guard lock(impl_->ranks_mutex);
  impl_->send(number);
}

void LocalJob::kill() {
  impl_->kill_now = true;
  terminate();
}

bool LocalJob::wait_news(Deadline deadline) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_until(lock, deadline.when(),
                                   [&] { return impl_->ended || !impl_->failures.empty() || !impl_->words.empty(); });
}

bool LocalJob::ended() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->ended;
}

bool LocalJob::any_done() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->done;
}

std::vector<Failure> LocalJob::take_failures() {
  std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->failures, {});
}

std::vector<std::pair<int, std::string>> LocalJob::take_words() {
  std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->words, {});
}

void LocalJob::say(int rank, const std::string& text) {
  std::lock_guard lock(impl_->ranks_mutex);
  const auto& to = impl_->ranks[static_cast<size_t>(rank)];
  if (to.running && to.control) ::send(to.control.fd(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void LocalJob::kill(int rank) {
  std::lock_guard lock(impl_->ranks_mutex);
  const auto& one = impl_->ranks[static_cast<size_t>(rank)];
  if (one.running) ::kill(one.child.pid, SIGKILL);
}

bool LocalJob::respawn(int rank, const Environment& changed) {
  Impl::Rank made = impl_->spawn_rank(rank, changed);
  {
    std::lock_guard ranks_lock(impl_->ranks_mutex);
    std::lock_guard lock(impl_->mutex);
    Impl::Rank& place = impl_->ranks[static_cast<size_t>(rank)];
    ESP_CHECK(!place.running, "rank {} has not ended", rank);
    if (impl_->ended || impl_->stop) {
      ::kill(made.child.pid, SIGKILL);
      ::waitpid(made.child.pid, nullptr, 0);
      return false;
    }
    place = std::move(made);
  }
  impl_->rouse();
  return true;
}

void LocalJob::forgive() {
  std::lock_guard lock(impl_->mutex);
  impl_->failure.reset();
}

void LocalJob::terminate() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->rouse();
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string describe(const Failure& failure) {
  std::string text = fmt::format("rank {} {}", failure.rank, failure.how);
  if (!failure.last_words.empty() && !failure.shown) text += "; its last words:\n" + failure.last_words;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace esp::launch
