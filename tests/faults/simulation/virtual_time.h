// A clock, processes and connections that are only thought of. One thread; everything that happens follows from the
// seed.
//
// An event belongs to a process and is dropped when that has died, and waits while it is stopped. A process has a clock
// of its own, which runs a little fast or slow. A connection delivers what was sent in order, in pieces cut anywhere,
// after delays that differ from piece to piece, so that connections overtake each other; it ends in order, behind what
// was sent, or is reset, and then what was under way is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/clock.h"

namespace esp::sim {

using Time = int64_t;  // microseconds since the beginning
inline constexpr Time kMs = 1000, kSecond = 1000 * kMs;

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits();
  int64_t below(int64_t bound) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound)); }
  int64_t between(int64_t least, int64_t most) { return least + below(most - least + 1); }
  bool chance(double of) { return static_cast<double>(bits() >> 11) * 0x1p-53 < of; }

 private:
  uint64_t state_;
};

struct Link;

struct Process {
  int pid = 0;
  bool alive = true;
  Time stopped_until = 0;
  double rate = 1;  // of its clock
  Time ahead = 0;   // of its clock, to begin with
  std::vector<std::weak_ptr<Link>> links;
  std::vector<std::function<void()>> at_end;  // told when it dies
};
using ProcessPtr = std::shared_ptr<Process>;

struct Side {
  ProcessPtr process;
  std::function<void(std::string_view)> on_bytes;
  std::function<void()> on_closed;
  bool open = true;
  Time last = 0;  // nothing may arrive here before
};
struct Link : std::enable_shared_from_this<Link> {
  Side sides[2];
  bool reset = false;
};
using LinkPtr = std::shared_ptr<Link>;

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random(seed) {}

  Time now() const { return now_; }
  ProcessPtr start_process();
  // Kills it: its connections end, behind what it sent or without it.
  void end(const ProcessPtr& process);
  void stop(const ProcessPtr& process, Time for_long);
  bool stopped(const Process& process) const { return now_ < process.stopped_until; }

  // What its own clock says, and an event after so long by its own clock.
  Clock::time_point local(const Process& process) const;
  void after(const ProcessPtr& process, Duration by_its_clock, std::function<void()> what);
  void at(Time when, const ProcessPtr& process, std::function<void()> what);

  LinkPtr connect(const ProcessPtr& from, const ProcessPtr& to);
  void send(const LinkPtr& link, int from, std::string_view bytes);
  void close(const LinkPtr& link, int from);
  void reset(const LinkPtr& link);
  // How long a message takes now.
  Time delay();
  // Between these two nothing arrives before then; what lasts longer than the system's patience resets connections.
  void part(const ProcessPtr& a, const ProcessPtr& b, Time for_long);
  Time parted_until(const Process& a, const Process& b) const;
  void slow_down(Time until) { slow_until_ = until; }

  // The next event; false when there is none.
  bool step();

  Random random;

 private:
  struct Event {
    Time when;
    uint64_t order;
    ProcessPtr process;
    std::function<void()> what;
    bool operator<(const Event& other) const { return when != other.when ? when > other.when : order > other.order; }
  };
  struct Parting {
    int a, b;
    Time until;
  };
  void arrive(const LinkPtr& link, int to, std::function<void(Side&)> what);

  Time now_ = 0, slow_until_ = 0;
  uint64_t next_order_ = 0;
  int next_pid_ = 1;
  std::priority_queue<Event> events_;
  std::vector<Parting> partings_;
};

}  // namespace esp::sim
