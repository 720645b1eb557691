#include "apps/espalier/self_exec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/espalier/bench_job.h"
#include "apps/espalier/lab_child.h"
#include "esp/base/error.h"

namespace esp::app {

void run_self(const std::vector<std::string>& arguments, Duration limit) {
  constexpr int kKilledAtDeadline = 124;
  ChildCommand order{{executable_path()}, {}};
  order.command.insert(order.command.end(), arguments.begin(), arguments.end());
  ChildResult result = run_children({order}, limit)[0];
  if (result.code == 0) return;
  while (!result.err.empty() && result.err.back() == '\n') result.err.pop_back();
  throw IoError(fmt::format("`espalier {}` {}{}", fmt::join(arguments, " "),
                            result.code == kKilledAtDeadline ? "exceeded its time limit"
                                                             : fmt::format("ended with exit code {}", result.code),
                            result.err.empty() ? "" : "; its last output:\n" + result.err));
}

}  // namespace esp::app
