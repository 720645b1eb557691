// What a simulated rank does in a world: agrees on a state, makes steps, writes snapshots, notices that others are
// gone.
#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/train/heal_source.h"
#include "tests/faults/simulation/virtual_rank.h"

namespace esp::sim {
namespace {

constexpr Duration kCollective = std::chrono::seconds(60);  // NetOptions::timeout

}  // namespace

std::vector<int> VirtualRank::others() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < place_.num_ranks; ++rank)
    if (rank != rank_) ranks.push_back(rank);
  return ranks;
}

// A model is built, then all say what they have.
void VirtualRank::begin_work() {
  state_ = State::working;
  settled_ = false;
  const uint64_t life = life_;
  simulation_.at(simulation_.now() + simulation_.random.between(5 * kMs, 200 * kMs), process_, [this, life] {
    if (life != life_) return;
    tell("heal", kept_step_, survivor_ ? 1 : 0);
    wait("heal", others(), [this] {
      std::vector<int64_t> said(train::kHealWords * static_cast<size_t>(place_.num_ranks));
      const auto put = [&](int rank, int64_t step, uint64_t survivor) {
        said[train::kHealWords * static_cast<size_t>(rank)] = step;
        said[train::kHealWords * static_cast<size_t>(rank) + 1] = static_cast<int64_t>(survivor);
      };
      put(rank_, kept_step_, survivor_ ? 1 : 0);
      for (const auto& [rank, letter] : world_->letters["heal"]) put(rank, letter.number, letter.state);
      go_on_from(said);
    });
  });
}

void VirtualRank::go_on_from(const std::vector<int64_t>& said) {
  train::Healed healed = train::source_of(said);
  if (place_.broken.oldest_replica && healed.source >= 0)
    for (int rank = 0; rank < place_.num_ranks; ++rank)
      if (const int64_t step = said[train::kHealWords * static_cast<size_t>(rank)]; step >= 0 && step < healed.step)
        healed = {rank, step, {}, 0};
  const bool from_memory = healed.source >= 0;
  const int source = from_memory ? healed.source : 0;  // of a snapshot the first rank looks for the newest
  const auto settle = [this, from_memory](int64_t step, uint64_t value) {
    step_ = step;
    value_ = value;
    settled_ = true;
    note(fmt::format("goes on at step {} from {}", step, from_memory ? "memory" : "a snapshot"));
    from_memory ? place_.truth.resumed_from_memory(rank_, round_, world_->name, step, value)
                : place_.truth.resumed_from_snapshot(rank_, round_, step, place_.disk_is_slow);
    begin_step();
  };
  if (rank_ == source) {
    const int64_t step = from_memory ? kept_step_ : place_.truth.newest_snapshot();
    const uint64_t value = from_memory ? kept_value_ : state_after(step);
    tell("state", step, value);
    return settle(step, value);
  }
  wait("state", {source}, [this, settle, source] {
    const Letter letter = world_->letters["state"][source];
    settle(letter.number, letter.state);
  });
}

void VirtualRank::begin_step() {
  state_ = State::working;
  const bool last = step_ >= place_.num_steps;
  const std::string tag = last ? "end" : fmt::format("step {}", step_ + 1);
  const uint64_t life = life_;
  simulation_.at(simulation_.now() + simulation_.random.between(20 * kMs, 120 * kMs), process_,
                 [this, life, tag, last] {
                   if (life != life_) return;
                   for (int rank : others())
                     if (world_->fate->lost(rank)) return lost("another rank was lost");
                   tell(tag, step_, value_);
                   wait(tag, others(), [this, tag, last] {
                     for (const auto& [rank, letter] : world_->letters[tag])
                       if (letter.number != step_ || letter.state != value_)
                         place_.truth.broken("every step once: in {} rank {} is at step {} and rank {} at {}",
                                             world_->name, rank_, step_, rank, letter.number);
                     if (last) return leave([this] { exit(0); });
                     world_->letters.erase(tag);
                     ++step_;
                     value_ = next_state(value_);
                     place_.truth.made_step(rank_, world_->round, step_, value_);
                     if (step_ % place_.snapshot_every == 0) snapshot();
                     begin_step();
                   });
                 });
}

// Written behind the training's back, and given up when a rank is lost meanwhile.
void VirtualRank::snapshot() {
  const Time takes = place_.disk_is_slow ? simulation_.random.between(kSecond, 20 * kSecond)
                                         : simulation_.random.between(5 * kMs, 80 * kMs);
  place_.truth.began_part(world_->name, step_);
  simulation_.at(simulation_.now() + takes, process_, [this, world = world_->name, fate = world_->fate, step = step_] {
    for (int rank : others())
      if (fate->lost(rank)) return;
    place_.truth.wrote_part(world, rank_, step);
  });
}

void VirtualRank::tell(const std::string& tag, int64_t number, uint64_t state) {
  for (int rank : others()) {
    const auto at = place_.ranks.find(world_->peers[static_cast<size_t>(rank)].pid);
    if (at == place_.ranks.end()) continue;
    VirtualRank* const other = at->second;
    Time& last = world_->sent_until[rank];
    last = std::max(last, simulation_.now() + simulation_.delay());
    ++place_.under_way[{process_->pid, other->process()->pid}];
    simulation_.at(last, other->process(), [this, other, tag, number, state, world = world_->name] {
      --place_.under_way[{process_->pid, other->process()->pid}];
      other->receive(world, rank_, tag, number, state);
    });
  }
}

void VirtualRank::receive(const std::string& world, int from, const std::string& tag, int64_t number, uint64_t state) {
  if (!world_ || !world_->entered) {
    early_[world].push_back({from, tag, {number, state}});  // memory that is shared waits for whoever comes later
    return;
  }
  if (world_->name != world) return;  // of one that has passed
  world_->letters[tag][from] = {number, state};
  look();
}

void VirtualRank::wait(const std::string& tag, std::vector<int> from, Then then) {
  state_ = State::exchanging;
  waiting_tag_ = tag;
  waiting_for_ = std::move(from);
  waiting_then_ = std::move(then);
  const uint64_t waited = ++num_waits_;
  simulation_.after(process_, kCollective, [this, waited] {
    if (waited != num_waits_ || state_ != State::exchanging) return;
    const CommError cause(CommError::Kind::timeout, -1, "the ranks did not come before the deadline");
    world_->fate->abort(0, cause);
    simulation_.send(world_->line, 0,
                     world_->to_watch.encode(net::Kind::abort, net::encode_abort({0, others(), cause})));
    look();
  });
  look();
}

// Whatever may have changed: a letter, the fate of another, the hub's answer to a bye.
void VirtualRank::look() {
  if (state_ == State::leaving && (world_->watch->bye_heard() || world_->watch->hub_gone())) {
    close_world();
    return std::exchange(leaving_then_, {})();
  }
  if (state_ != State::exchanging) return;
  try {
    world_->fate->check(0, others());
  } catch (const CommError& error) {
    return lost(error.what());
  }
  const auto& letters = world_->letters[waiting_tag_];
  bool all = true;
  for (int rank : waiting_for_) {
    if (letters.contains(rank)) continue;
    all = false;
    const auto pid = world_->peers[static_cast<size_t>(rank)].pid;
    if (world_->fate->left(rank) && place_.under_way[{pid, process_->pid}] == 0)
      return lost(world_->fate->gone(rank).what());
  }
  if (!all) return;
  state_ = State::working;
  std::exchange(waiting_then_, {})();
}

// As the trainer's loop: what is good is kept, the world is left, and the launcher's word awaited.
void VirtualRank::lost(const std::string& why) {
  note(fmt::format("at step {}{}: {}", step_, settled_ ? "" : " (unsettled)", why));
  if (settled_) {
    kept_step_ = step_;
    kept_value_ = value_;
    place_.truth.kept(*process_, step_);
  }
  settled_ = false;
  survivor_ = true;
  leave([this] { await(); });
}

}  // namespace esp::sim
