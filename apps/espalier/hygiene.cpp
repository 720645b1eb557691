#include "apps/espalier/hygiene.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace esp::app {

void begin_with_little(bool starts_other_programs) {
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGXFSZ, SIG_IGN);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);  // takes the lowest free number, which is this one
  if (!starts_other_programs) ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  const char* wish = std::getenv("ESPALIER_CORE");
  if (wish && std::string_view(wish) == "1") return;
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = 0;  // the hard limit stays: a program that launch starts may ask for its own
  ::setrlimit(RLIMIT_CORE, &limit);
}

void ignore_closed_pipes() {
  ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace esp::app
