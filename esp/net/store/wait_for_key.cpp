#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/net/link.h"
#include "esp/net/store.h"
#include "esp/net/world.h"

namespace esp::net {
namespace {

std::string text_of_wait(const World& world, const Group& group, int from, Clock::time_point begun) {
  const double waited = std::chrono::duration<double>(Clock::now() - begun).count();
  if (from >= 0)
    return fmt::format("rank {} on host {} did not respond within {:.3g} s. Look at its output", from,
                       host_name(world.peers[static_cast<size_t>(from)].host), waited);
  return fmt::format("ranks {}: not all responded within {:.3g} s. Look at their output",
                     fmt::join(group.members, ", "), waited);
}

}  // namespace

std::string wait_for_key(const World& world, const Group& group, std::string_view key, int from, Deadline deadline) {
  // The wait consists of short waits of this length, because a failure does not wake a thread that waits in the store.
  constexpr auto kPollInterval = std::chrono::milliseconds(50);
  const auto begun = Clock::now();
  for (;;) {
    world.peer_status->check(group.id, group.members);
    try {
      return world.store->get(key, deadline.earlier(kPollInterval));
    } catch (const CommError& error) {
      if (error.kind() != CommError::Kind::timeout) throw;
      if (deadline.passed()) throw CommError(CommError::Kind::timeout, from, text_of_wait(world, group, from, begun));
    }
  }
}

}  // namespace esp::net
