#include "apps/espalier/hygiene.h"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <cstdlib>
#include <string_view>

namespace esp::app {

void begin_with_little(bool starts_other_programs) {
  if (!starts_other_programs) ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  const char* wish = std::getenv("ESPALIER_CORE");
  if (wish && std::string_view(wish) == "1") return;
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = 0;  // the hard limit stays: a program that launch starts may ask for its own
  ::setrlimit(RLIMIT_CORE, &limit);
}

}  // namespace esp::app
