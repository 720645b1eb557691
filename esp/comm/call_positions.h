// Call position of every member of a group: its place in the sequence of calls. Each rank updates its own; after a
// timeout any rank can query all and name the one that is stopped, behind, or in another call.
//
// Between processes the failure detector's connection carries the query; threads of one process read the positions
// directly.
#pragma once

#include <memory>
#include <vector>

#include "esp/net/watch.h"
#include "esp/net/world.h"

namespace esp::comm {

class CallPositions {
 public:
  CallPositions(const net::World& world, const net::Group& group);
  ~CallPositions();
  CallPositions(const CallPositions&) = delete;
  CallPositions& operator=(const CallPositions&) = delete;

  net::LiveStanding& mine() { return *mine_; }
  // By group rank; at most until the deadline.
  std::vector<net::Standing> ask(Deadline deadline) const;

 private:
  struct SharedPositions;  // the positions of all threads of a group
  const net::World& world_;
  const net::Group& group_;
  std::shared_ptr<SharedPositions> board_;
  net::LiveStanding own_;
  net::LiveStanding* mine_ = &own_;
};

}  // namespace esp::comm
