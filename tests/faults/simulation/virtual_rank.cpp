#include "tests/faults/simulation/virtual_rank.h"

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::sim {
namespace {

constexpr Duration kConnect = std::chrono::seconds(30);  // NetOptions::start_timeout
constexpr Duration kWord = std::chrono::seconds(25);     // apps/espalier/joined.cpp
constexpr Duration kGoodbye = std::chrono::seconds(5);   // net/hub_watch.cpp
constexpr Duration kHeartbeat = std::chrono::milliseconds(500);

Time micros(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace

VirtualRank::VirtualRank(Place& place, int rank, int round, const std::string& job, int port, Line line)
    : place_(place),
      simulation_(place.simulation),
      rank_(rank),
      line_(std::move(line)),
      process_(simulation_.start_process()),
      round_(round) {
  place_.ranks[process_->pid] = this;
  place_.truth.started(rank, process_);
  process_->at_end.push_back([this] {
    state_ = State::ended;
    ++life_;
    if (world_ && world_->entered) place_.truth.left(*process_);
    line_.ended(exit_code_);
  });
  simulation_.at(simulation_.now() + simulation_.random.between(20 * kMs, 400 * kMs), process_, [this, job, port] {
    line_.say(launch::text_of(launch::Word{launch::Word::Kind::ready, round_}));
    meet(job, port);
  });
}

void VirtualRank::note(const std::string& what) const {
  place_.note(fmt::format("  rank {} (process {}, round {}) {}", rank_, process_->pid, round_, what));
}

void VirtualRank::meet(const std::string& job, int port) {
  note("meets at " + job);
  state_ = State::meeting;
  job_ = job;
  port_ = port;
  meet_by_ = simulation_.now() + micros(kConnect);
  join();
}

// Calls until somebody takes the call. Whoever is of another job is refused, as the handshake does.
void VirtualRank::call(net::Role role, Time deadline, std::function<void(const LinkPtr&)> connected) {
  const auto again = [this, role, deadline, connected, life = life_] {
    simulation_.at(simulation_.now() + simulation_.random.between(2 * kMs, 100 * kMs), process_,
                   [this, role, deadline, connected, life] {
                     if (life == life_) call(role, deadline, connected);
                   });
  };
  if (simulation_.now() >= deadline) return not_met();
  const auto at = place_.hubs.find(port_);
  if (at == place_.hubs.end()) return again();
  const ProcessPtr host = at->second->process();
  const Time parted = std::max(simulation_.now(), simulation_.parted_until(*process_, *host));
  simulation_.at(parted + simulation_.delay(), host, [this, role, connected, again, host, life = life_] {
    const auto there = place_.hubs.find(port_);
    if (!process_->alive || life != life_) return;
    if (there == place_.hubs.end()) return simulation_.at(simulation_.now() + simulation_.delay(), process_, again);
    VirtualHub* const hub = there->second;
    if (hub->job() != job_)
      return simulation_.at(simulation_.now() + simulation_.delay(), process_, [this, life] {
        if (life == life_) not_met();
      });
    const LinkPtr link = simulation_.connect(process_, host);
    // Bytes may come before the caller has looked: they are behind this in its queue.
    link->sides[0].last = simulation_.now() + simulation_.delay();
    simulation_.at(link->sides[0].last, process_, [this, link, connected, life] {
      if (life == life_) {
        connected(link);
      } else {
        simulation_.close(link, 0);
      }
    });
    hub->accept(link, {role, rank_, job_, 0, 0});
  });
}

void VirtualRank::join() {
  close_world();
  const uint64_t life = ++life_;
  simulation_.at(meet_by_, process_, [this, life] {
    if (life == life_ && state_ == State::meeting) not_met();
  });
  call(net::Role::store, meet_by_, [this, life](const LinkPtr& link) {
    world_ = std::make_unique<World>();
    world_->round = round_;
    world_->store = link;
    link->sides[0].on_bytes = [this, life](std::string_view bytes) {
      if (life != life_ || !world_) return;
      world_->client.received(bytes);
      read_store();
    };
    link->sides[0].on_closed = [this, life] {
      if (life != life_ || !world_) return;
      world_->client.closed();
      read_store();
    };
  });
}

// The welcome, then the table; both may come in one piece.
void VirtualRank::read_store() {
  if (state_ != State::meeting) return;
  World& world = *world_;
  if (world.client.broken()) {  // the hub went away: perhaps one on its way out
    const uint64_t life = life_;
    return simulation_.at(simulation_.now() + 20 * kMs, process_, [this, life] {
      if (life == life_) join();
    });
  }
  if (world.name.empty() && !world.client.welcome().job.empty()) {
    world.name = world.client.welcome().job;
    net::Peer mine;
    mine.host = "here";
    mine.pid = process_->pid;
    world.client.expect(world.to_store.next_sequence(), &world.joined);
    simulation_.send(world.store, 0,
                     world.to_store.encode(net::Kind::join, net::encode_join({rank_, place_.num_ranks, mine})));
  }
  if (!world.joined.done || world.line || !world.peers.empty()) return;
  if (world.joined.kind != net::Kind::table) return not_met();
  world.peers = net::decode_table(world.joined.rest);
  call(net::Role::watch, meet_by_, [this](const LinkPtr& link) {
    world_->line = link;
    open_watch();
  });
}

void VirtualRank::open_watch() {
  World& world = *world_;
  const uint64_t life = life_;
  const auto post = [this](net::Kind kind, const std::string& body) {
    simulation_.send(world_->line, 0, world_->to_watch.encode(kind, body));
  };
  world.watch = std::make_unique<net::WatchCore>(rank_, -1, kHeartbeat, world.fate, Log(LogLevel::off, rank_),
                                                 net::WatchCore::Owner{post,
                                                                       [](uint64_t) {
                                                                         return net::Standing{true, {}, false};
                                                                       },
                                                                       [](const net::Report&) {}},
                                                 simulation_.local(*process_));
  world.line->sides[0].on_bytes = [this, life](std::string_view bytes) {
    if (life != life_) return;
    world_->watch->received(bytes);
    look();
  };
  world.line->sides[0].on_closed = [this, life] {
    if (life != life_) return;
    world_->watch->hub_closed("closed its connection");
    look();
  };
  std::vector<int> pids;
  for (int peer = 0; peer < place_.num_ranks; ++peer) {
    const int pid = world.peers[static_cast<size_t>(peer)].pid;
    pids.push_back(pid);
    const auto at = place_.ranks.find(pid);
    if (peer == rank_ || at == place_.ranks.end() || !place_.see_each_other_end) continue;
    const ProcessPtr other = at->second->process();
    if (!other->alive) {
      world.watch->neighbour_ended(peer, simulation_.local(*process_), true);
      continue;
    }
    other->at_end.push_back([this, peer, life] {
      simulation_.at(simulation_.now() + simulation_.delay(), process_, [this, peer, life] {
        if (life != life_ || !world_) return;
        world_->watch->neighbour_ended(peer, simulation_.local(*process_));
        tick_watch();
      });
    });
  }
  world.entered = true;
  place_.truth.entered(*process_, rank_, round_, job_, world.name, pids);
  tick_watch();
  for (const Early& early : early_[world.name]) world.letters[early.tag][early.from] = early.letter;
  early_.clear();
  formed();
}

// Plans itself anew; a plan that came too late or is one too many does nothing.
void VirtualRank::tick_watch() {
  const uint64_t life = life_;
  simulation_.after(process_, world_->watch->next_tick() - simulation_.local(*process_), [this, life] {
    if (life != life_ || !world_ || simulation_.local(*process_) < world_->watch->next_tick()) return;
    world_->watch->tick(simulation_.local(*process_));
    tick_watch();
    look();
  });
}

void VirtualRank::formed() {
  newcomer_ = false;
  note("has met the others in " + world_->name);
  line_.say(launch::text_of(launch::Word{launch::Word::Kind::formed, round_}));
  begin_work();
}

// A rank that was never in a world ends with its error; one that was hears what the launcher makes of it.
void VirtualRank::not_met() {
  note("has not met the others");
  if (newcomer_) return exit(static_cast<int>(ExitCode::comm));
  close_world();
  await();
}

// Says bye and waits until it was heard, as the watch does when its world goes.
void VirtualRank::leave(Then then) {
  state_ = State::leaving;
  leaving_then_ = std::move(then);
  simulation_.send(world_->line, 0, world_->to_watch.encode(net::Kind::bye, {}));
  const uint64_t life = life_;
  simulation_.after(process_, kGoodbye, [this, life] {
    if (life != life_ || state_ != State::leaving) return;
    close_world();
    std::exchange(leaving_then_, {})();
  });
  look();
}

void VirtualRank::close_world() {
  ++life_;
  if (!world_) return;
  for (const LinkPtr& link : {world_->store, world_->line})
    if (link) simulation_.close(link, 0);
  if (world_->entered) place_.truth.left(*process_);
  world_.reset();
}

void VirtualRank::await() {
  state_ = State::awaiting;
  line_.say(launch::text_of(launch::Word{launch::Word::Kind::waiting, round_}));
  const uint64_t life = ++life_;
  simulation_.after(process_, kWord, [this, life] {
    if (life == life_ && state_ == State::awaiting) exit(static_cast<int>(ExitCode::comm));
  });
  heed();
}

void VirtualRank::hear(const std::string& text) {
  words_.push_back(text);
  heed();
}

void VirtualRank::heed() {
  while (state_ == State::awaiting && !words_.empty()) {
    const launch::NextRound next = launch::next_round_of(words_.front());
    words_.pop_front();
    switch (launch::meaning_of(next, round_)) {
      case launch::Meaning::end:
        return exit(static_cast<int>(ExitCode::comm));
      case launch::Meaning::old:
        continue;
      case launch::Meaning::come:
        round_ = next.round;
        return meet(next.job, std::stoi(next.store));
    }
  }
}

void VirtualRank::fail(int code) {
  if (process_->alive) exit(code);
}

// Asked to stop: it does what it is doing to the end, which may be long, and then stops. Here it just ends.
void VirtualRank::terminate() {
  simulation_.at(simulation_.now() + simulation_.random.between(kMs, 100 * kMs), process_, [this] { exit(128 + 15); });
}

void VirtualRank::exit(int code) {
  note(fmt::format("ends with {}", code));
  exit_code_ = code;
  simulation_.end(process_);
}

std::vector<LinkPtr> VirtualRank::links() const {
  std::vector<LinkPtr> found;
  if (world_ && world_->store) found.push_back(world_->store);
  if (world_ && world_->line) found.push_back(world_->line);
  return found;
}

}  // namespace esp::sim
