// Where every member of a group stands in its sequence of calls. Each rank writes its own place as it goes; when a
// deadline passes, anyone can ask for all of them and name the rank that is stopped, behind, or somewhere else.
//
// Between processes the watch carries the question; threads of one process read each other's places directly.
#pragma once

#include <memory>
#include <vector>

#include "esp/net/watch.h"
#include "esp/net/world.h"

namespace esp::comm {

class Standings {
 public:
  Standings(const net::World& world, const net::Group& group);
  ~Standings();
  Standings(const Standings&) = delete;
  Standings& operator=(const Standings&) = delete;

  net::LiveStanding& mine() { return *mine_; }
  // By group rank; at most until the deadline.
  std::vector<net::Standing> ask(Deadline deadline) const;

 private:
  struct Board;  // the places of all threads of a group
  const net::World& world_;
  const net::Group& group_;
  std::shared_ptr<Board> board_;
  net::LiveStanding own_;
  net::LiveStanding* mine_ = &own_;
};

}  // namespace esp::comm
