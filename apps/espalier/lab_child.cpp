#include "apps/espalier/lab_child.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/launch/spawn.h"

namespace esp::app {
namespace {

// Appends the output that is available to `to`. False at the end of the stream.
bool drain(int fd, std::string& to) {
  char buffer[16384];
  const ssize_t n = ::read(fd, buffer, sizeof buffer);
  if (n > 0) to.append(buffer, static_cast<size_t>(n));
  return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

struct RunningChild {
  launch::Child child;
  bool out_open = true, err_open = true;
};

// Waits once for output of any child and reads it. False when all output streams are closed.
bool pump(std::vector<RunningChild>& all, std::vector<ChildResult>& ended, const Deadline& deadline) {
  std::vector<pollfd> waiting;
  std::vector<std::pair<size_t, bool>> which;  // for each polled stream: index of its child, and whether it is stderr
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].out_open) waiting.push_back({all[i].child.out.fd(), POLLIN, 0}), which.push_back({i, false});
    if (all[i].err_open) waiting.push_back({all[i].child.err.fd(), POLLIN, 0}), which.push_back({i, true});
  }
  if (waiting.empty() || deadline.passed()) return false;
  ::poll(waiting.data(), waiting.size(), deadline.left_ms());
  for (size_t k = 0; k < waiting.size(); ++k) {
    if (waiting[k].revents == 0) continue;
    const auto [i, is_err] = which[k];
    if (!drain(waiting[k].fd, is_err ? ended[i].err : ended[i].out))
      (is_err ? all[i].err_open : all[i].out_open) = false;
  }
  return true;
}

// Returns the exit code of a child. Kills it if it has not ended at the deadline, for example after it closed its
// output.
int reap(const launch::Child& child, const Deadline& deadline) {
  const bool late = !launch::wait_for_end(child, deadline);
  if (late) ::kill(-child.pid, SIGKILL);
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  if (late) return 124;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::vector<ChildResult> run_children(const std::vector<ChildCommand>& orders, Duration limit) {
  const Deadline deadline = Deadline::after(limit);
  std::vector<RunningChild> all(orders.size());
  std::vector<ChildResult> ended(orders.size());
  for (size_t i = 0; i < orders.size(); ++i) {
    launch::SpawnOptions options;
    options.command = orders[i].command;
    options.environment = launch::process_environment();
    for (const auto& [name, value] : orders[i].environment) options.environment[name] = value;
    all[i].child = launch::spawn(options);
  }
  while (pump(all, ended, deadline)) {
  }
  for (size_t i = 0; i < all.size(); ++i) ended[i].code = reap(all[i].child, deadline);
  return ended;
}

std::string run_or_throw(const std::vector<std::string>& command, Duration limit) {
  std::vector<ChildResult> ended = run_children({{command, {}}}, limit);
  if (ended[0].code != 0)
    throw IoError(fmt::format("{} ended with exit code {}: {}", fmt::join(command, " "), ended[0].code,
                              ended[0].err.empty() ? ended[0].out : ended[0].err));
  return std::move(ended[0].out);
}

}  // namespace esp::app
