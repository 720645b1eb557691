#include "tests/faults/simulation/invariant_checker.h"

#include <fmt/ranges.h>

namespace esp::sim {

uint64_t state_after(int64_t steps) {
  static std::vector<uint64_t> states{1};
  while (static_cast<int64_t>(states.size()) <= steps) states.push_back(next_state(states.back()));
  return states[static_cast<size_t>(steps)];
}

void InvariantChecker::started(int rank, const ProcessPtr& process) {
  ProcessPtr& living = living_[rank];
  if (living && living->alive)
    violation("single world: rank {} is started as process {} while its process {} is alive", rank, process->pid,
              living->pid);
  living = process;
}

void InvariantChecker::entered(const Process& process, int rank, int round, const std::string& assigned,
                               const std::string& world, const std::vector<int>& pids) {
  if (world != assigned) violation("single world: rank {} must join {}, but enters {}", rank, assigned, world);
  if (const auto [at, fresh] = worlds_.emplace(process.pid, world); !fresh)
    violation("single world: rank {} enters {} while it is in {}", rank, world, at->second);
  if (const auto at = rounds_.find(process.pid); at != rounds_.end() && at->second >= round)
    violation("single world: rank {} enters round {} after round {}", rank, round, at->second);
  rounds_[process.pid] = round;
  const auto [at, fresh] = tables_.emplace(world, pids);
  if (!fresh && at->second != pids)
    violation("consistent table: rank {} has {} in {}; another rank has {}", rank, pids, world, at->second);
  if (static_cast<int>(pids.size()) != num_ranks_ || pids[static_cast<size_t>(rank)] != process.pid)
    violation("consistent table: rank {} (process {}) is not in its own table {}", rank, process.pid, pids);
}

void InvariantChecker::left(const Process& process) {
  worlds_.erase(process.pid);
}

void InvariantChecker::made_step(int rank, int round, int64_t step, uint64_t state) {
  if (round < newest_round_)
    violation("single world: rank {} makes step {} in round {} after a step of round {}", rank, step, round,
              newest_round_);
  newest_round_ = round;
  if (state != state_after(step)) violation("exact steps: rank {} has a wrong state after step {}", rank, step);
  if (step > newest_here_ + 1) violation("exact steps: rank {} makes step {} after {}", rank, step, newest_here_);
  newest_here_ = std::max(newest_here_, step);
  newest_step_ = std::max(newest_step_, step);
}

// Checks that all ranks of a round resume at the same step.
void InvariantChecker::resumed(int rank, int round, int64_t step) {
  if (round < resumed_round_)
    violation("single world: rank {} resumes in round {} after {}", rank, round, resumed_round_);
  if (round == resumed_round_ && step != resumed_at_)
    violation("exact steps: rank {} resumes at step {}, but another rank resumes at step {}", rank, step, resumed_at_);
  if (round > resumed_round_) newest_here_ = step;
  resumed_round_ = round;
  resumed_at_ = step;
}

void InvariantChecker::resumed_from_memory(int rank, int round, const std::string& world, int64_t step,
                                           uint64_t state) {
  if (state != state_after(step)) violation("exact steps: rank {} resumes from a wrong state of step {}", rank, step);
  if (round > resumed_round_ && step < newest_here_ - 1)
    violation("bounded loss: rank {} resumes from memory at step {}, but {} steps were made", rank, step, newest_here_);
  for (int pid : tables_[world])
    if (const auto at = kept_steps_.find(pid); at != kept_steps_.end() && at->second > step)
      violation("bounded loss: rank {} resumes from memory at step {}, but process {} holds step {}", rank, step, pid,
                at->second);
  resumed(rank, round, step);
}

void InvariantChecker::wrote_part(const std::string& world, int rank, int64_t step) {
  auto& parts = parts_[{world, step}];
  parts.insert(rank);
  if (static_cast<int>(parts.size()) < num_ranks_ || step <= newest_snapshot_) return;
  newest_snapshot_ = step;
  std::erase_if(begun_, [&](const auto& one) { return one.first <= step; });
}

void InvariantChecker::resumed_from_snapshot(int rank, int round, int64_t step, bool disk_was_slow) {
  // Each snapshot that was started but abandoned may cost one more interval.
  const int64_t most = snapshot_every_ * (1 + static_cast<int64_t>(begun_.size()));
  if (!disk_was_slow && newest_step_ - step > most)
    violation(
        "bounded loss: all ranks resume from the snapshot of step {}, but {} steps were made: {} steps lost; at most "
        "{} allowed",
        step, newest_step_, newest_step_ - step, most);
  resumed(rank, round, step);
}

int InvariantChecker::num_alive() const {
  int count = 0;
  for (const auto& [rank, process] : living_) count += process->alive;
  return count;
}

}  // namespace esp::sim
