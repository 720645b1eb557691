#include <fmt/format.h>

#include "tests/faults/simulation/schedules.h"
#include "tests/faults/simulation/truth.h"
#include "tests/faults/simulation/virtual_launcher.h"

namespace esp::sim {
namespace {

// From the last fault's end: a collective's minute, twice the launcher's patience, a meeting, and the steps; twice
// over.
constexpr Time kBound = 400 * kSecond;
constexpr Time kAliveAfter = 2 * kSecond;  // ranks of a launcher that was killed

class Schedule {
 public:
  Schedule(uint64_t seed, const Broken& broken, bool told)
      : told_(told),
        simulation_(seed),
        truth_(simulation_, ranks_drawn(), kSnapshotEvery),
        place_{simulation_,    truth_, broken, num_ranks_, simulation_.random.between(8, 30),
               kSnapshotEvery, {},     {},     {},         false},
        launcher_(place_, static_cast<int>(simulation_.random.between(1, 8))) {
    if (told_) place_.note = [this](const std::string& what) { note("{}", what); };
    place_.see_each_other_end = simulation_.random.chance(0.5);
    const int64_t num_faults = simulation_.random.below(6);
    const Time usual = 500 * kMs + place_.num_steps * 90 * kMs;  // what the job takes in peace
    Time last = 0;
    for (int64_t i = 0; i < num_faults; ++i) {
      // Half of them while the one before is being mended.
      const bool close = i > 0 && simulation_.random.chance(0.5);
      const Time when = close ? last + simulation_.random.between(0, 2 * kSecond) : simulation_.random.below(usual);
      last = when;
      simulation_.at(when, nullptr, [this] { strike(); });
      quiet_from_ = std::max(quiet_from_, when);
    }
  }

  Outcome run() {
    while (!over() && simulation_.step()) {
      ++outcome_.num_events;
      if (truth_.broken()) break;
      if (simulation_.now() > quiet_from_ + kBound) {
        truth_.broken("no end but this: {} s after the last fault the job has made {} of {} steps and does not end",
                      kBound / kSecond, truth_.newest_step(), place_.num_steps);
        break;
      }
    }
    if (!truth_.broken()) judge_end();
    outcome_.broken = truth_.broken();
    outcome_.finished = launcher_.end() == launch::Then::ended;
    outcome_.num_reforms = launcher_.num_reforms();
    outcome_.num_restarts = launcher_.num_restarts();
    outcome_.virtual_ms = simulation_.now() / kMs;
    note("the end: {} of {} steps, {} rounds begun again, {} in place", truth_.newest_step(), place_.num_steps,
         outcome_.num_restarts, outcome_.num_reforms);
    return outcome_;
  }

 private:
  static constexpr int64_t kSnapshotEvery = 4;

  int ranks_drawn() { return num_ranks_ = static_cast<int>(simulation_.random.between(2, 5)); }

  bool over() const {
    if (!launcher_.process()->alive) return simulation_.now() > died_at_ + kAliveAfter;
    return launcher_.end().has_value();
  }

  void judge_end() {
    if (const int alive = truth_.num_alive(); alive > 0)
      truth_.broken("no end but this: the job has ended and {} of its processes live", alive);
    if (!launcher_.process()->alive) return;
    judge_rung();
    if (!launcher_.end()) return truth_.broken("no end but this: nothing happens any more");
    if (*launcher_.end() == launch::Then::ended && truth_.newest_step() != place_.num_steps)
      truth_.broken("no end but this: the job ended well after {} of {} steps", truth_.newest_step(), place_.num_steps);
    if (*launcher_.end() == launch::Then::failed && !launcher_.may_give_up())
      truth_.broken("no end but this: the job gave up with restarts left");
  }

  // One rank killed, or stopped for good, while all work, and nothing else: the others keep their processes, and soon.
  void judge_rung() {
    if (num_struck_ != 1 || lone_at_ < 0) return;
    if (launcher_.num_starts() != 1)
      truth_.broken("nearest rung: one rank was lost while all worked, and all were started again");
    const Time most = lone_takes_ + 5 * kSecond + place_.num_steps * 150 * kMs;
    if (simulation_.now() - lone_at_ > most)
      truth_.broken("nearest rung: one rank was lost while all worked, and the job took {} ms more",
                    (simulation_.now() - lone_at_) / kMs);
  }
  // The fault that strikes now; `takes`: until others can know of it.
  void lone(Time takes) {
    const bool all_work = truth_.newest_step() >= 1 && truth_.newest_step() + 2 < place_.num_steps;
    lone_at_ = all_work ? simulation_.now() : -1;
    lone_takes_ = takes;
  }

  template <typename... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) {
    if (told_)
      fmt::print(stderr, "{:10.6f} s  {}\n", static_cast<double>(simulation_.now()) / kSecond,
                 fmt::format(text, std::forward<Args>(args)...));
  }

  // From a moment to longer than any patience there is.
  Time some_time() {
    static constexpr Time kMost[] = {200 * kMs, 3 * kSecond, 15 * kSecond, 100 * kSecond};
    return simulation_.random.between(kMs, kMost[simulation_.random.below(4)]);
  }
  void quiet_after(Time when) { quiet_from_ = std::max(quiet_from_, when); }

  void strike() {
    if (!launcher_.process()->alive || launcher_.end()) return;
    const int index = static_cast<int>(simulation_.random.below(num_ranks_));
    VirtualRank* const rank = launcher_.rank(index);
    const int64_t draw = simulation_.random.below(100);
    if (draw < 30) {
      count("killed");
      lone(0);
      note("rank {} is killed", index);
      simulation_.end(rank->process());
    } else if (draw < 45) {
      const Time takes = some_time();
      count("stopped");
      // A minute until a collective gives up, ten seconds until the launcher does, and a bye that nobody hears.
      if (takes > 90 * kSecond) lone(80 * kSecond);
      note("rank {} is stopped for {} ms", index, takes / kMs);
      simulation_.stop(rank->process(), takes);
      quiet_after(simulation_.now() + takes);
    } else if (draw < 60) {
      const auto links = rank->links();
      if (links.empty()) return;
      count("connection reset");
      note("a connection of rank {} is reset", index);
      simulation_.reset(links[static_cast<size_t>(simulation_.random.below(static_cast<int64_t>(links.size())))]);
    } else if (draw < 72) {
      const Time takes = std::min(some_time(), 30 * kSecond);
      count("parted");
      note("rank {} and the launcher are parted for {} ms", index, takes / kMs);
      simulation_.part(rank->process(), launcher_.process(), takes);
      quiet_after(simulation_.now() + takes);
    } else if (draw < 80) {
      const Time takes = std::min(some_time(), 20 * kSecond);
      count("launcher stopped");
      note("the launcher is stopped for {} ms", takes / kMs);
      simulation_.stop(launcher_.process(), takes);
      quiet_after(simulation_.now() + takes);
    } else if (draw < 88) {
      const Time takes = std::min(some_time(), 10 * kSecond);
      count("slow network");
      note("the network is slow for {} ms", takes / kMs);
      simulation_.slow_down(simulation_.now() + takes);
      quiet_after(simulation_.now() + takes);
    } else if (draw < 93) {
      count("slow disk");
      note("the disk is slow from now on");
      place_.disk_is_slow = true;
    } else if (draw < 97) {
      const int code = simulation_.random.chance(0.8) ? 1 : 2;
      count("failed");
      note("rank {} ends with code {}", index, code);
      simulation_.at(simulation_.now(), rank->process(), [rank, code] { rank->fail(code); });
    } else {
      count("launcher killed");
      note("the launcher is killed");
      died_at_ = simulation_.now();
      simulation_.end(launcher_.process());
    }
  }
  void count(const char* kind) {
    ++outcome_.faults[kind];
    ++num_struck_;
  }

  const bool told_;
  Outcome outcome_;
  Simulation simulation_;
  int num_ranks_ = 0;
  Truth truth_;
  Place place_;
  VirtualLauncher launcher_;
  Time quiet_from_ = 0, died_at_ = 0, lone_at_ = -1, lone_takes_ = 0;
  int num_struck_ = 0;
};

}  // namespace

Outcome run_job(uint64_t seed, const Broken& broken, bool told) {
  return Schedule(seed, broken, told).run();
}

}  // namespace esp::sim
