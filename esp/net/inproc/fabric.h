// ThreadFabric: what the ranks of one process share. World::in_process points to one.
//
// Transports of these ranks meet here: the members' n-th opening of a group joins the same state, made by whoever comes
// first and owned by those who joined. Any thread may call.
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

class VirtualNetwork;  // net/virtual/network.h

class ThreadFabric {
 public:
  explicit ThreadFabric(std::shared_ptr<VirtualNetwork> network = nullptr) : network_(std::move(network)) {}

  // `kind` keeps transports apart that meet in one group.
  std::shared_ptr<void> join(const std::string& kind, const Group& group,
                             const std::function<std::shared_ptr<void>()>& make);

  // Null unless the world was made with a virtual clock.
  const std::shared_ptr<VirtualNetwork>& network() const { return network_; }

  // The fabric of this world, null when its ranks are processes.
  static ThreadFabric* of(const World& world) { return static_cast<ThreadFabric*>(world.in_process.get()); }

 private:
  struct Meeting {
    std::shared_ptr<void> state;
    int num_joined = 0;
  };
  const std::shared_ptr<VirtualNetwork> network_;
  std::mutex mutex_;                                                         // guards all below
  std::map<std::tuple<std::string, uint64_t, int>, uint64_t> opened_;        // kind, group, member: how often so far
  std::map<std::tuple<std::string, uint64_t, uint64_t>, Meeting> meetings_;  // kind, group, which opening
};

}  // namespace esp::net
