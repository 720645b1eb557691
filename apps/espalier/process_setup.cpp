#include "apps/espalier/process_setup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace esp::app {
namespace {

constexpr rlim_t kOpenFiles = 65536;  // some programs close every descriptor up to the limit, so it is not unlimited

}  // namespace

void set_up_process(bool starts_other_programs) {
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGXFSZ, SIG_IGN);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    // open() returns the lowest free descriptor, which is the missing one
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
  rlimit limit{};
  if (!starts_other_programs) {
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
      limit.rlim_cur = std::max(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, kOpenFiles));
      ::setrlimit(RLIMIT_NOFILE, &limit);
    }
  }
  const char* wish = std::getenv("ESPALIER_CORE");
  if (wish && std::string_view(wish) == "1") return;
  if (::getrlimit(RLIMIT_CORE, &limit) != 0) return;
  // One byte is too small for a core file. With 0 the kernel would still send the dump to a program in core_pattern;
  // with 1 it does not. Only the soft limit is lowered: a launched program may raise it again.
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 1);
  ::setrlimit(RLIMIT_CORE, &limit);
}

void ignore_closed_pipes() {
  ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace esp::app
