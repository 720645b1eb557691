// Fate: what this process knows has gone wrong, shared by everything that waits.
//
// A rank lost is lost for good and dooms every group that holds it; an abort dooms one group (by its id); the hub's
// death dooms them all. A rank that left in order dooms nothing by itself: what it sent may still be on its way. Waits
// look at `epoch` (one relaxed load) and call `check` when it moved. Whoever learns of a fault (a closed socket, a
// pidfd, the watch, a mismatched call) records it here, once; the first cause recorded for a group is the one all waits
// report. Any thread may call anything.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
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

  // Records that world rank `rank` ended in order. Everything it sent was sent before.
  void leave(int rank);
  // Records that no group can go on: nobody would hear of further losses. Whoever's death it was is lost in the same
  // breath, so that nobody who learns of the loss still finds a group that may go on.
  void doom(CommError cause, std::optional<int> lost, const std::string& how);

  // Throws the cause if a member is lost or the group was aborted.
  void check(uint64_t group, const std::vector<int>& members) const;
  bool lost(int rank) const;
  // How it was lost; empty when it was not.
  std::string loss(int rank) const;
  // A receive from a rank that has left, with nothing of it left to read, can only end in an error.
  bool left(int rank) const;
  // Why nothing more will come of a rank that has left: the rank lost before it did, if there is one, since a rank that
  // ends because of another's death leaves in order.
  CommError gone(int rank) const;
  // For the start of a call: like check, and throws as well if a member has left.
  void check_present(uint64_t group, const std::vector<int>& members) const;

  // Called on every new fault, on the thread that recorded it: wakes sleepers, tells peers. The returned id
  // unsubscribes.
  int subscribe(std::function<void()> wake);
  void unsubscribe(int id);

 private:
  void announce();
  CommError gone_locked(int rank) const;
  void check_locked(uint64_t group, const std::vector<int>& members) const;

  mutable std::mutex mutex_;  // guards all below; subscribers are called with it held, so they must not call back
  std::map<int, std::string> lost_;
  std::set<int> left_;
  std::optional<CommError> doomed_;
  std::map<uint64_t, CommError> aborted_;
  std::map<int, std::function<void()>> subscribers_;
  int next_id_ = 0;
  std::atomic<uint32_t> epoch_{0};
};

}  // namespace esp::net
