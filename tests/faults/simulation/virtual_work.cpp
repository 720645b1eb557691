// Training of a simulated rank in a world: the ranks choose a common state, make steps, write snapshots, and detect
// lost ranks.
#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/train/replica_source.h"
#include "tests/faults/simulation/virtual_rank.h"

namespace esp::sim {
namespace {

constexpr Duration kCollective = std::chrono::seconds(60);  // same value as NetOptions::timeout

}  // namespace

std::vector<int> VirtualRank::others() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < shared_.num_ranks; ++rank)
    if (rank != rank_) ranks.push_back(rank);
  return ranks;
}

// Builds a model, then exchanges the replica status with all ranks.
void VirtualRank::begin_work() {
  state_ = State::working;
  has_state_ = false;
  const uint64_t generation = generation_;
  simulation_.at(simulation_.now() + simulation_.random.between(5 * kMs, 200 * kMs), process_, [this, generation] {
    if (generation != generation_) return;
    send_to_all("replica status", replica_step_, survivor_ ? 1 : 0);
    wait("replica status", others(), [this] {
      std::vector<int64_t> statuses(train::kReplicaStatusFields * static_cast<size_t>(shared_.num_ranks));
      const auto put = [&](int rank, int64_t step, uint64_t survivor) {
        statuses[train::kReplicaStatusFields * static_cast<size_t>(rank)] = step;
        statuses[train::kReplicaStatusFields * static_cast<size_t>(rank) + 1] = static_cast<int64_t>(survivor);
      };
      put(rank_, replica_step_, survivor_ ? 1 : 0);
      for (const auto& [rank, message] : world_->messages["replica status"]) put(rank, message.number, message.state);
      resume_from(statuses);
    });
  });
}

void VirtualRank::resume_from(const std::vector<int64_t>& statuses) {
  train::ReplicaSource chosen = train::choose_replica_source(statuses);
  if (shared_.bugs.oldest_replica && chosen.rank >= 0)
    for (int rank = 0; rank < shared_.num_ranks; ++rank)
      if (const int64_t step = statuses[train::kReplicaStatusFields * static_cast<size_t>(rank)];
          step >= 0 && step < chosen.step)
        chosen = {rank, step, {}, 0};
  const bool from_memory = chosen.rank >= 0;
  const int source = from_memory ? chosen.rank : 0;  // no replica in memory: rank 0 chooses the newest snapshot
  const auto settle = [this, from_memory](int64_t step, uint64_t value) {
    step_ = step;
    value_ = value;
    has_state_ = true;
    note(fmt::format("resumes at step {} from {}", step, from_memory ? "memory" : "a snapshot"));
    from_memory ? shared_.invariants.resumed_from_memory(rank_, round_, world_->name, step, value)
                : shared_.invariants.resumed_from_snapshot(rank_, round_, step, shared_.disk_is_slow);
    begin_step();
  };
  if (rank_ == source) {
    const int64_t step = from_memory ? replica_step_ : shared_.invariants.newest_snapshot();
    const uint64_t value = from_memory ? replica_value_ : state_after(step);
    send_to_all("state", step, value);
    return settle(step, value);
  }
  wait("state", {source}, [this, settle, source] {
    const Message message = world_->messages["state"][source];
    settle(message.number, message.state);
  });
}

void VirtualRank::begin_step() {
  state_ = State::working;
  const bool last = step_ >= shared_.num_steps;
  const std::string tag = last ? "end" : fmt::format("step {}", step_ + 1);
  const uint64_t generation = generation_;
  simulation_.at(simulation_.now() + simulation_.random.between(20 * kMs, 120 * kMs), process_,
                 [this, generation, tag, last] {
                   if (generation != generation_) return;
                   for (int rank : others())
                     if (world_->peer_status->is_lost(rank)) return lost("another rank was lost");
                   send_to_all(tag, step_, value_);
                   wait(tag, others(), [this, tag, last] {
                     for (const auto& [rank, message] : world_->messages[tag])
                       if (message.number != step_ || message.state != value_)
                         shared_.invariants.violation("exact steps: in {} rank {} is at step {} and rank {} at {}",
                                                      world_->name, rank_, step_, rank, message.number);
                     if (last) return leave([this] { exit(0); });
                     world_->messages.erase(tag);
                     ++step_;
                     value_ = next_state(value_);
                     shared_.invariants.made_step(rank_, world_->round, step_, value_);
                     if (step_ % shared_.snapshot_every == 0) snapshot();
                     begin_step();
                   });
                 });
}

// The snapshot is written in the background. It is abandoned if a rank is lost meanwhile.
void VirtualRank::snapshot() {
  const Time takes = shared_.disk_is_slow ? simulation_.random.between(kSecond, 20 * kSecond)
                                          : simulation_.random.between(5 * kMs, 80 * kMs);
  shared_.invariants.began_part(world_->name, step_);
  simulation_.at(simulation_.now() + takes, process_,
                 [this, world = world_->name, peer_status = world_->peer_status, step = step_] {
                   for (int rank : others())
                     if (peer_status->is_lost(rank)) return;
                   shared_.invariants.wrote_part(world, rank_, step);
                 });
}

void VirtualRank::send_to_all(const std::string& tag, int64_t number, uint64_t state) {
  for (int rank : others()) {
    const auto at = shared_.ranks.find(world_->peers[static_cast<size_t>(rank)].pid);
    if (at == shared_.ranks.end()) continue;
    VirtualRank* const other = at->second;
    Time& last = world_->sent_until[rank];
    last = std::max(last, simulation_.now() + simulation_.delay());
    ++shared_.in_flight[{process_->pid, other->process()->pid}];
    simulation_.at(last, other->process(), [this, other, tag, number, state, world = world_->name] {
      --shared_.in_flight[{process_->pid, other->process()->pid}];
      other->receive(world, rank_, tag, number, state);
    });
  }
}

void VirtualRank::receive(const std::string& world, int from, const std::string& tag, int64_t number, uint64_t state) {
  if (!world_ || !world_->entered) {
    // real ranks send through shared memory, which keeps messages for ranks that enter the world later
    early_messages_[world].push_back({from, tag, {number, state}});
    return;
  }
  if (world_->name != world) return;  // the message belongs to an earlier world
  world_->messages[tag][from] = {number, state};
  check_failures();
}

void VirtualRank::wait(const std::string& tag, std::vector<int> from, Continuation then) {
  state_ = State::exchanging;
  waiting_tag_ = tag;
  waiting_for_ = std::move(from);
  waiting_then_ = std::move(then);
  const uint64_t waited = ++num_waits_;
  simulation_.after(process_, kCollective, [this, waited] {
    if (waited != num_waits_ || state_ != State::exchanging) return;
    const CommError cause(CommError::Kind::timeout, -1, "the ranks did not respond before the deadline");
    world_->peer_status->abort(0, cause);
    simulation_.send(world_->detector_link, 0,
                     world_->to_detector.encode(net::FrameKind::abort, net::encode_abort({0, others(), cause})));
    check_failures();
  });
  check_failures();
}

// Must be called after any change: a message arrived, a peer's status changed, or the hub acknowledged a bye.
void VirtualRank::check_failures() {
  if (state_ == State::leaving &&
      (world_->failure_detector->bye_acknowledged() || world_->failure_detector->hub_gone())) {
    close_world();
    return std::exchange(leaving_then_, {})();
  }
  if (state_ != State::exchanging) return;
  try {
    world_->peer_status->check(0, others());
  } catch (const CommError& error) {
    return lost(error.what());
  }
  const auto& messages = world_->messages[waiting_tag_];
  bool all = true;
  for (int rank : waiting_for_) {
    if (messages.contains(rank)) continue;
    all = false;
    const auto pid = world_->peers[static_cast<size_t>(rank)].pid;
    if (world_->peer_status->has_left(rank) && shared_.in_flight[{pid, process_->pid}] == 0)
      return lost(world_->peer_status->peer_left_error(rank).what());
  }
  if (!all) return;
  state_ = State::working;
  std::exchange(waiting_then_, {})();
}

// Follows the trainer's loop after a failure: keeps a valid state, leaves the world, waits for the next round.
void VirtualRank::lost(const std::string& why) {
  note(fmt::format("at step {}{}: {}", step_, has_state_ ? "" : " (no state yet)", why));
  if (has_state_) {
    replica_step_ = step_;
    replica_value_ = value_;
    shared_.invariants.kept(*process_, step_);
  }
  has_state_ = false;
  survivor_ = true;
  leave([this] { wait_for_next_round(); });
}

}  // namespace esp::sim
