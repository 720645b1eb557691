#include "esp/comm/standings.h"

#include "esp/net/inproc/fabric.h"

namespace esp::comm {

struct Standings::Board {
  explicit Board(int size) : places(static_cast<size_t>(size)) {}
  std::vector<net::LiveStanding> places;
};

Standings::Standings(const net::World& world, const net::Group& group) : world_(world), group_(group) {
  if (auto* fabric = net::ThreadFabric::of(world)) {
    int size = group.size();
    board_ = std::static_pointer_cast<Board>(
        fabric->join("standings", group, [size] { return std::make_shared<Board>(size); }));
    mine_ = &board_->places[static_cast<size_t>(group.rank)];
  } else if (world.watch) {
    world.watch->enroll(group.id, mine_);
  }
}

Standings::~Standings() {
  if (!board_ && world_.watch) world_.watch->withdraw(group_.id);
}

std::vector<net::Standing> Standings::ask(Deadline deadline) const {
  if (!board_ && world_.watch) return world_.watch->ask(group_, deadline);
  std::vector<net::Standing> standings(static_cast<size_t>(group_.size()));
  for (int i = 0; i < group_.size(); ++i) {
    if (board_) standings[static_cast<size_t>(i)] = board_->places[static_cast<size_t>(i)].read();
    if (!board_ && i == group_.rank) standings[static_cast<size_t>(i)] = own_.read();
  }
  return standings;
}

}  // namespace esp::comm
