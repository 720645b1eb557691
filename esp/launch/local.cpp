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
#include "esp/launch/line_merger.h"
#include "esp/launch/secret.h"
#include "esp/launch/spawn.h"

namespace esp::launch {
namespace {

constexpr size_t kStderrTailBytes = 2000;

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

// Reads the value of oom_kill in a cgroup file of "name value" lines; -1 if it is not there.
long oom_kills_in(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  long value = 0;
  while (file >> name >> value)
    if (name == "oom_kill") return value;
  return -1;
}

// Paths of the cgroup files (v2 and v1) in which Linux counts the OOM kills in this process's cgroup. In a container,
// that cgroup may be the root of the mount.
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

// Number of processes in this cgroup that Linux has killed because memory ran out; -1: unknown.
long out_of_memory_kills() {
  for (const std::string& path : oom_files())
    if (const long kills = oom_kills_in(path); kills >= 0) return kills;
  return -1;
}

// The failure with the highest value is the most likely root cause: death by a signal (2), error exit (1), lost peer
// (0).
int failure_priority(const Failure& failure) {
  if (failure.exit_code > 128) return 2;
  return failure.exit_code == static_cast<int>(ExitCode::comm) ? 0 : 1;
}

}  // namespace

struct LocalJob::Impl {
  struct Rank {
    Child child;
    net::Socket control;
    bool running = true, lost_peer_only = false;
    std::string stderr_tail;
  };

  LocalOptions options;
  Environment base;  // environment variables common to all ranks
  pid_t group = 0;
  long kills_before = 0;
  net::Socket wake;

  mutable std::mutex ranks_mutex;  // guards `ranks` and their output; lock it before `mutex`
  std::vector<Rank> ranks;
  LineMerger out, err;
  bool stdout_lost = false;  // a write to stdout has failed

  mutable std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  std::optional<Failure> failure;
  std::vector<Failure> failures;                      // failures that the next take_failures() returns
  std::vector<std::pair<int, std::string>> messages;  // messages that the next take_messages() returns
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
  void wake_thread();
  void signal_all(int number);
  void read_messages(Rank& rank, int index);
  void read_all_messages();
  bool any_running() const;
  void forward(Rank& rank, int index, bool is_out, Clock::time_point now);
  void reap(Rank& rank, int index);
  void flush(bool all);
  void print(std::string_view text);
  // True if the root cause is an error exit of one rank. Then only this error is printed; the lost-peer errors of the
  // other ranks are dropped. The caller holds `mutex`.
  bool has_own_error() const { return !options.keep_survivors && failure && failure_priority(*failure) == 1; }
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
    write_all(2, "pidfd_open is not permitted: the launcher polls every 20 ms for ranks that have ended\n");
}

LocalJob::Impl::Rank LocalJob::Impl::spawn_rank(int rank, const Environment& changes) {
  Environment environment = base;
  for (const auto& [name, value] : changes) environment[name] = value;
  environment["RANK"] = std::to_string(options.first_rank + rank);
  environment["LOCAL_RANK"] = std::to_string(rank);
  const net::Socket secret(options.secret.bytes().empty() ? -1 : secret_pipe(options.secret));
  Rank made;
  net::Socket theirs;
  if (options.keep_survivors) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      throw IoError("cannot create the control channel of a rank: " + errno_text(errno));
    made.control = net::Socket(ends[0]);
    theirs = net::Socket(ends[1]);
    environment["ESPALIER_CONTROL_FD"] = std::to_string(kControlFd);
  }
  SpawnOptions spawning{options.command, std::move(environment), group, secret.fd(), theirs.fd()};
  spawning.capture_stdout = options.output == LocalOptions::Output::forward;
  made.child = spawn(spawning);
  return made;
}

void LocalJob::Impl::wake_thread() {
  uint64_t one = 1;
  // the write fails only if the counter is full; then the thread is awake already
  if (::write(wake.fd(), &one, sizeof one) < 0) return;
}

// Sends the signal to the process group, and to each rank that has not joined the group yet.
void LocalJob::Impl::signal_all(int number) {
  if (group > 0) ::kill(-group, number);
  for (const Rank& rank : ranks)
    if (rank.running && ::getpgid(rank.child.pid) != group) ::kill(rank.child.pid, number);
}

void LocalJob::Impl::read_messages(Rank& rank, int index) {
  char buffer[1024];
  while (rank.control) {
    const ssize_t got = ::recv(rank.control.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return rank.control.close();
    std::lock_guard lock(mutex);
    messages.emplace_back(index, std::string(buffer, static_cast<size_t>(got)));
    changed.notify_all();
  }
}

void LocalJob::Impl::read_all_messages() {
  for (size_t i = 0; i < ranks.size(); ++i) read_messages(ranks[i], static_cast<int>(i));
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
      rank.stderr_tail += bytes;
      if (rank.stderr_tail.size() > kStderrTailBytes)
        rank.stderr_tail.erase(0, rank.stderr_tail.size() - kStderrTailBytes);
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

// Writes to stdout. If the write fails (reader gone, disk full), later output is dropped and the ranks continue.
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
    // The stderr lines of the other ranks are held back until those ranks have ended, which happens soon.
    if (has_own_error() && !all) return;
  }
  for (const std::string& line : err.take(now, all)) write_all(2, line);
}

void LocalJob::Impl::reap(Rank& rank, int index) {
  int status = 0;
  if (::waitpid(rank.child.pid, &status, WNOHANG) != rank.child.pid) return;
  read_all_messages();  // the rank may have sent messages before it ended
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
  Failure seen{options.first_rank + index, 1, "", rank.stderr_tail, options.output == LocalOptions::Output::forward};
  if (WIFSIGNALED(status)) {
    seen.exit_code = 128 + WTERMSIG(status);
    const bool no_memory = WTERMSIG(status) == SIGKILL && kills_before >= 0 && out_of_memory_kills() > kills_before;
    seen.reason = fmt::format("killed ({}{})", signal_name(WTERMSIG(status)),
                              no_memory ? ", out of memory: give the job more memory, or use fewer ranks" : "");
  } else {
    seen.exit_code = WEXITSTATUS(status);
    seen.reason = fmt::format("exited with code {}", seen.exit_code);
  }
  std::lock_guard lock(mutex);
  const bool ended_by_us = stop;
  rank.lost_peer_only = failure_priority(seen) == 0 || (ended_by_us && seen.exit_code > 128);
  if (!ended_by_us && (!failure || failure_priority(seen) > failure_priority(*failure))) failure = seen;
  if (has_own_error())
    for (size_t i = 0; i < ranks.size(); ++i)
      if (ranks[i].lost_peer_only) err.drop_error(static_cast<int>(i));
  if (ended_by_us) return;  // the launcher ended this rank, so it did not fail
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
      // A rank without a pidfd is checked at intervals, because poll cannot wait for its end.
      for (const Rank& rank : ranks) soon = soon || (rank.running && !rank.child.pidfd);
      for (const Rank& rank : ranks)
        for (int fd : {rank.child.pidfd.fd(), rank.child.out.fd(), rank.child.err.fd(), rank.control.fd()})
          if (fd >= 0) waiting.push_back({fd, POLLIN, 0});
      soon = soon || out.pending() || err.pending();
    }
    ::poll(waiting.data(), waiting.size(), soon ? 20 : 1000);
    uint64_t count = 0;
    if (::read(wake.fd(), &count, sizeof count) < 0) count = 0;  // drain the eventfd; EAGAIN is the usual result

    auto now = Clock::now();
    std::lock_guard ranks_lock(ranks_mutex);
    read_all_messages();
    for (size_t i = 0; i < ranks.size(); ++i) {
      forward(ranks[i], static_cast<int>(i), true, now);
      forward(ranks[i], static_cast<int>(i), false, now);
      if (ranks[i].running) reap(ranks[i], static_cast<int>(i));
    }
    flush(false);
    {
      std::lock_guard lock(mutex);
      if (failure && !failed_at && !options.keep_survivors) failed_at = now;
      bool settled = failed_at && (failure_priority(*failure) > 0 || now - *failed_at > options.cause_window);
      if ((settled || stop) && !terminated_at) {
        stop = true;
        terminated_at = now;
        if (!kill_now) signal_all(SIGTERM);
      }
    }
    if (!killed && terminated_at && (kill_now || now - *terminated_at > options.grace)) {
      signal_all(SIGKILL);
      killed = true;
    }
  }
}

LocalJob::LocalJob(const LocalOptions& options) : impl_(std::make_unique<Impl>(options)) {
  ESP_CHECK(options.num_ranks >= 1 && !options.command.empty(),
            "LocalJob: got {} ranks, a command of {} words; expected at least 1 of each", options.num_ranks,
            options.command.size());
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
  impl_->signal_all(number);
}

void LocalJob::kill() {
  impl_->kill_now = true;
  terminate();
}

bool LocalJob::wait_event(Deadline deadline) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_until(
      lock, deadline.when(), [&] { return impl_->ended || !impl_->failures.empty() || !impl_->messages.empty(); });
}

bool LocalJob::ended() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->ended;
}

bool LocalJob::any_finished() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->done;
}

std::vector<Failure> LocalJob::take_failures() {
  std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->failures, {});
}

std::vector<std::pair<int, std::string>> LocalJob::take_messages() {
  std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->messages, {});
}

void LocalJob::send(int rank, const std::string& text) {
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
    ESP_CHECK(!place.running, "respawn: rank {} is still running", rank);
    if (impl_->ended || impl_->stop) {
      ::kill(made.child.pid, SIGKILL);
      ::waitpid(made.child.pid, nullptr, 0);
      return false;
    }
    place = std::move(made);
  }
  impl_->wake_thread();
  return true;
}

void LocalJob::clear_failures() {
  std::lock_guard lock(impl_->mutex);
  impl_->failure.reset();
}

void LocalJob::terminate() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake_thread();
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string describe(const Failure& failure) {
  std::string text = fmt::format("rank {} {}", failure.rank, failure.reason);
  if (!failure.stderr_tail.empty() && !failure.already_printed)
    text += "; its stderr ends with:\n" + failure.stderr_tail;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace esp::launch
