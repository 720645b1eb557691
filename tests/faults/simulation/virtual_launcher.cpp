#include "tests/faults/simulation/virtual_launcher.h"

#include <fmt/format.h>

namespace esp::sim {
namespace {

constexpr Time kPollInterval = 100 * kMs;  // same value as in launch/agent.cpp
constexpr Time kGrace = 2 * kSecond;
constexpr int kPorts = 4;  // few ports, so that later hubs often reuse the port of an earlier hub

}  // namespace

VirtualLauncher::VirtualLauncher(SimulatedJob& shared, int max_restarts)
    : shared_(shared),
      simulation_(shared.simulation),
      max_restarts_(max_restarts),
      process_(simulation_.start_process()) {
  // When the launcher ends, the operating system ends its ranks after some delay (parent-death signal).
  process_->at_end.push_back([this] {
    shared_.hubs.clear();
    for (const RankSlot& slot : ranks_)
      if (slot.rank)
        simulation_.at(simulation_.now() + simulation_.delay(), nullptr,
                       [this, rank = slot.rank] { simulation_.end(rank->process()); });
  });
  start_round();
  check_failures();
}

VirtualLauncher::~VirtualLauncher() = default;

VirtualLauncher::OpenHub VirtualLauncher::open(int round) {
  OpenHub opened;
  do {
    opened.port = static_cast<int>(simulation_.random.below(kPorts));
  } while (shared_.hubs.contains(opened.port));
  // A unique suffix makes every job name different, like the instance id in a real hub's handshake reply.
  opened.hub = std::make_unique<VirtualHub>(simulation_, shared_.invariants, process_, shared_.num_ranks,
                                            fmt::format("job/round-{}#{}", round, num_hubs_++), shared_.bugs);
  shared_.hubs[opened.port] = opened.hub.get();
  return opened;
}

void VirtualLauncher::close(OpenHub& opened) {
  if (opened.hub) shared_.hubs.erase(opened.port);
  opened.hub.reset();
}

void VirtualLauncher::start_round() {
  ++start_;
  close(hub_);
  close(next_);
  hub_ = open(round_);
  messages_.clear();
  failures_.clear();
  failure_.reset();
  done_ = given_up_ = stopping_ = false;
  launch::InPlaceRestart::Options options;
  options.num_ranks = shared_.num_ranks;
  options.round = round_;
  options.open_round = [this](int round) {
    close(next_);
    next_ = open(round);
    const std::string port = std::to_string(next_.port);
    return launch::InPlaceRestart::RoundSetup{
        {true, round, next_.hub->job(), port},
        {{"JOB", next_.hub->job()}, {"STORE", port}, {"ROUND", std::to_string(round)}}};
  };
  options.may_restart = [this] { return num_restarts_ < max_restarts_ && ++num_restarts_ > 0; };
  options.print_line = [](const std::string&) {};
  options.on_connected = [this] {
    ++num_in_place_restarts_;
    close(hub_);
    hub_ = std::exchange(next_, {});
  };
  options.now = [this] { return simulation_.local(*process_); };
  restart_ = std::make_unique<launch::InPlaceRestart>(*this, options);
  ranks_.assign(static_cast<size_t>(shared_.num_ranks), {});
  for (int rank = 0; rank < shared_.num_ranks; ++rank) spawn(rank, round_, hub_.hub->job(), hub_.port);
}

void VirtualLauncher::spawn(int rank, int round, const std::string& job, int port) {
  auto instance = std::make_shared<VirtualRank*>(nullptr);
  VirtualRank::ControlChannelEnd control_channel{
      [this, rank, instance](const std::string& text) { on_message(rank, *instance, text); },
      [this, rank, instance](int code) { ended(rank, *instance, code); }};
  all_ranks_.push_back(std::make_unique<VirtualRank>(shared_, rank, round, job, port, std::move(control_channel)));
  *instance = all_ranks_.back().get();
  ranks_[static_cast<size_t>(rank)] = {all_ranks_.back().get(), true, 0, 0};
}

// The launcher receives a rank's messages and its end in the order in which they happened.
void VirtualLauncher::on_message(int rank, const VirtualRank* instance, const std::string& text) {
  RankSlot& slot = ranks_[static_cast<size_t>(rank)];
  if (slot.rank != instance) return;
  slot.inbound_until = std::max(slot.inbound_until, simulation_.now() + simulation_.delay());
  simulation_.at(slot.inbound_until, process_, [this, rank, instance, text] {
    if (ranks_[static_cast<size_t>(rank)].rank != instance) return;
    messages_.emplace_back(rank, text);
    schedule_check();
  });
}

void VirtualLauncher::ended(int rank, const VirtualRank* instance, int code) {
  RankSlot& slot = ranks_[static_cast<size_t>(rank)];
  if (slot.rank != instance) return;
  slot.inbound_until = std::max(slot.inbound_until, simulation_.now() + simulation_.delay());
  simulation_.at(slot.inbound_until, process_, [this, rank, instance, code] {
    RankSlot& now = ranks_[static_cast<size_t>(rank)];
    if (now.rank != instance || !now.running) return;
    now.running = false;
    if (code == 0) {
      done_ = true;
    } else if (!stopping_) {  // a rank that the launcher itself ended does not count as a failure
      if (!launch::worth_restarting(code)) not_restartable_ = true;
      const launch::Failure failure{rank, code, "ended", ""};
      if (!failure_ || code > 128) failure_ = failure;
      failures_.push_back(failure);
    }
    schedule_check();
  });
}

void VirtualLauncher::check_failures() {
  if (end_) return;
  handle_failures();
  simulation_.at(simulation_.now() + kPollInterval, process_, [this] { check_failures(); });
}

void VirtualLauncher::schedule_check() {
  simulation_.at(simulation_.now() + simulation_.random.between(0, 2 * kMs), process_, [this] {
    if (!end_) handle_failures();
  });
}

void VirtualLauncher::handle_failures() {
  const auto messages = std::exchange(messages_, {});
  const auto failures = std::exchange(failures_, {});
  if (!given_up_) {
    const launch::InPlaceRestart::Decision decision = restart_->poll(messages, failures, false);
    if (decision != launch::InPlaceRestart::Decision::proceed) {
      given_up_ = true;
      for (int rank = 0; rank < shared_.num_ranks; ++rank)
        send(rank, launch::encode(launch::NextRound{false, 0, "", ""}));
      end_all(decision == launch::InPlaceRestart::Decision::restart_all && num_restarts_ < max_restarts_);
    }
  }
  for (const RankSlot& slot : ranks_)
    if (slot.running) return;
  after_all();
}

void VirtualLauncher::end_all(bool at_once) {
  stopping_ = true;
  for (const RankSlot& slot : ranks_)
    if (slot.running && !at_once) slot.rank->terminate();
  simulation_.at(simulation_.now() + (at_once ? 0 : kGrace), process_, [this, start = start_] {
    if (start != start_) return;
    for (const RankSlot& slot : ranks_)
      if (slot.running) simulation_.end(slot.rank->process());
  });
}

void VirtualLauncher::after_all() {
  round_ = restart_->round() + 1;
  const launch::RoundResult end = launch::make_round_result(0, false, failure_, *restart_);
  const launch::NextAction then = launch::next_action(launch::root_cause({end}), false, num_restarts_, max_restarts_);
  if (then != launch::NextAction::restart) {
    end_ = then;
    return;
  }
  ++round_;
  ++num_restarts_;
  start_round();
}

void VirtualLauncher::send(int rank, const std::string& text) {
  RankSlot& slot = ranks_[static_cast<size_t>(rank)];
  if (!slot.running) return;
  slot.outbound_until = std::max(slot.outbound_until, simulation_.now() + simulation_.delay());
  simulation_.at(slot.outbound_until, slot.rank->process(),
                 [to = slot.rank, text] { to->receive_from_launcher(text); });
}

void VirtualLauncher::kill(int rank) {
  RankSlot& slot = ranks_[static_cast<size_t>(rank)];
  if (!slot.running) return;
  if (shared_.bugs.forget_to_kill) return ended(rank, slot.rank, 128 + 9);
  simulation_.at(simulation_.now() + simulation_.delay(), nullptr,
                 [this, instance = slot.rank] { simulation_.end(instance->process()); });
}

bool VirtualLauncher::respawn(int rank, const launch::Environment& changed) {
  bool all_ended = true;
  for (const RankSlot& slot : ranks_) all_ended = all_ended && !slot.running;
  if (all_ended || stopping_) return false;
  spawn(rank, std::stoi(changed.at("ROUND")), changed.at("JOB"), std::stoi(changed.at("STORE")));
  return true;
}

}  // namespace esp::sim
