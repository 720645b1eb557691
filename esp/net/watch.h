// Watch: the side channel that notices and tells. One connection per process to the Hub (hosted by rank 0 or the
// launcher), one thread that owns it, beating every `heartbeat`.
//
// The Hub tells everybody when a connection closes («rank 3 closed its connection», within milliseconds of a kill) and
// passes on aborts; both land in this process's Fate. Peers on this host are also watched through a pidfd. When a wait
// reaches its deadline the communicator asks `diagnose`: every rank's last reported place, so the one that is stopped,
// behind, or calling something else can be named.
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

// Where a rank stands in a group, as it last said.
struct Standing {
  bool answered = false;  // false: silent since the question was put (stopped, or out of reach)
  Tag entered;            // the call it is in, or the last one it finished
  bool inside = false;    // in that call now
  uint32_t version = 0;   // another one: another call, though all else may be the same; known on this rank only
};

class Watch {
 public:
  virtual ~Watch() = default;

  // Tells every member that the group cannot go on; their Fate records it.
  virtual void abort(uint64_t group, const std::vector<int>& members, const CommError& cause) = 0;

  // Registers where this rank stands in a group: `standing` points to live memory that the watch thread reads when
  // asked. It must outlive the registration.
  virtual void enroll(uint64_t group, const class LiveStanding* standing) = 0;
  virtual void withdraw(uint64_t group) = 0;

  // Asks all members of the group where they stand; waits until all answered or are gone, or the deadline. By group
  // rank.
  virtual std::vector<Standing> ask(const Group& group, Deadline deadline) = 0;

  // Where this rank itself stands, in every group it has enrolled in, by the group's id.
  virtual std::vector<std::pair<uint64_t, Standing>> here() = 0;
};

// Written by the thread that runs a communicator's calls, read by the watch thread: a sequence lock without a lock.
class LiveStanding {
 public:
  void enter(const Tag& tag) {
    uint32_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    // Release and acquire on the fields do what fences would, and the thread sanitizer understands them.
    sequence_.store(tag.sequence, std::memory_order_release);
    what_.store(tag.what, std::memory_order_release);
    count_.store(tag.count, std::memory_order_release);
    schedule_.store(tag.schedule, std::memory_order_release);
    inside_.store(true, std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }
  void leave() { inside_.store(false, std::memory_order_relaxed); }
  Standing read() const {
    for (;;) {
      uint32_t before = version_.load(std::memory_order_acquire);
      Standing standing{true, {}, inside_.load(std::memory_order_acquire), before};
      standing.entered.sequence = sequence_.load(std::memory_order_acquire);
      standing.entered.what = what_.load(std::memory_order_acquire);
      standing.entered.count = count_.load(std::memory_order_acquire);
      standing.entered.schedule = schedule_.load(std::memory_order_acquire);
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) return standing;
    }
  }

 private:
  std::atomic<uint32_t> version_{0};
  std::atomic<uint64_t> sequence_{0}, what_{0}, count_{0};
  std::atomic<uint32_t> schedule_{0};
  std::atomic<bool> inside_{false};
};

}  // namespace esp::net
