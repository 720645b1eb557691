// Simulated clock, processes and connections. There is one thread; the seed determines everything.
//
// An event belongs to a process. It is dropped if the process has died, and delayed while the process is stopped. Each
// process has its own clock, which runs slightly fast or slow. A connection delivers its data in order, split at random
// positions and with random delays; data on another connection may therefore arrive earlier. A connection either closes
// in order after the sent data, or is reset, which drops data in flight.
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

using Time = int64_t;  // microseconds since the start
inline constexpr Time kMs = 1000, kSecond = 1000 * kMs;

// Random numbers by the splitmix64 generator.
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
  double rate = 1;  // speed of the process's clock; 1 is exact
  Time ahead = 0;   // initial offset of the process's clock
  std::vector<std::weak_ptr<Link>> links;
  std::vector<std::function<void()>> at_end;  // callbacks to run when the process dies
};
using ProcessPtr = std::shared_ptr<Process>;

struct Side {
  ProcessPtr process;
  std::function<void(std::string_view)> on_bytes;
  std::function<void()> on_closed;
  bool open = true;
  Time last = 0;  // the next message to this side must not arrive before this time
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
  // Kills a process. Each of its connections closes after the sent data, or is reset.
  void end(const ProcessPtr& process);
  void stop(const ProcessPtr& process, Time for_long);
  bool stopped(const Process& process) const { return now_ < process.stopped_until; }

  // local: the time on the clock of a process. after: runs `what` after a duration on that clock. at: runs `what` at a
  // time of the simulation.
  Clock::time_point local(const Process& process) const;
  void after(const ProcessPtr& process, Duration by_its_clock, std::function<void()> what);
  void at(Time when, const ProcessPtr& process, std::function<void()> what);

  LinkPtr connect(const ProcessPtr& from, const ProcessPtr& to);
  void send(const LinkPtr& link, int from, std::string_view bytes);
  void close(const LinkPtr& link, int from);
  void reset(const LinkPtr& link);
  // Returns a random delay for a message that is sent now.
  Time delay();
  // Separates two processes. If this lasts longer than the keep-alive timeout, their connections are reset.
  void partition(const ProcessPtr& a, const ProcessPtr& b, Time for_long);
  Time partitioned_until(const Process& a, const Process& b) const;
  void slow_down(Time until) { slow_until_ = until; }

  // Runs the next event; false if there is none.
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
  struct Partition {
    int a, b;
    Time until;
  };
  void arrive(const LinkPtr& link, int to, std::function<void(Side&)> what);

  Time now_ = 0, slow_until_ = 0;
  uint64_t next_order_ = 0;
  int next_pid_ = 1;
  std::priority_queue<Event> events_;
  std::vector<Partition> partitions_;
};

}  // namespace esp::sim
