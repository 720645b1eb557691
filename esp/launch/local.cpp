#include "esp/launch/local.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/launch/merge.h"
#include "esp/launch/secret.h"
#include "esp/launch/spawn.h"

namespace esp::launch {
namespace {

constexpr size_t kLastWordsBytes = 2000;
// A rank that saw its peer vanish often ends before we see the peer's own end: wait this long for a better cause.
constexpr Duration kCauseWindow = std::chrono::milliseconds(200);

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;  // nobody reads our output any more; the ranks' own fate decides what happens next
    text.remove_prefix(static_cast<size_t>(wrote));
  }
}

// How many processes of our control group the kernel has killed for memory, -1 when it does not say.
long out_of_memory_kills() {
  std::ifstream file("/sys/fs/cgroup/memory.events");
  std::string name;
  long value = 0;
  while (file >> name >> value)
    if (name == "oom_kill") return value;
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
    bool running = true;
    std::string last_words;
  };

  LocalOptions options;
  std::vector<Rank> ranks;
  pid_t group = 0;
  long kills_before = 0;
  LineMerger out, err;
  net::Socket wake;

  mutable std::mutex mutex;  // guards what follows; `ranks` belongs to the thread once it runs
  std::condition_variable changed;
  std::optional<Failure> failure;
  bool ended = false, requeue = false;
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
  void run();
  bool any_running() const;
  void forward(Rank& rank, int index, bool is_out, Clock::time_point now);
  void reap(Rank& rank, int index);
  void flush(bool all);
};

void LocalJob::Impl::start() {
  wake = net::Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Environment base = process_environment();
  for (std::string_view name : placement_variables()) base.erase(std::string(name));
  base.erase("ESPALIER_SECRET_FILE");
  for (const auto& [name, value] : options.environment) base[name] = value;
  base["WORLD_SIZE"] = std::to_string(options.world);
  base["LOCAL_WORLD_SIZE"] = std::to_string(options.num_ranks);
  base["MASTER_ADDR"] = options.master_address;
  base["MASTER_PORT"] = std::to_string(options.master_port);
  bool with_secret = !options.secret.bytes().empty();
  if (with_secret) base["ESPALIER_SECRET_FD"] = std::to_string(kSecretFd);
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    base["RANK"] = std::to_string(options.first_rank + rank);
    base["LOCAL_RANK"] = std::to_string(rank);
    net::Socket secret(with_secret ? secret_pipe(options.secret) : -1);
    SpawnOptions spawning{options.command, base, group, secret.fd()};
    spawning.capture_stdout = options.output == LocalOptions::Output::forward;
    ranks.push_back({spawn(spawning), true, {}});
    if (rank == 0) group = ranks[0].child.pid;
  }
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
    if (!is_out && index == options.plain_rank) {
      write_all(2, std::string(bytes));
    } else {
      merger.feed(index, bytes, now);
    }
  }
}

void LocalJob::Impl::flush(bool all) {
  auto now = Clock::now();
  for (const std::string& line : out.take(now, all)) write_all(1, line);
  for (const std::string& line : err.take(now, all)) write_all(2, line);
}

void LocalJob::Impl::reap(Rank& rank, int index) {
  int status = 0;
  if (::waitpid(rank.child.pid, &status, WNOHANG) != rank.child.pid) return;
  auto now = Clock::now();
  forward(rank, index, true, now);
  forward(rank, index, false, now);
  rank.running = false;
  rank.child.pidfd.close();
  if (status == 0) return;
  if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::requeue)) {
    std::lock_guard lock(mutex);
    requeue = true;
    return;
  }
  Failure seen{options.first_rank + index, 1, "", rank.last_words};
  if (WIFSIGNALED(status)) {
    seen.exit_code = 128 + WTERMSIG(status);
    seen.how = "was killed by " + signal_name(WTERMSIG(status));
    if (WTERMSIG(status) == SIGKILL && kills_before >= 0 && out_of_memory_kills() > kills_before)
      seen.how += " (the kernel killed for want of memory meanwhile: give the job more, or use fewer ranks)";
  } else {
    seen.exit_code = WEXITSTATUS(status);
    seen.how = fmt::format("exited with code {}", seen.exit_code);
  }
  std::lock_guard lock(mutex);
  if (stop) return;  // what dies because we ended it is not news
  if (!failure || suspicion(seen) > suspicion(*failure)) failure = seen;
}

void LocalJob::Impl::run() {
  ::pthread_setname_np(::pthread_self(), "esp-launch");
  std::optional<Clock::time_point> failed_at, terminated_at;
  bool killed = false;
  std::vector<pollfd> waiting;
  while (any_running()) {
    waiting.assign(1, {wake.fd(), POLLIN, 0});
    for (const Rank& rank : ranks)
      for (int fd : {rank.child.pidfd.fd(), rank.child.out.fd(), rank.child.err.fd()})
        if (fd >= 0) waiting.push_back({fd, POLLIN, 0});
    bool soon = failed_at || terminated_at || out.pending() || err.pending();
    ::poll(waiting.data(), waiting.size(), soon ? 20 : 1000);
    uint64_t count = 0;
    if (::read(wake.fd(), &count, sizeof count) < 0) count = 0;  // emptied; EAGAIN is the usual answer

    auto now = Clock::now();
    for (size_t i = 0; i < ranks.size(); ++i) {
      forward(ranks[i], static_cast<int>(i), true, now);
      forward(ranks[i], static_cast<int>(i), false, now);
      if (ranks[i].running) reap(ranks[i], static_cast<int>(i));
    }
    flush(false);
    {
      std::lock_guard lock(mutex);
      if (failure && !failed_at) failed_at = now;
      bool settled = failed_at && (suspicion(*failure) > 0 || now - *failed_at > kCauseWindow);
      if ((settled || stop) && !terminated_at) {
        stop = true;
        terminated_at = now;
        ::kill(-group, SIGTERM);
      }
    }
    if (!killed && terminated_at && (kill_now || now - *terminated_at > options.grace)) {
      ::kill(-group, SIGKILL);
      killed = true;
    }
  }
  flush(true);
  std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
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
  if (impl_->group > 0) ::kill(-impl_->group, number);
}

void LocalJob::terminate() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  uint64_t one = 1;
  if (::write(impl_->wake.fd(), &one, sizeof one) < 0) return;  // full: the thread is awake anyway
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string describe(const Failure& failure) {
  std::string text = fmt::format("rank {} {}", failure.rank, failure.how);
  if (!failure.last_words.empty()) text += "; its last words:\n" + failure.last_words;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace esp::launch
