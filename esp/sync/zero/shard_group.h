// The ranks that share one set of shards, and the ranks that hold the same shard in other groups.
//
// Without groups (group = 0 or the world's size) the first is everybody and the second nobody. Splitting is collective.
#pragma once

#include <memory>

#include "esp/sync/ranks.h"
#include "esp/sync/strategy.h"

namespace esp::sync {

class ShardGroup {
 public:
  explicit ShardGroup(const Setup& setup);  // UsageError when group does not divide the ranks

  Ranks& inside() { return inside_; }
  const Ranks& inside() const { return inside_; }
  bool has_others() const { return across_.size() > 1; }
  bool alone() const { return inside_.size() == 1 && !has_others(); }
  Ranks& across() { return across_; }
  bool first_group() const { return across_.rank() == 0; }

  std::vector<Group> groups() const;
  double exposed_ms() const { return inside_.exposed_ms() + across_.exposed_ms(); }
  void forget_times();

 private:
  std::unique_ptr<comm::Communicator> inside_comm_, across_comm_;
  Ranks inside_, across_;
};

}  // namespace esp::sync
