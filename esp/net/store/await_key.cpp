#include "esp/base/error.h"
#include "esp/net/store.h"
#include "esp/net/world.h"

namespace esp::net {

std::string await_key(const World& world, const Group& group, std::string_view key, Deadline deadline) {
  // Short waits in a row, since a fault does not wake a store.
  constexpr auto kGlance = std::chrono::milliseconds(50);
  for (;;) {
    world.fate->check(group.id, group.members);
    try {
      return world.store->get(key, deadline.earlier(kGlance));
    } catch (const CommError& error) {
      if (error.kind() != CommError::Kind::timeout || deadline.passed()) throw;
    }
  }
}

}  // namespace esp::net
