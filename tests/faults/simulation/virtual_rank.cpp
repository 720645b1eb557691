#include "tests/faults/simulation/virtual_rank.h"

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::sim {
namespace {

constexpr Duration kConnect = std::chrono::seconds(30);           // stands for NetOptions::start_timeout
constexpr Duration kNextRoundTimeout = std::chrono::seconds(25);  // same value as in apps/espalier/process_group.cpp
constexpr Duration kByeTimeout = std::chrono::seconds(5);         // same value as in net/hub_failure_detector.cpp
constexpr Duration kHeartbeat = std::chrono::milliseconds(500);

Time micros(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace

VirtualRank::VirtualRank(SimulatedJob& shared, int rank, int round, const std::string& job, int port,
                         ControlChannelEnd control_channel)
    : shared_(shared),
      simulation_(shared.simulation),
      rank_(rank),
      control_channel_(std::move(control_channel)),
      process_(simulation_.start_process()),
      round_(round) {
  shared_.ranks[process_->pid] = this;
  shared_.invariants.started(rank, process_);
  process_->at_end.push_back([this] {
    state_ = State::ended;
    ++generation_;
    if (world_ && world_->entered) shared_.invariants.left(*process_);
    control_channel_.ended(exit_code_);
  });
  simulation_.at(simulation_.now() + simulation_.random.between(20 * kMs, 400 * kMs), process_, [this, job, port] {
    control_channel_.send(launch::encode(launch::RankMessage{launch::RankMessage::Kind::ready, round_}));
    join_round(job, port);
  });
}

void VirtualRank::note(const std::string& what) const {
  shared_.note(fmt::format("  rank {} (process {}, round {}) {}", rank_, process_->pid, round_, what));
}

void VirtualRank::join_round(const std::string& job, int port) {
  note("joins " + job);
  state_ = State::joining;
  job_ = job;
  port_ = port;
  join_deadline_ = simulation_.now() + micros(kConnect);
  join();
}

// Connects to the hub; retries until the deadline. A hub of another job refuses the connection, as in the real
// handshake.
void VirtualRank::connect_to_hub(net::Role role, Time deadline, std::function<void(const LinkPtr&)> connected) {
  const auto again = [this, role, deadline, connected, generation = generation_] {
    simulation_.at(simulation_.now() + simulation_.random.between(2 * kMs, 100 * kMs), process_,
                   [this, role, deadline, connected, generation] {
                     if (generation == generation_) connect_to_hub(role, deadline, connected);
                   });
  };
  if (simulation_.now() >= deadline) return on_join_failed();
  const auto at = shared_.hubs.find(port_);
  if (at == shared_.hubs.end()) return again();
  const ProcessPtr host = at->second->process();
  const Time parted = std::max(simulation_.now(), simulation_.partitioned_until(*process_, *host));
  simulation_.at(parted + simulation_.delay(), host, [this, role, connected, again, host, generation = generation_] {
    const auto there = shared_.hubs.find(port_);
    if (!process_->alive || generation != generation_) return;
    if (there == shared_.hubs.end()) return simulation_.at(simulation_.now() + simulation_.delay(), process_, again);
    VirtualHub* const hub = there->second;
    if (hub->job() != job_)
      return simulation_.at(simulation_.now() + simulation_.delay(), process_, [this, generation] {
        if (generation == generation_) on_join_failed();
      });
    const LinkPtr link = simulation_.connect(process_, host);
    // Bytes may arrive before the client has set its handlers. This event sets them; the bytes are delivered after it.
    link->sides[0].last = simulation_.now() + simulation_.delay();
    simulation_.at(link->sides[0].last, process_, [this, link, connected, generation] {
      if (generation == generation_) {
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
  const uint64_t generation = ++generation_;
  simulation_.at(join_deadline_, process_, [this, generation] {
    if (generation == generation_ && state_ == State::joining) on_join_failed();
  });
  connect_to_hub(net::Role::store, join_deadline_, [this, generation](const LinkPtr& link) {
    world_ = std::make_unique<World>();
    world_->round = round_;
    world_->store = link;
    link->sides[0].on_bytes = [this, generation](std::string_view bytes) {
      if (generation != generation_ || !world_) return;
      world_->client.received(bytes);
      read_store();
    };
    link->sides[0].on_closed = [this, generation] {
      if (generation != generation_ || !world_) return;
      world_->client.closed();
      read_store();
    };
  });
}

// Waits for the handshake reply, then for the table. Both may arrive together.
void VirtualRank::read_store() {
  if (state_ != State::joining) return;
  World& world = *world_;
  if (world.client.broken()) {  // the hub closed the connection; it may have belonged to an earlier round
    const uint64_t generation = generation_;
    return simulation_.at(simulation_.now() + 20 * kMs, process_, [this, generation] {
      if (generation == generation_) join();
    });
  }
  if (world.name.empty() && !world.client.hub_info().job.empty()) {
    world.name = world.client.hub_info().job;
    net::Peer mine;
    mine.host = "here";
    mine.pid = process_->pid;
    world.client.expect(world.to_store.next_sequence(), &world.joined);
    simulation_.send(
        world.store, 0,
        world.to_store.encode(net::FrameKind::join, net::encode_join_request({rank_, shared_.num_ranks, mine})));
  }
  if (!world.joined.done || world.detector_link || !world.peers.empty()) return;
  if (world.joined.kind != net::FrameKind::table) return on_join_failed();
  world.peers = net::decode_table(world.joined.rest);
  connect_to_hub(net::Role::failure_detector, join_deadline_, [this](const LinkPtr& link) {
    world_->detector_link = link;
    open_failure_detector();
  });
}

void VirtualRank::open_failure_detector() {
  World& world = *world_;
  const uint64_t generation = generation_;
  const auto post = [this](net::FrameKind kind, const std::string& body) {
    simulation_.send(world_->detector_link, 0, world_->to_detector.encode(kind, body));
  };
  world.failure_detector = std::make_unique<net::FailureDetectorCore>(
      rank_, -1, kHeartbeat, world.peer_status, Log(LogLevel::off, rank_),
      net::FailureDetectorCore::Callbacks{post,
                                          [](uint64_t) {
                                            return net::CallPosition{true, {}, false};
                                          },
                                          [](const net::PositionReport&) {}},
      simulation_.local(*process_));
  world.detector_link->sides[0].on_bytes = [this, generation](std::string_view bytes) {
    if (generation != generation_) return;
    world_->failure_detector->received(bytes);
    check_failures();
  };
  world.detector_link->sides[0].on_closed = [this, generation] {
    if (generation != generation_) return;
    world_->failure_detector->on_hub_closed("closed its connection");
    check_failures();
  };
  std::vector<int> pids;
  for (int peer = 0; peer < shared_.num_ranks; ++peer) {
    const int pid = world.peers[static_cast<size_t>(peer)].pid;
    pids.push_back(pid);
    const auto at = shared_.ranks.find(pid);
    if (peer == rank_ || at == shared_.ranks.end() || !shared_.detect_local_exits) continue;
    const ProcessPtr other = at->second->process();
    if (!other->alive) {
      world.failure_detector->on_local_peer_exit(peer, simulation_.local(*process_), true);
      continue;
    }
    other->at_end.push_back([this, peer, generation] {
      simulation_.at(simulation_.now() + simulation_.delay(), process_, [this, peer, generation] {
        if (generation != generation_ || !world_) return;
        world_->failure_detector->on_local_peer_exit(peer, simulation_.local(*process_));
        tick_failure_detector();
      });
    });
  }
  world.entered = true;
  shared_.invariants.entered(*process_, rank_, round_, job_, world.name, pids);
  tick_failure_detector();
  for (const EarlyMessage& early : early_messages_[world.name]) world.messages[early.tag][early.from] = early.message;
  early_messages_.clear();
  on_formed();
}

// Runs the detector's tick when it is due, and schedules the next tick. A tick that comes late or twice has no effect.
void VirtualRank::tick_failure_detector() {
  const uint64_t generation = generation_;
  simulation_.after(process_, world_->failure_detector->next_tick() - simulation_.local(*process_), [this, generation] {
    if (generation != generation_ || !world_ || simulation_.local(*process_) < world_->failure_detector->next_tick())
      return;
    world_->failure_detector->tick(simulation_.local(*process_));
    tick_failure_detector();
    check_failures();
  });
}

void VirtualRank::on_formed() {
  newcomer_ = false;
  note("joined all ranks in " + world_->name);
  control_channel_.send(launch::encode(launch::RankMessage{launch::RankMessage::Kind::formed, round_}));
  begin_work();
}

// A rank that never joined a world exits with its error; any other rank waits for the launcher's decision.
void VirtualRank::on_join_failed() {
  note("failed to join");
  if (newcomer_) return exit(static_cast<int>(ExitCode::comm));
  close_world();
  wait_for_next_round();
}

// Sends a bye and waits for the acknowledgement, like the real failure detector when its world closes.
void VirtualRank::leave(Continuation then) {
  state_ = State::leaving;
  leaving_then_ = std::move(then);
  simulation_.send(world_->detector_link, 0, world_->to_detector.encode(net::FrameKind::bye, {}));
  const uint64_t generation = generation_;
  simulation_.after(process_, kByeTimeout, [this, generation] {
    if (generation != generation_ || state_ != State::leaving) return;
    close_world();
    std::exchange(leaving_then_, {})();
  });
  check_failures();
}

void VirtualRank::close_world() {
  ++generation_;
  if (!world_) return;
  for (const LinkPtr& link : {world_->store, world_->detector_link})
    if (link) simulation_.close(link, 0);
  if (world_->entered) shared_.invariants.left(*process_);
  world_.reset();
}

void VirtualRank::wait_for_next_round() {
  state_ = State::awaiting;
  control_channel_.send(launch::encode(launch::RankMessage{launch::RankMessage::Kind::waiting, round_}));
  const uint64_t generation = ++generation_;
  simulation_.after(process_, kNextRoundTimeout, [this, generation] {
    if (generation == generation_ && state_ == State::awaiting) exit(static_cast<int>(ExitCode::comm));
  });
  process_launcher_messages();
}

void VirtualRank::receive_from_launcher(const std::string& text) {
  launcher_messages_.push_back(text);
  process_launcher_messages();
}

void VirtualRank::process_launcher_messages() {
  while (state_ == State::awaiting && !launcher_messages_.empty()) {
    const launch::NextRound next = launch::parse_next_round(launcher_messages_.front());
    launcher_messages_.pop_front();
    switch (launch::next_round_action(next, round_)) {
      case launch::NextRoundAction::stop:
        return exit(static_cast<int>(ExitCode::comm));
      case launch::NextRoundAction::ignore:
        continue;
      case launch::NextRoundAction::join:
        round_ = next.round;
        return join_round(next.job, std::stoi(next.store));
    }
  }
}

void VirtualRank::fail(int code) {
  if (process_->alive) exit(code);
}

// SIGTERM: a real rank finishes its step first, which may take long. Here the rank ends after a short delay.
void VirtualRank::terminate() {
  simulation_.at(simulation_.now() + simulation_.random.between(kMs, 100 * kMs), process_, [this] { exit(128 + 15); });
}

void VirtualRank::exit(int code) {
  note(fmt::format("ends with exit code {}", code));
  exit_code_ = code;
  simulation_.end(process_);
}

std::vector<LinkPtr> VirtualRank::links() const {
  std::vector<LinkPtr> found;
  if (world_ && world_->store) found.push_back(world_->store);
  if (world_ && world_->detector_link) found.push_back(world_->detector_link);
  return found;
}

}  // namespace esp::sim
