#include "esp/net/transport.h"

#include <numeric>

namespace esp::net {

Traffic Transport::total() const {
  Traffic sum;
  for (const Traffic& traffic : traffic_) {
    sum.bytes_sent += traffic.bytes_sent;
    sum.bytes_received += traffic.bytes_received;
    sum.messages_sent += traffic.messages_sent;
    sum.messages_received += traffic.messages_received;
    sum.header_bytes_sent += traffic.header_bytes_sent;
  }
  return sum;
}

bool Transport::check_peer_status() {
  uint32_t epoch = world_.peer_status->epoch();
  if (epoch == epoch_) return false;
  try {
    world_.peer_status->check(group_.id, group_.members);
  } catch (...) {
    abandon();
    throw;
  }
  epoch_ = epoch;
  return true;
}

Group World::world_group() const {
  Group group;
  group.members.resize(static_cast<size_t>(size));
  std::iota(group.members.begin(), group.members.end(), 0);
  group.rank = rank;
  return group;
}

}  // namespace esp::net
