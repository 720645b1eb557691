// ThreadFabric: state shared by the ranks of one process. World::thread_fabric points to it.
//
// The transports of these ranks share state through it: the n-th opening of a group by each member joins the same
// state. The first member creates it; all members that joined own it. Any thread may call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "esp/net/world.h"

namespace esp::net {

class VirtualNetwork;  // defined in net/virtual/network.h

class ThreadFabric {
 public:
  explicit ThreadFabric(std::shared_ptr<VirtualNetwork> network = nullptr) : network_(std::move(network)) {}

  // Returns the state shared by this opening of the group; `make` creates it for the first member. `kind` separates
  // transports that open the same group.
  std::shared_ptr<void> join(const std::string& kind, const Group& group,
                             const std::function<std::shared_ptr<void>()>& make);

  // Null unless the world was created with a virtual clock.
  const std::shared_ptr<VirtualNetwork>& network() const { return network_; }

  // The fabric of this world; null if its ranks are processes.
  static ThreadFabric* from(const World& world) { return static_cast<ThreadFabric*>(world.thread_fabric.get()); }

 private:
  struct SharedEntry {
    std::shared_ptr<void> state;
    int num_joined = 0;
  };
  const std::shared_ptr<VirtualNetwork> network_;
  std::mutex mutex_;  // guards the members below
  // number of openings so far; key: kind, group, member
  std::map<std::tuple<std::string, uint64_t, int>, uint64_t> opened_;
  // key: kind, group, number of the opening (0 for the first)
  std::map<std::tuple<std::string, uint64_t, uint64_t>, SharedEntry> entries_;
};

}  // namespace esp::net
