#include "apps/espalier/ourselves.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/espalier/bench_job.h"
#include "apps/espalier/lab_child.h"
#include "esp/base/error.h"

namespace esp::app {

void run_ourselves(const std::vector<std::string>& arguments, Duration limit) {
  constexpr int kKilledAtDeadline = 124;
  Order order{{own_path()}, {}};
  order.command.insert(order.command.end(), arguments.begin(), arguments.end());
  Ended ended = run_together({order}, limit)[0];
  if (ended.code == 0) return;
  while (!ended.err.empty() && ended.err.back() == '\n') ended.err.pop_back();
  throw IoError(
      fmt::format("`espalier {}` {}{}", fmt::join(arguments, " "),
                  ended.code == kKilledAtDeadline ? "was not done in time" : fmt::format("ended with {}", ended.code),
                  ended.err.empty() ? "" : "; its last words:\n" + ended.err));
}

}  // namespace esp::app
