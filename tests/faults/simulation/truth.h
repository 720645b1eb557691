// What is true of a simulated job, as nobody in it can see: what it is held to after each event. A broken rule is kept
// in words, the first one only.
//
//   one world        no step is made in an earlier round once one was made in a later; a process is in one world at a
//                    time, and goes through rounds upwards; of a rank one process lives at a time
//   one table        who meet in a world hold the same table, and nobody the hub knew to be gone is in it
//   one word         of a rank a hub says that it was lost or that it has left, never both
//   every step once  the state after step s is the one of s steps, on every rank; nobody jumps ahead
//   little is lost   from memory all go on from the newest state that one of them has, at most a step behind the newest
//                    made; from a snapshot, from the newest whole one
//   nearest rung     one rank lost while all work, and nothing else: the others keep their processes, and go on soon
//   no end but this  the job ends by its deadline; it gives up only when its restarts are spent or a failure would
//   happen
//                    again; at its end no process of it lives
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/faults/simulation/virtual_time.h"

namespace esp::sim {

// The state after one more step.
inline uint64_t next_state(uint64_t state) {
  state ^= state >> 29;
  return (state + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
}
uint64_t state_after(int64_t steps);

class Truth {
 public:
  Truth(const Simulation& simulation, int num_ranks, int64_t snapshot_every)
      : simulation_(simulation), num_ranks_(num_ranks), snapshot_every_(snapshot_every) {}

  template <typename... Args>
  void broken(fmt::format_string<Args...> text, Args&&... args) {
    if (!broken_)
      broken_ = fmt::format("at {:.6f} s: {}", static_cast<double>(simulation_.now()) / kSecond,
                            fmt::format(text, std::forward<Args>(args)...));
  }
  const std::optional<std::string>& broken() const { return broken_; }

  void started(int rank, const ProcessPtr& process);
  // `meant`: the world it was told to come to.
  void entered(const Process& process, int rank, int round, const std::string& meant, const std::string& world,
               const std::vector<int>& pids);
  void kept(const Process& process, int64_t step) { kept_[process.pid] = step; }
  void left(const Process& process);
  void made_step(int rank, int round, int64_t step, uint64_t state);
  void resumed_from_memory(int rank, int round, const std::string& world, int64_t step, uint64_t state);

  // Snapshots: every rank writes its part; one that is given up costs what lies between it and the next.
  void wrote_part(const std::string& world, int rank, int64_t step);
  void began_part(const std::string& world, int64_t step) { begun_.insert({step, world}); }
  void resumed_from_snapshot(int rank, int round, int64_t step, bool disk_was_slow);
  int64_t newest_snapshot() const { return newest_snapshot_; }

  int num_alive() const;
  int64_t newest_step() const { return newest_step_; }

 private:
  void resumed(int rank, int round, int64_t step);

  const Simulation& simulation_;
  const int num_ranks_;
  const int64_t snapshot_every_;
  std::optional<std::string> broken_;
  std::map<int, ProcessPtr> living_;                // by rank
  std::map<int, std::string> worlds_;               // by process, those in one now
  std::map<int, int> rounds_;                       // by process, the last it was in
  std::map<int, int64_t> kept_;                     // by process: the step of the state it has in memory
  std::map<std::string, std::vector<int>> tables_;  // by world: processes
  int newest_round_ = -1;                           // that a step was made in
  int64_t newest_step_ = 0, newest_snapshot_ = 0;
  int resumed_round_ = -1;
  int64_t resumed_at_ = 0, newest_here_ = 0;  // where the round in which ranks resumed last did, and came to
  std::map<std::pair<std::string, int64_t>, std::set<int>> parts_;
  std::set<std::pair<int64_t, std::string>> begun_;  // since the newest whole one
};

}  // namespace esp::sim
