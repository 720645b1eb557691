// Shard groups. intra_group: the ranks that together hold all shards of one replica. inter_group: the ranks that hold
// the same shard in all groups.
//
// Without groups (group = 0 or the number of ranks) intra_group is all ranks and inter_group is null. The constructor
// is collective.
#pragma once

#include <memory>

#include "esp/sync/strategy.h"
#include "esp/sync/timed_communicator.h"

namespace esp::sync {

class ShardGroup {
 public:
  explicit ShardGroup(const Setup& setup);  // throws UsageError if sync.group does not divide the number of ranks

  TimedCommunicator& intra_group() { return intra_group_; }
  const TimedCommunicator& intra_group() const { return intra_group_; }
  bool has_replicas() const { return inter_group_.size() > 1; }
  bool is_single_rank() const { return intra_group_.size() == 1 && !has_replicas(); }
  TimedCommunicator& inter_group() { return inter_group_; }
  bool first_group() const { return inter_group_.rank() == 0; }

  std::vector<NamedGroup> groups() const;
  double exposed_ms() const { return intra_group_.exposed_ms() + inter_group_.exposed_ms(); }
  void reset_times();

 private:
  std::unique_ptr<comm::Communicator> intra_group_comm_, inter_group_comm_;
  TimedCommunicator intra_group_, inter_group_;
};

}  // namespace esp::sync
