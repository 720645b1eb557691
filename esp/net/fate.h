// Fate: what this process knows has gone wrong, shared by everything that waits.
//
// A rank lost is lost for good and dooms every group that holds it; an abort dooms one group (by its id). Waits look at
// `epoch` (one relaxed load) and call `check` when it moved. Whoever learns of a fault (a closed socket, a pidfd, the
// watch, a mismatched call) records it here, once; the first cause recorded for a group is the one all waits report.
// Any thread may call anything.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "esp/base/error.h"

namespace esp::net {

class Fate {
 public:
  uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  // Records that world rank `rank` is gone. `how` reads on from the rank: «was killed», «closed its connection».
  void lose(int rank, const std::string& how);
  // Records that group `group` cannot go on.
  void abort(uint64_t group, CommError cause);

  // Throws the cause if a member is lost or the group was aborted.
  void check(uint64_t group, const std::vector<int>& members) const;
  bool lost(int rank) const;

  // Called on every new fault, on the thread that recorded it: wakes sleepers, tells peers. The returned id unsubscribes.
  int subscribe(std::function<void()> wake);
  void unsubscribe(int id);

 private:
  void announce();

  mutable std::mutex mutex_;  // guards all below; subscribers are called with it held, so they must not call back
  std::map<int, std::string> lost_;
  std::map<uint64_t, CommError> aborted_;
  std::map<int, std::function<void()>> subscribers_;
  int next_id_ = 0;
  std::atomic<uint32_t> epoch_{0};
};

}  // namespace esp::net
