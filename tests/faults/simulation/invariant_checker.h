// InvariantChecker: invariants that a simulated job must keep. After each event it checks them with knowledge of all
// processes. It keeps only the first violation, as text.
//
//   single world      No rank makes a step in an earlier round after any rank has made one in a later round. A process
//                     is in one world at a time, and its rounds increase. A rank has one live process at a time.
//   consistent table  All members of a world have the same table. It has no rank whose connection the hub knew to be
//                     closed.
//   single verdict    A hub reports a rank as lost or as left, never both.
//   exact steps       After step s every rank has the state that results from exactly s steps. No rank skips a step.
//   bounded loss      Ranks resume from the newest replica in memory, at most one step behind the newest step made, or
//                     from the newest complete snapshot.
//   nearest source    If one rank is lost while all ranks work, and nothing else fails, the other ranks keep their
//                     processes and resume soon.
//   termination       The job ends by its deadline. It gives up only if no restarts are left, or if the failure would
//                     repeat. No process of the job is alive after its end.
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

// The simulated training state after one more step.
inline uint64_t next_state(uint64_t state) {
  state ^= state >> 29;
  return (state + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
}
uint64_t state_after(int64_t steps);

class InvariantChecker {
 public:
  InvariantChecker(const Simulation& simulation, int num_ranks, int64_t snapshot_every)
      : simulation_(simulation), num_ranks_(num_ranks), snapshot_every_(snapshot_every) {}

  template <typename... Args>
  void violation(fmt::format_string<Args...> text, Args&&... args) {
    if (!broken_)
      broken_ = fmt::format("at {:.6f} s: {}", static_cast<double>(simulation_.now()) / kSecond,
                            fmt::format(text, std::forward<Args>(args)...));
  }
  const std::optional<std::string>& violation() const { return broken_; }

  void started(int rank, const ProcessPtr& process);
  // Must be called when a process has joined a world. `assigned`: the world that the launcher assigned to it.
  void entered(const Process& process, int rank, int round, const std::string& assigned, const std::string& world,
               const std::vector<int>& pids);
  void kept(const Process& process, int64_t step) { kept_steps_[process.pid] = step; }
  void left(const Process& process);
  void made_step(int rank, int round, int64_t step, uint64_t state);
  void resumed_from_memory(int rank, int round, const std::string& world, int64_t step, uint64_t state);

  // Every rank writes its part of a snapshot. If a snapshot is abandoned, a failure may cost all steps up to the next
  // one.
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
  std::map<int, ProcessPtr> living_;                // rank → its live process
  std::map<int, std::string> worlds_;               // process id → its current world
  std::map<int, int> rounds_;                       // process id → its last round
  std::map<int, int64_t> kept_steps_;               // process id → step of its replica in memory
  std::map<std::string, std::vector<int>> tables_;  // world → process ids of its members
  int newest_round_ = -1;                           // newest round in which any rank made a step
  int64_t newest_step_ = 0, newest_snapshot_ = 0;
  int resumed_round_ = -1;
  int64_t resumed_at_ = 0, newest_here_ = 0;  // step at which the last round resumed, and the newest step made in it
  std::map<std::pair<std::string, int64_t>, std::set<int>> parts_;
  std::set<std::pair<int64_t, std::string>> begun_;  // (step, world) of snapshots started since the newest complete one
};

}  // namespace esp::sim
