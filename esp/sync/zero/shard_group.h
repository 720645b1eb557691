// Shard groups: the ranks that share one set of shards, and the ranks that hold the same shard in other groups.
//
// Without groups (group = 0 or the world size) the first is all ranks and the second is null. Splitting is collective.
#pragma once

#include <memory>

#include "esp/sync/strategy.h"
#include "esp/sync/timed_communicator.h"

namespace esp::sync {

class ShardGroup {
 public:
  explicit ShardGroup(const Setup& setup);  // UsageError when group does not divide the ranks

  TimedCommunicator& inside() { return inside_; }
  const TimedCommunicator& inside() const { return inside_; }
  bool has_replicas() const { return across_.size() > 1; }
  bool alone() const { return inside_.size() == 1 && !has_replicas(); }
  TimedCommunicator& across() { return across_; }
  bool first_group() const { return across_.rank() == 0; }

  std::vector<NamedGroup> groups() const;
  double exposed_ms() const { return inside_.exposed_ms() + across_.exposed_ms(); }
  void reset_times();

 private:
  std::unique_ptr<comm::Communicator> inside_comm_, across_comm_;
  TimedCommunicator inside_, across_;
};

}  // namespace esp::sync
