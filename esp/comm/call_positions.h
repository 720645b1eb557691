// Call positions: for every member of a group, the last call it entered. Each rank publishes its own position. After a
// timeout any rank can query all positions and name the rank that is stopped, behind, or in a different call.
//
// Between processes the query uses the failure detector's connection. Threads of one process read the positions
// directly.
#pragma once

#include <memory>
#include <vector>

#include "esp/net/failure_detector.h"
#include "esp/net/world.h"

namespace esp::comm {

class CallPositions {
 public:
  CallPositions(const net::World& world, const net::Group& group);
  ~CallPositions();
  CallPositions(const CallPositions&) = delete;
  CallPositions& operator=(const CallPositions&) = delete;

  net::LiveCallPosition& mine() { return *mine_; }
  // Returns the positions of all members, indexed by group rank. Blocks until every member has answered or the deadline
  // has passed.
  std::vector<net::CallPosition> query(Deadline deadline) const;

 private:
  struct SharedPositions;  // positions of all members, when the members are threads of one process
  const net::World& world_;
  const net::Group& group_;
  std::shared_ptr<SharedPositions> shared_;
  net::LiveCallPosition own_position_;
  net::LiveCallPosition* mine_ = &own_position_;
};

}  // namespace esp::comm
