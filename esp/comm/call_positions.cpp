#include "esp/comm/call_positions.h"

#include "esp/net/inproc/fabric.h"

namespace esp::comm {

struct CallPositions::SharedPositions {
  explicit SharedPositions(int size) : places(static_cast<size_t>(size)) {}
  std::vector<net::LiveStanding> places;
};

CallPositions::CallPositions(const net::World& world, const net::Group& group) : world_(world), group_(group) {
  if (auto* fabric = net::ThreadFabric::of(world)) {
    int size = group.size();
    board_ = std::static_pointer_cast<SharedPositions>(
        fabric->join("standings", group, [size] { return std::make_shared<SharedPositions>(size); }));
    mine_ = &board_->places[static_cast<size_t>(group.rank)];
  } else if (world.watch) {
    world.watch->enroll(group.id, mine_);
  }
}

CallPositions::~CallPositions() {
  if (!board_ && world_.watch) world_.watch->withdraw(group_.id);
}

std::vector<net::Standing> CallPositions::ask(Deadline deadline) const {
  if (!board_ && world_.watch) return world_.watch->ask(group_, deadline);
  std::vector<net::Standing> positions(static_cast<size_t>(group_.size()));
  for (int i = 0; i < group_.size(); ++i) {
    if (board_) positions[static_cast<size_t>(i)] = board_->places[static_cast<size_t>(i)].read();
    if (!board_ && i == group_.rank) positions[static_cast<size_t>(i)] = own_.read();
  }
  return positions;
}

}  // namespace esp::comm
