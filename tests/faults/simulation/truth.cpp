#include "tests/faults/simulation/truth.h"

#include <fmt/ranges.h>

namespace esp::sim {

uint64_t state_after(int64_t steps) {
  static std::vector<uint64_t> states{1};
  while (static_cast<int64_t>(states.size()) <= steps) states.push_back(next_state(states.back()));
  return states[static_cast<size_t>(steps)];
}

void Truth::started(int rank, const ProcessPtr& process) {
  ProcessPtr& living = living_[rank];
  if (living && living->alive)
    broken("one world: rank {} is started as process {} while its process {} lives", rank, process->pid, living->pid);
  living = process;
}

void Truth::entered(const Process& process, int rank, int round, const std::string& meant, const std::string& world,
                    const std::vector<int>& pids) {
  if (world != meant) broken("one world: rank {} was called to {} and enters {}", rank, meant, world);
  if (const auto [at, fresh] = worlds_.emplace(process.pid, world); !fresh)
    broken("one world: rank {} enters {} while it is in {}", rank, world, at->second);
  if (const auto at = rounds_.find(process.pid); at != rounds_.end() && at->second >= round)
    broken("one world: rank {} enters round {} after round {}", rank, round, at->second);
  rounds_[process.pid] = round;
  const auto [at, fresh] = tables_.emplace(world, pids);
  if (!fresh && at->second != pids)
    broken("one table: rank {} has {} in {} where another has {}", rank, pids, world, at->second);
  if (static_cast<int>(pids.size()) != num_ranks_ || pids[static_cast<size_t>(rank)] != process.pid)
    broken("one table: rank {} (process {}) is not in its own table {}", rank, process.pid, pids);
}

void Truth::left(const Process& process) {
  worlds_.erase(process.pid);
}

void Truth::made_step(int rank, int round, int64_t step, uint64_t state) {
  if (round < newest_round_)
    broken("one world: rank {} makes step {} in round {}, and round {} has made some", rank, step, round,
           newest_round_);
  newest_round_ = round;
  if (state != state_after(step)) broken("every step once: rank {} has another state after step {}", rank, step);
  if (step > newest_here_ + 1) broken("every step once: rank {} makes step {} after {}", rank, step, newest_here_);
  newest_here_ = std::max(newest_here_, step);
  newest_step_ = std::max(newest_step_, step);
}

// All of a round begin at one step.
void Truth::resumed(int rank, int round, int64_t step) {
  if (round < resumed_round_) broken("one world: rank {} resumes in round {} after {}", rank, round, resumed_round_);
  if (round == resumed_round_ && step != resumed_at_)
    broken("every step once: rank {} goes on from step {} and another from {}", rank, step, resumed_at_);
  if (round > resumed_round_) newest_here_ = step;
  resumed_round_ = round;
  resumed_at_ = step;
}

void Truth::resumed_from_memory(int rank, int round, const std::string& world, int64_t step, uint64_t state) {
  if (state != state_after(step)) broken("every step once: rank {} goes on from another state of step {}", rank, step);
  if (round > resumed_round_ && step < newest_here_ - 1)
    broken("little is lost: rank {} goes on from memory at step {}, and {} were made", rank, step, newest_here_);
  for (int pid : tables_[world])
    if (const auto at = kept_.find(pid); at != kept_.end() && at->second > step)
      broken("little is lost: rank {} goes on from memory at step {}, and process {} has {}", rank, step, pid,
             at->second);
  resumed(rank, round, step);
}

void Truth::wrote_part(const std::string& world, int rank, int64_t step) {
  auto& parts = parts_[{world, step}];
  parts.insert(rank);
  if (static_cast<int>(parts.size()) < num_ranks_ || step <= newest_snapshot_) return;
  newest_snapshot_ = step;
  std::erase_if(begun_, [&](const auto& one) { return one.first <= step; });
}

void Truth::resumed_from_snapshot(int rank, int round, int64_t step, bool disk_was_slow) {
  // One that was begun and given up costs what lies between it and the next.
  const int64_t most = snapshot_every_ * (1 + static_cast<int64_t>(begun_.size()));
  if (!disk_was_slow && newest_step_ - step > most)
    broken("little is lost: all go on from the snapshot of step {}, and {} were made, {} more than {}", step,
           newest_step_, newest_step_ - step, most);
  resumed(rank, round, step);
}

int Truth::num_alive() const {
  int count = 0;
  for (const auto& [rank, process] : living_) count += process->alive;
  return count;
}

}  // namespace esp::sim
