#include "esp/comm/call_positions.h"

#include "esp/net/inproc/fabric.h"

namespace esp::comm {

struct CallPositions::SharedPositions {
  explicit SharedPositions(int size) : positions(static_cast<size_t>(size)) {}
  std::vector<net::LiveCallPosition> positions;
};

CallPositions::CallPositions(const net::World& world, const net::Group& group) : world_(world), group_(group) {
  if (auto* fabric = net::ThreadFabric::from(world)) {
    int size = group.size();
    shared_ = std::static_pointer_cast<SharedPositions>(
        fabric->join("call_positions", group, [size] { return std::make_shared<SharedPositions>(size); }));
    mine_ = &shared_->positions[static_cast<size_t>(group.rank)];
  } else if (world.failure_detector) {
    world.failure_detector->register_position(group.id, mine_);
  }
}

CallPositions::~CallPositions() {
  if (!shared_ && world_.failure_detector) world_.failure_detector->unregister_position(group_.id);
}

std::vector<net::CallPosition> CallPositions::query(Deadline deadline) const {
  if (!shared_ && world_.failure_detector) return world_.failure_detector->query_positions(group_, deadline);
  std::vector<net::CallPosition> positions(static_cast<size_t>(group_.size()));
  for (int i = 0; i < group_.size(); ++i) {
    if (shared_) positions[static_cast<size_t>(i)] = shared_->positions[static_cast<size_t>(i)].read();
    if (!shared_ && i == group_.rank) positions[static_cast<size_t>(i)] = own_position_.read();
  }
  return positions;
}

}  // namespace esp::comm
