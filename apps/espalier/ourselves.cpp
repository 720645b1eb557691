#include "apps/espalier/ourselves.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/espalier/bench_job.h"
#include "esp/base/error.h"
#include "esp/launch/spawn.h"

namespace esp::app {

void run_ourselves(const std::vector<std::string>& arguments, Duration limit) {
  launch::SpawnOptions options;
  options.command = {own_path()};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  options.environment = launch::process_environment();
  options.capture_stdout = options.capture_stderr = false;
  const launch::Child child = launch::spawn(options);
  const Deadline deadline = Deadline::after(limit);
  pollfd ended{child.pidfd.fd(), POLLIN, 0};
  while (::poll(&ended, 1, deadline.left_ms()) <= 0 && !deadline.passed()) {
  }
  if (ended.revents == 0) ::kill(-child.pid, SIGKILL);
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  if (ended.revents == 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw IoError(fmt::format("espalier {} did not come to its end", fmt::join(arguments, " ")));
}

}  // namespace esp::app
