// PeerStatus: the known failures of ranks and groups, shared by all waits of a process.
//
// A lost rank stays lost, and every group that contains it fails. An abort fails one group (by id). The loss of the Hub
// fails all groups. A rank that left in order causes no failure, because its messages may still be in transit.
//
// Waits read `epoch` (one relaxed load) and call `check` after it has changed. Each detected failure (closed socket,
// pidfd, failure detector, mismatched call) is recorded here once. All waits of a group report the first recorded
// cause. Any thread may call any method.
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

class PeerStatus {
 public:
  uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  // Records that world rank `rank` is lost. `how` continues the sentence after the rank: «was killed», «closed its
  // connection».
  void mark_lost(int rank, const std::string& how);
  // Records that group `group` has failed.
  void abort(uint64_t group, CommError cause);

  // Records that world rank `rank` left in order. It sent all its messages before.
  void mark_left(int rank);
  // Records that all groups have failed, because further rank failures would not be reported. Also marks rank `lost` as
  // lost in the same step: no thread can see that loss while another group still passes `check`.
  void fail_all(CommError cause, std::optional<int> lost, const std::string& how);

  // Throws the cause if a member is lost or the group was aborted.
  void check(uint64_t group, const std::vector<int>& members) const;
  bool is_lost(int rank) const;
  // How the rank was lost; empty if it was not.
  std::string loss_reason(int rank) const;
  // Whether the rank left in order. A receive from it fails once its sent messages are consumed.
  bool has_left(int rank) const;
  // The error for a wait on a rank that has left. It names an earlier lost rank if there is one, because a rank that
  // stops due to another's failure leaves in order.
  CommError peer_left_error(int rank) const;
  // For the start of a call: `check`, plus an error if a member has left.
  void check_present(uint64_t group, const std::vector<int>& members) const;

  // Registers a callback for every new failure; it runs on the thread that records it (wakes waiters, notifies peers).
  // Returns an id for `unsubscribe`.
  int subscribe(std::function<void()> wake);
  void unsubscribe(int id);

 private:
  void notify_subscribers();
  CommError peer_left_error_locked(int rank) const;
  void check_locked(uint64_t group, const std::vector<int>& members) const;

  // Guards the members below. It is locked during callbacks, so a callback must not call this object.
  mutable std::mutex mutex_;
  std::map<int, std::string> lost_;
  std::set<int> left_;
  std::optional<CommError> all_failed_;
  std::map<uint64_t, CommError> aborted_;
  std::map<int, std::function<void()>> subscribers_;
  int next_id_ = 0;
  std::atomic<uint32_t> epoch_{0};
};

}  // namespace esp::net
