#include <fmt/format.h>

#include "tests/faults/simulation/invariant_checker.h"
#include "tests/faults/simulation/schedules.h"
#include "tests/faults/simulation/virtual_launcher.h"

namespace esp::sim {
namespace {

// The job must end within this time after its last fault. It is twice the sum of: the collective timeout (60 s), twice
// the launcher's timeout, a rendezvous, and the steps.
constexpr Time kBound = 400 * kSecond;
constexpr Time kAliveAfter = 2 * kSecond;  // time within which ranks must end after their launcher was killed

class Schedule {
 public:
  Schedule(uint64_t seed, const InjectedBugs& bugs, bool verbose)
      : verbose_(verbose),
        simulation_(seed),
        invariants_(simulation_, draw_num_ranks(), kSnapshotEvery),
        shared_{simulation_,    invariants_, bugs, num_ranks_, simulation_.random.between(8, 30),
                kSnapshotEvery, {},          {},   {},         false},
        launcher_(shared_, static_cast<int>(simulation_.random.between(1, 8))) {
    if (verbose_) shared_.note = [this](const std::string& what) { note("{}", what); };
    shared_.detect_local_exits = simulation_.random.chance(0.5);
    const int64_t num_faults = simulation_.random.below(6);
    const Time usual = 500 * kMs + shared_.num_steps * 90 * kMs;  // duration of the job without faults
    Time last = 0;
    for (int64_t i = 0; i < num_faults; ++i) {
      // Half of the faults happen during the recovery from the previous fault.
      const bool close = i > 0 && simulation_.random.chance(0.5);
      const Time when = close ? last + simulation_.random.between(0, 2 * kSecond) : simulation_.random.below(usual);
      last = when;
      simulation_.at(when, nullptr, [this] { inject_fault(); });
      last_fault_end_ = std::max(last_fault_end_, when);
    }
  }

  ScheduleResult run() {
    while (!over() && simulation_.step()) {
      ++outcome_.num_events;
      if (invariants_.violation()) break;
      if (simulation_.now() > last_fault_end_ + kBound) {
        invariants_.violation(
            "termination: {} s after the last fault the job has completed {} of {} steps and still runs",
            kBound / kSecond, invariants_.newest_step(), shared_.num_steps);
        break;
      }
    }
    if (!invariants_.violation()) check_end();
    outcome_.violation = invariants_.violation();
    outcome_.finished = launcher_.end() == launch::NextAction::finish;
    outcome_.num_in_place_restarts = launcher_.num_in_place_restarts();
    outcome_.num_restarts = launcher_.num_restarts();
    outcome_.virtual_ms = simulation_.now() / kMs;
    note("end of the job: {} of {} steps completed; {} rounds restarted, {} of them in place",
         invariants_.newest_step(), shared_.num_steps, outcome_.num_restarts, outcome_.num_in_place_restarts);
    return outcome_;
  }

 private:
  static constexpr int64_t kSnapshotEvery = 4;

  int draw_num_ranks() { return num_ranks_ = static_cast<int>(simulation_.random.between(2, 5)); }

  bool over() const {
    if (!launcher_.process()->alive) return simulation_.now() > died_at_ + kAliveAfter;
    return launcher_.end().has_value();
  }

  void check_end() {
    if (const int alive = invariants_.num_alive(); alive > 0)
      invariants_.violation("termination: the job has ended, but {} of its processes still run", alive);
    if (!launcher_.process()->alive) return;
    check_nearest_source();
    if (!launcher_.end()) return invariants_.violation("termination: no events are left");
    if (*launcher_.end() == launch::NextAction::finish && invariants_.newest_step() != shared_.num_steps)
      invariants_.violation("termination: the job succeeded after {} of {} steps", invariants_.newest_step(),
                            shared_.num_steps);
    if (*launcher_.end() == launch::NextAction::fail && !launcher_.may_give_up())
      invariants_.violation("termination: the job gave up with restarts left");
  }

  // Checks the case of a single fault: one rank was killed or stopped for good while all ranks worked. The other ranks
  // must keep their processes, and the job must resume soon.
  void check_nearest_source() {
    if (num_faults_ != 1 || single_fault_at_ < 0) return;
    if (launcher_.num_starts() != 1)
      invariants_.violation("nearest source: one rank was lost while all ranks worked, but all ranks were restarted");
    const Time most = single_fault_detection_ + 5 * kSecond + shared_.num_steps * 150 * kMs;
    if (simulation_.now() - single_fault_at_ > most)
      invariants_.violation(
          "nearest source: one rank was lost while all ranks worked, but the job ended only {} ms later",
          (simulation_.now() - single_fault_at_) / kMs);
  }
  // Records the current fault as a candidate for check_nearest_source. `takes`: time until other ranks can detect the
  // fault.
  void note_single_fault(Time takes) {
    const bool all_work = invariants_.newest_step() >= 1 && invariants_.newest_step() + 2 < shared_.num_steps;
    single_fault_at_ = all_work ? simulation_.now() : -1;
    single_fault_detection_ = takes;
  }

  template <typename... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) {
    if (verbose_)
      fmt::print(stderr, "{:10.6f} s  {}\n", static_cast<double>(simulation_.now()) / kSecond,
                 fmt::format(text, std::forward<Args>(args)...));
  }

  // A random duration: from 1 ms to longer than any timeout.
  Time random_duration() {
    static constexpr Time kMost[] = {200 * kMs, 3 * kSecond, 15 * kSecond, 100 * kSecond};
    return simulation_.random.between(kMs, kMost[simulation_.random.below(4)]);
  }
  void extend_last_fault(Time when) { last_fault_end_ = std::max(last_fault_end_, when); }

  void inject_fault() {
    if (!launcher_.process()->alive || launcher_.end()) return;
    const int index = static_cast<int>(simulation_.random.below(num_ranks_));
    VirtualRank* const rank = launcher_.rank(index);
    const int64_t draw = simulation_.random.below(100);
    if (draw < 30) {
      count("killed");
      note_single_fault(0);
      note("rank {} is killed", index);
      simulation_.end(rank->process());
    } else if (draw < 45) {
      const Time takes = random_duration();
      count("stopped");
      // Time until a stopped rank is replaced: collective timeout 60 s, launcher timeout 10 s, and a bye without a
      // reply.
      if (takes > 90 * kSecond) note_single_fault(80 * kSecond);
      note("rank {} is stopped for {} ms", index, takes / kMs);
      simulation_.stop(rank->process(), takes);
      extend_last_fault(simulation_.now() + takes);
    } else if (draw < 60) {
      const auto links = rank->links();
      if (links.empty()) return;
      count("connection reset");
      note("a connection of rank {} is reset", index);
      simulation_.reset(links[static_cast<size_t>(simulation_.random.below(static_cast<int64_t>(links.size())))]);
    } else if (draw < 72) {
      const Time takes = std::min(random_duration(), 30 * kSecond);
      count("partitioned");
      note("rank {} and the launcher are partitioned for {} ms", index, takes / kMs);
      simulation_.partition(rank->process(), launcher_.process(), takes);
      extend_last_fault(simulation_.now() + takes);
    } else if (draw < 80) {
      const Time takes = std::min(random_duration(), 20 * kSecond);
      count("launcher stopped");
      note("the launcher is stopped for {} ms", takes / kMs);
      simulation_.stop(launcher_.process(), takes);
      extend_last_fault(simulation_.now() + takes);
    } else if (draw < 88) {
      const Time takes = std::min(random_duration(), 10 * kSecond);
      count("slow network");
      note("the network is slow for {} ms", takes / kMs);
      simulation_.slow_down(simulation_.now() + takes);
      extend_last_fault(simulation_.now() + takes);
    } else if (draw < 93) {
      count("slow disk");
      note("the disk is slow from now on");
      shared_.disk_is_slow = true;
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
    ++num_faults_;
  }

  const bool verbose_;
  ScheduleResult outcome_;
  Simulation simulation_;
  int num_ranks_ = 0;
  InvariantChecker invariants_;
  SimulatedJob shared_;
  VirtualLauncher launcher_;
  Time last_fault_end_ = 0, died_at_ = 0, single_fault_at_ = -1, single_fault_detection_ = 0;
  int num_faults_ = 0;
};

}  // namespace

ScheduleResult run_job(uint64_t seed, const InjectedBugs& bugs, bool verbose) {
  return Schedule(seed, bugs, verbose).run();
}

}  // namespace esp::sim
