// FailureDetector: detects a rank failure (a rank that is killed, crashes or loses its host) and reports it to all
// ranks.
//
// Detection: each process has one connection to the Hub (hosted by rank 0 or the launcher) and one thread that owns the
// connection and sends a heartbeat at the interval NetOptions::heartbeat. A rank failure closes the connection. Ranks
// on the same host also monitor each other through pidfds.
//
// Report: the Hub reports a rank failure to all ranks within milliseconds («rank 3 closed its connection») and forwards
// aborts. This process records both in its PeerStatus, where every wait checks for rank failures.
//
// Diagnosis: when a wait reaches its deadline without a rank failure, the communicator queries the call position of
// every rank (comm/diagnosis.h), so that the error names the rank that is stopped, behind, or in a different call.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/net/transport.h"

namespace esp::net {

// Which call of a group a rank is in, as that rank last reported it.
struct CallPosition {
  bool answered = false;  // false: no reply to the query (stopped or unreachable)
  Tag entered;            // tag of the current call, or of the last finished call
  bool inside = false;    // true if the call `entered` has not finished
  uint32_t version = 0;   // changes with every call, even if two calls have equal tags; not sent to other ranks
};

class FailureDetector {
 public:
  virtual ~FailureDetector() = default;

  // Aborts the group on every member; their PeerStatus records the cause.
  virtual void abort(uint64_t group, const std::vector<int>& members, const CommError& cause) = 0;

  // Registers this rank's call position in a group. The detector's thread reads `position` when another rank queries
  // it. `position` must outlive the registration.
  virtual void register_position(uint64_t group, const class LiveCallPosition* position) = 0;
  virtual void unregister_position(uint64_t group) = 0;

  // Queries the call positions of all members of the group. Returns them by group rank as soon as every member has
  // replied, failed or left, and at the latest at the deadline.
  virtual std::vector<CallPosition> query_positions(const Group& group, Deadline deadline) = 0;

  // The call positions of this rank in all registered groups, with the group ids.
  virtual std::vector<std::pair<uint64_t, CallPosition>> local_positions() = 0;
};

// The call position of this rank. The thread that runs the communicator's calls writes it; the detector's thread reads
// it. A sequence lock protects it.
class LiveCallPosition {
 public:
  void enter(const Tag& tag) {
    uint32_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    // Release stores and acquire loads replace the fences of a sequence lock, because the thread sanitizer understands
    // them.
    sequence_.store(tag.sequence, std::memory_order_release);
    what_.store(tag.what, std::memory_order_release);
    count_.store(tag.count, std::memory_order_release);
    schedule_.store(tag.schedule, std::memory_order_release);
    inside_.store(true, std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }
  void leave() { inside_.store(false, std::memory_order_relaxed); }
  CallPosition read() const {
    for (;;) {
      uint32_t before = version_.load(std::memory_order_acquire);
      CallPosition position{true, {}, inside_.load(std::memory_order_acquire), before};
      position.entered.sequence = sequence_.load(std::memory_order_acquire);
      position.entered.what = what_.load(std::memory_order_acquire);
      position.entered.count = count_.load(std::memory_order_acquire);
      position.entered.schedule = schedule_.load(std::memory_order_acquire);
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) return position;
    }
  }

 private:
  std::atomic<uint32_t> version_{0};
  std::atomic<uint64_t> sequence_{0}, what_{0}, count_{0};
  std::atomic<uint32_t> schedule_{0};
  std::atomic<bool> inside_{false};
};

}  // namespace esp::net
